"""Cron: the expression, and the trigger of a task that has one or several."""

from rota.shared.domain.triggers.cron.cron import Cron
from rota.shared.domain.triggers.cron.trigger import CronTrigger

__all__ = ["Cron", "CronTrigger"]
