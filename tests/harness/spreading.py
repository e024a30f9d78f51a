"""A task that is spread, with the duties that spread it."""

from typing import Any

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.spreader import Spreader
from rota.scheduler_service.fleet import FleetCache
from rota.shared.control import tasks
from rota.shared.control.actor import Actor
from rota.shared.domain.states import InstanceStatus
from rota.shared.settings import Settings
from rota.shared.store.runs import Run
from tests.harness.scenario import Scenario, ended

ANN = Actor("ann", "cli")
GIVEN = "SELECT id FROM schedule_instance WHERE status = 'assigned' AND schedule_worker_node_id = :worker"


class Spread:
    """A task that is spread, some workers, and the duties of a scheduler."""

    def __init__(self, rows: Scenario, workers: int = 2) -> None:
        self.rows, self.database = rows, rows.database
        self.workers = [rows.worker(f"w{n}", capacity=1000, prefetch=1000) for n in range(workers)]
        settings = Settings.load()
        self.fleet = FleetCache(self.database)
        self.spreader = Spreader(self.database, settings, self.fleet)
        self.assigner = Assigner(self.database, settings, self.fleet, to_spread=self.spreader.note)

    def add(self, name: str = "all", **fields: Any) -> int:
        return int(tasks.add(self.database, ANN, {"name": name, "type": "REPORT", **fields}).document["id"])

    def start(self, name: str = "all", **given: Any) -> int:
        return int(tasks.run(self.database, ANN, name, **given).document["id"])

    def task(self, instance: int) -> int:
        return int(self.rows.row(instance).schedule_task_id)

    def step(self) -> None:
        """What a scheduler does now: it spreads what waits, and gives the shards to workers."""
        self.assigner.step()
        self.spreader.step()
        self.assigner.step()

    def stepped(self) -> Scenario:
        self.step()
        return self.rows

    def claim(self) -> dict[int, list[Run]]:
        """Let each worker begin what it was given; the runs by the worker."""
        runs: dict[int, list[Run]] = {}
        for worker in self.workers:
            given = [row.id for row in self.rows.sql(GIVEN, worker=worker)]
            runs[worker] = list(self.rows.claim(worker, *given).runs) if given else []
        return runs

    def end(self, runs: dict[int, list[Run]], status: str = "succeed") -> None:
        for worker, some in runs.items():
            for run in some:
                assert self.rows.report(worker, ended(run, InstanceStatus(status))) == set()

    def shards(self, parent: int) -> list[Any]:
        found = self.rows.sql(
            "SELECT id FROM schedule_instance WHERE parent_id = :parent ORDER BY shard_index", parent=parent
        )
        return [self.rows.row(one.id) for one in found]
