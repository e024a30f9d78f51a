"""Full lines: cancel the fires for which the lines of their tasks have no place (``max_waiting``)."""

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection

from rota.scheduler_service import adopting
from rota.scheduler_service.notices import of_instance
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import full_lines
from rota.shared.store.overlap import REPORTED_WITHIN
from rota.shared.store.transitions import canceling
from rota.shared.surprises import Surprises


class FullLines:
    """Looks at the lines once a tick. Where they are very many it goes on at the next tick.

    full_lines = FullLines(database, settings, surprises)
    full_lines.shorten()
    """

    def __init__(self, database: Database, settings: Settings, surprises: Surprises) -> None:
        self._database = database
        self._settings = settings
        self._surprises = surprises
        self._looked_at = float("-inf")
        self._after = 0

    def shorten(self) -> None:
        """Cancel the fires that were due a second ago and have no place, whichever workers have them.

        In that second a run that has ended may report, as for ``skip``. What somebody has locked waits for the next
        tick.
        """
        monotonic = self._database.clock.monotonic()
        if monotonic - self._looked_at < self._settings.tick_period / 2:  # two ticks are seldom a period apart exactly
            return
        self._looked_at = monotonic
        due = self._database.clock.now() - REPORTED_WITHIN
        reasons, self._after = self._database.read(lambda c: full_lines.without_a_place(c, due, self._after))

        def cancel(connection: Connection, some: Sequence[int]) -> None:
            canceling.pass_over(connection, {instance_id: reasons[instance_id] for instance_id in some})

        ids, size = sorted(reasons), self._settings.batch
        for portion in (ids[at : at + size] for at in range(0, len(ids), size)):
            self._database.write_by_halves(portion, cancel, partial(adopting.note, self._surprises), of_instance)
