"""The trigger of a task that fires again so long after its last run has ended."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from rota.shared.domain.times import EARLIEST, LATEST, is_time
from rota.shared.domain.triggers.inputs import TriggerInputs
from rota.shared.domain.triggers.interval import in_short, in_words, interval_seconds


@dataclass(frozen=True, slots=True)
class FixedDelayTrigger:
    """Fires once, and again when so long has passed since the end of that run.

    Nobody knows ahead when a run ends, so the scheduler makes the plan from fire to fire (``deciding``). The moments
    here are those of runs that take no time, counted from ``anchor``: what is not run counts as ended at once.
    """

    delay: timedelta
    anchor: datetime

    @classmethod
    def of(cls, inputs: TriggerInputs) -> Self:
        """The trigger that ``fixed_delay`` in ``trigger_spec`` and ``starts_at`` describe.

        Raises InvalidInput.
        """
        seconds = interval_seconds(inputs.spec_value("fixed_delay", "10m"), "fixed_delay")
        return cls(timedelta(seconds=seconds), inputs.starts_at if is_time(inputs.starts_at) else EARLIEST)

    def next_after(self, moment: datetime) -> datetime | None:
        """The first moment strictly after another (naive UTC), or None if there is none before the year 9999 ends."""
        if moment < self.anchor:
            return self.anchor
        passed = ((moment - self.anchor) // self.delay + 1) * self.delay
        return self.anchor + passed if passed <= LATEST - self.anchor else None

    def latest_at_or_before(self, moment: datetime) -> datetime | None:
        """The last of these moments that is not after another (naive UTC), or None before the anchor."""
        if moment < self.anchor:
            return None
        return self.anchor + (moment - self.anchor) // self.delay * self.delay

    def describe(self) -> str:
        """The delay in plain English: ``10 minutes after the end of its last run``."""
        return f"{in_words(self.delay)} after the end of its last run"

    def label(self) -> str:
        """The delay as people write it: ``10m after its end``."""
        return f"{in_short(self.delay)} after its end"
