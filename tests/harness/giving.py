"""Tasks whose instances a scheduler gives to workers, with the duties that do so."""

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.spreader import Spreader
from rota.scheduler_service.fleet import FleetCache
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import pools
from rota.shared.store.pools import PoolLoad
from tests.harness.scenario import Scenario


class Giving:
    """The rows, and a scheduler's assigner and spreader, which a test lets go on by steps."""

    def __init__(self, database: Database) -> None:
        self.rows, self.database = Scenario(database), database
        settings = Settings.load()
        self.fleet = FleetCache(database)
        self.spreader = Spreader(database, settings, self.fleet)
        self.assigner = Assigner(database, settings, self.fleet, to_spread=self.spreader.note)

    def pending(self, task: int, number: int = 1) -> list[int]:
        """Instances that somebody has asked for, and that are due."""
        return [self.rows.pending(task, origin="manual") for _ in range(number)]

    def step(self) -> None:
        """Give what can be given, by the loads of now."""
        self.fleet._good_until = 0
        self.assigner.step()

    def held(self, worker: int) -> dict[str, PoolLoad]:
        """What the pools of a worker hold."""
        return self.database.read(lambda c: pools.held(c, [worker])).get(worker, {})

    def reason(self, instance: int) -> str | None:
        """Why an instance waits."""
        reason: str | None = self.rows.row(instance).reason
        return reason
