"""The inputs of a trigger."""

import json
import re
import reprlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rota.shared.domain.calendars.days_asked import DaysAsked, Which
from rota.shared.domain.calendars.definition import Found
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import UnreadableJson
from rota.shared.domain.times import localized
from rota.shared.domain.triggers.zones import load_zone

FOR_ANY_KIND = frozenset({"jitter_seconds", "calendar", "calendar_days"})
"""The keys that ``trigger_spec`` may have whatever kind the trigger is."""

MOST_JITTER_SECONDS = 86_400

_CALENDAR_NAME = re.compile("[^\\ud800-\\udfff]{1,63}", re.DOTALL)
"""What the columns hold: half a surrogate, which JSON may have, is no text for a database."""


@dataclass(frozen=True, slots=True)
class TriggerInputs:
    """The columns of ``schedule_task`` that say when the task fires. Each kind of trigger reads only its own."""

    trigger_kind: str
    cron: str | None = None
    cron_seconds: int = 0
    timezone: str = "UTC"
    trigger_spec: Any = None
    """A JSON value: the inputs of all kinds of triggers other than cron, and ``FOR_ANY_KIND``."""

    starts_at: datetime | None = None
    """Naive UTC. No trigger needs to leave out what is before it: ``PlanInputs`` does so for all."""

    calendar: Found | None = field(default=None, compare=False)
    """The calendar that ``trigger_spec`` names, as its row is now. It is no column: ``PlanInputs.on`` adds it. No
    trigger needs to leave out what is on other days: ``PlanInputs`` does so for all."""

    def spec_value(self, name: str, example: Any) -> Any:
        """The value in ``trigger_spec`` from which a kind is made. SQL may have written anything there.

        Raises InvalidInput if ``trigger_spec`` is no object, or has not this key, or has a key that nobody reads.
        """
        spec = self.trigger_spec
        if isinstance(spec, dict) and spec.keys() - FOR_ANY_KIND == {name}:
            return spec[name]
        raise self._odd_spec(json.dumps({name: example}))

    def require_no_spec_of_its_own(self) -> None:
        """Raise InvalidInput if ``trigger_spec`` has more than what it may have whatever kind the trigger is.

        A key that nobody reads may be one that somebody has spelled wrong.
        """
        spec = self.trigger_spec
        if spec is not None and not (isinstance(spec, dict) and spec.keys() <= FOR_ANY_KIND):
            raise self._odd_spec(f"NULL, or an object with some of the keys {', '.join(sorted(FOR_ANY_KIND))}")

    def _odd_spec(self, wanted: str) -> InvalidInput:
        spec = self.trigger_spec
        found = str(spec) if isinstance(spec, UnreadableJson) else reprlib.repr(spec)
        return InvalidInput(f"trigger_spec is {found}; for trigger_kind {self.trigger_kind} write {wanted}")

    @property
    def jitter_seconds(self) -> int:
        """By how much a fire may run later than at its own time; 0 if ``trigger_spec`` says nothing.

        Raises InvalidInput.
        """
        if self.trigger_spec is None:
            return 0
        jitter = self.trigger_spec.get("jitter_seconds", 0) if isinstance(self.trigger_spec, dict) else 0
        if type(jitter) is not int or not 0 <= jitter <= MOST_JITTER_SECONDS:
            raise InvalidInput(f"jitter_seconds {jitter!r:.60}: write whole seconds from 0 to {MOST_JITTER_SECONDS}")
        return jitter

    @property
    def calendar_name(self) -> str | None:
        """The name of the calendar on whose days the task fires; None if ``trigger_spec`` has none.

        Raises InvalidInput.
        """
        name = self.trigger_spec.get("calendar") if isinstance(self.trigger_spec, dict) else None
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidInput(f"calendar {name!r:.60}: write the name of a calendar; rota calendar list shows them")
        return name

    @property
    def named_calendar(self) -> str | None:
        """The same; None also for what is no name."""
        if self.trigger_spec is None:
            return None
        name = self.trigger_spec.get("calendar") if isinstance(self.trigger_spec, dict) else None
        return name if isinstance(name, str) and _CALENDAR_NAME.fullmatch(name) else None

    @property
    def which_days(self) -> Which:
        """Which days of its calendar the task asks for.

        Raises InvalidInput.
        """
        return Which.read(self.trigger_spec.get("calendar_days") if isinstance(self.trigger_spec, dict) else None)

    @property
    def days(self) -> DaysAsked | None:
        """The days on which the task may fire; None if it asks for no calendar.

        Raises InvalidInput, also if there is no such calendar.
        """
        if self.trigger_spec is None or (name := self.calendar_name) is None:
            return None
        if self.calendar is None:
            raise InvalidInput(f"there is no calendar {name!r:.60}; rota calendar list shows those there are")
        if isinstance(self.calendar, InvalidInput):
            raise InvalidInput(str(self.calendar))
        return DaysAsked(self.calendar, self.which_days)

    def is_on_its_days(self, moment: datetime) -> bool:
        """Whether the calendar has nothing against a fire at a moment (naive UTC). Raises InvalidInput."""
        days = self.days
        return days is None or days.has(localized(moment, load_zone(self.timezone)).date())
