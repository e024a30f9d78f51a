"""The trigger of a task that runs only when somebody asks for a run."""

from datetime import datetime
from typing import Self

from rota.shared.domain.triggers.inputs import TriggerInputs


class ManualTrigger:
    """A trigger that never fires."""

    @classmethod
    def of(cls, inputs: TriggerInputs) -> Self:
        """The manual trigger; it reads none of the inputs."""
        return cls()

    def next_after(self, moment: datetime) -> None:
        """None: it never fires."""

    def latest_at_or_before(self, moment: datetime) -> None:
        """None: it never fired."""

    def describe(self) -> None:
        """None: there is nothing to describe."""

    def label(self) -> str:
        """``when asked``."""
        return "when asked"
