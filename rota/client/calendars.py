"""``client.calendars``: on whose days tasks fire, as ``rota calendar`` does."""

from collections.abc import Iterable, Sequence
from datetime import date

from rota.client.session import Session, checked_limit
from rota.shared.control import calendars
from rota.shared.control.documents import Document
from rota.shared.domain.calendars.defining import Changes
from rota.shared.domain.errors import InvalidInput

Documents = list[Document]
Days = Sequence[date | str]
"""Dates, or texts such as ``2027-12-24``."""


class Calendars:
    """The calendars. Every function returns what ``rota calendar … --json`` prints."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(self, *, limit: int = 100) -> Documents:
        """At most ``limit`` calendars by name. Raises InvalidInput for a limit out of range."""
        with self._session.database() as database:
            return calendars.listed(database, checked_limit(limit))

    def show(self, name: str, *, year: int | None = None) -> Document:
        """A calendar, the ``tasks`` that use it, and its ``days`` in a year, by default this one. Raises NotFound.

        The days are those that differ from the others of their week.
        """
        with self._session.database() as database:
            return calendars.show(database, name, year)

    def add(
        self,
        name: str,
        *,
        country: str | None = None,
        weekend: str | None = None,
        off: Days = (),
        on: Days = (),
        through: int | None = None,
        why: str | None = None,
    ) -> Document:
        """Add a calendar. Raises InvalidInput, NameTaken.

        ``country`` is a code such as ``DE``, or ``DE-BY`` for a part of it; its public holidays are worked out through
        the year ``through``. ``off`` and ``on`` are dates that are days off and working days. ``weekend`` lists the
        days off of a week (``fri,sat``; ``none``, ``all``), by default those of the country, or Saturday and Sunday.

            client.calendars.add("bavaria", country="DE-BY", off=["2027-12-24"])
            client.tasks.set("nightly", calendar="bavaria")
        """
        changes = Changes(country, weekend, _texts(off), _texts(on), (), through)
        with self._session.database() as database:
            return calendars.add(database, self._session.actor, name, changes, why)

    def set(
        self,
        name: str,
        *,
        country: str | None = None,
        weekend: str | None = None,
        off: Days = (),
        on: Days = (),
        forget: Days = (),
        through: int | None = None,
        why: str | None = None,
    ) -> Document:
        """Change a calendar: only what is given. Within seconds the tasks that use it go by it.

        ``forget`` undoes ``off`` and ``on`` of dates; the empty ``country`` is none. Raises NotFound, InvalidInput.

            client.calendars.set("bavaria", forget=["2027-12-24"], why="the shop is open")
        """
        changes = Changes(country, weekend, _texts(off), _texts(on), _texts(forget), through)
        if changes == Changes():
            raise InvalidInput("say what to change: country, weekend, off, on, forget, through")
        with self._session.database() as database:
            return calendars.edit(database, self._session.actor, name, changes, why)

    def refresh(self, *names: str, why: str | None = None) -> Documents:
        """Work out the public holidays of countries anew, of all calendars or of these, as the library knows them now.

        Raises NotFound, or InvalidInput for a calendar of no country.
        """
        with self._session.database() as database:
            return calendars.refresh(database, self._session.actor, names, why)

    def remove(self, name: str, *, why: str | None = None) -> Document:
        """Delete a calendar that no task uses. Raises NotFound, and NotPossible while tasks use it."""
        with self._session.database() as database:
            return calendars.remove(database, self._session.actor, name, why)


def _texts(days: Iterable[date | str]) -> tuple[str, ...]:
    if isinstance(days, str):
        raise InvalidInput(f"days {days!r:.80}: give a list of dates, such as ['2027-12-24']")
    return tuple(day.isoformat()[:10] if isinstance(day, date) else str(day) for day in days)
