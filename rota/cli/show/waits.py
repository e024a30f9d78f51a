"""Waits that last longer than an outage of the database: what is waited for goes on without the command."""

from collections.abc import Callable
from typing import TypeVar

from rota.cli.show.output import note
from rota.shared.domain.errors import DatabaseAway

T = TypeVar("T")


def outlasting(look: Callable[[], T], *, line_end: str = "") -> T:
    """What a look finds. While the database is away it looks again, and says so on stderr once.

    ``line_end`` ends a line of progress that a terminal shows.
    """
    said = False
    while True:
        try:
            found = look()
        except DatabaseAway as error:  # it has been away for as long as a command tries again
            if not said:
                note(f"{line_end}the database is away: {error}; the wait goes on")
                said = True
        else:
            if said:
                note("the database is back")
            return found
