"""What a process knows of the servers behind one database: a cluster has several, each with a clock of its own."""

from collections.abc import Callable
from datetime import datetime


class Servers:
    """The servers behind one database. The backend tells what it finds out, and whoever uses the database asks.

    ``told`` is called with a time of the new server whenever the connections lead to another server than before: two
    moments of the clock's ``monotonic``, and the time between them that the server told, naive UTC.

        servers = Servers(clock.observe)
        servers.moves   # 0
    """

    moves = 0
    """How often the connections of this process have moved to another server."""

    are_several = False
    """Whether other servers take writes of the same rows, so that times in rows are of several clocks."""

    def __init__(self, told: Callable[[float, datetime, float], None]) -> None:
        self._told = told

    def moved(self, asked: float, time: datetime, answered: float) -> None:
        """The connections lead to another server from now on, which told this time between two moments."""
        self._told(asked, time, answered)
        self.moves += 1
