"""The trigger of a task that has one cron expression or several."""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Self
from zoneinfo import ZoneInfo

from rota.shared.domain.errors import InvalidCron
from rota.shared.domain.triggers.cron.cron import Cron
from rota.shared.domain.triggers.cron.syntax import refusal
from rota.shared.domain.triggers.inputs import TriggerInputs
from rota.shared.domain.triggers.zones import load_zone

BETWEEN = ";"


@dataclass(frozen=True, slots=True)
class CronTrigger:
    """A task's cron expressions, read in the task's time zone.

    It fires whenever one of them fires; fires that meet at an instant are one. Each expression keeps its own DST rule.
    """

    crons: tuple[Cron, ...]
    zone: ZoneInfo

    @classmethod
    def of(cls, inputs: TriggerInputs) -> Self:
        """The trigger that ``cron``, ``cron_seconds`` and ``timezone`` describe.

        Raises InvalidCron, which names the one expression that is wrong, InvalidTimezone, or InvalidInput.
        """
        if inputs.cron is None:
            raise InvalidCron(
                "the task is triggered by cron but has no cron expression; set cron, or trigger_kind manual"
            )
        inputs.require_no_spec_of_its_own()
        return cls(_parse(inputs.cron, bool(inputs.cron_seconds)), load_zone(inputs.timezone))

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after a moment (naive UTC), or None if there is none before the year 9999."""
        if len(self.crons) == 1:
            return self.crons[0].next_after(moment, self.zone)
        fires = [cron.next_after(moment, self.zone) for cron in self.crons]
        return min((fire for fire in fires if fire is not None), default=None)

    def latest_at_or_before(self, moment: datetime) -> datetime | None:
        """The last fire that is not after a moment (naive UTC), or None if there is none since the year 2."""
        fires = [cron.latest_at_or_before(moment, self.zone) for cron in self.crons]
        return max((fire for fire in fires if fire is not None), default=None)

    def describe(self) -> str:
        """The expressions in plain English, in local time."""
        return "; ".join(cron.describe() for cron in self.crons)

    def label(self) -> str:
        """The expressions themselves."""
        return "; ".join(cron.expression for cron in self.crons)


@lru_cache(maxsize=8192)
def _parse(text: str, seconds: bool) -> tuple[Cron, ...]:
    texts = text.split(BETWEEN)
    if len(texts) > 1 and not all(map(str.strip, texts)):
        raise refusal(text, "a ';' has no expression before or after it", "write ';' between expressions")
    return tuple(Cron.parse(one, seconds=seconds) for one in texts)
