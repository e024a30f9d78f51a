"""Places in pools: delete the rows that say in which pool an instance runs, once it does not run there any more."""

from functools import partial

from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import pools

REST_SECONDS = 5.0


class PoolPlaces:
    """The duty: look every five seconds, or once a tick if a tick is longer.

    A row that is left counts for nothing. It only makes it longer to count what the pools hold.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._limit = settings.batch
        self._rest = max(REST_SECONDS, settings.tick_period)

    def step(self) -> float:
        """One look; returns the seconds to rest."""
        deleted = self._database.write(partial(pools.forget_ended, limit=self._limit))
        return 0 if deleted == self._limit else self._rest
