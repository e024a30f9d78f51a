"""Cron: the expression, and the trigger of a task that has one."""

from rota.shared.domain.triggers.cron.cron import Cron, CronTrigger

__all__ = ["Cron", "CronTrigger"]
