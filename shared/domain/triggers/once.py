"""The trigger of a task that fires once, at a time."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from zoneinfo import ZoneInfo

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.times import localized, read_time
from rota.shared.domain.triggers.inputs import TriggerInputs
from rota.shared.domain.triggers.zones import load_zone


@dataclass(frozen=True, slots=True)
class OnceTrigger:
    """Fires once, and never again. The task stays, with its history."""

    moment: datetime
    zone: ZoneInfo

    @classmethod
    def of(cls, inputs: TriggerInputs) -> Self:
        """The trigger that ``at`` in ``trigger_spec`` and ``timezone`` describe.

        A time without an offset is local time in the zone: the first of two that are the same, and the first instant
        after the gap for one that does not occur. Raises InvalidInput, InvalidTimezone.
        """
        zone = load_zone(inputs.timezone)
        moment, _ = read_time(time_text(inputs.spec_value("at", "2027-01-04T09:00")), zone)
        return cls(moment, zone)

    def next_after(self, moment: datetime) -> datetime | None:
        """The fire if it is after a moment (naive UTC), otherwise None."""
        return self.moment if self.moment > moment else None

    def latest_at_or_before(self, moment: datetime) -> datetime | None:
        """The fire if it is not after a moment (naive UTC), otherwise None."""
        return self.moment if self.moment <= moment else None

    def describe(self) -> str:
        """The time in the zone: ``once, at 2027-01-04 09:00``."""
        return f"once, {self.label()}"

    def label(self) -> str:
        """The time in the zone: ``at 2027-01-04 09:00``."""
        local = localized(self.moment, self.zone).replace(tzinfo=None)
        return f"at {local.isoformat(' ', 'auto' if local.second or local.microsecond else 'minutes')}"


def time_text(value: Any) -> str:
    """A time that somebody wrote, as text: it keeps its offset if it has one.

    Raises InvalidInput for what is neither a ``datetime`` nor a text.

        time_text(datetime(2027, 1, 4, 9, tzinfo=UTC))   # "2027-01-04T09:00:00+00:00"
    """
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return value.strip()
    raise InvalidInput(f"at {value!r:.60}: write a time, such as 2027-01-04T09:00")
