"""The inputs of a trigger."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TriggerInputs:
    """The columns of ``schedule_task`` that say when the task fires. Each kind of trigger reads only its own."""

    trigger_kind: str
    cron: str | None = None
    cron_seconds: int = 0
    timezone: str = "UTC"
    trigger_spec: Any = None
    """A JSON value: the inputs of all kinds of triggers other than cron."""
