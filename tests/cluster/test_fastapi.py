"""A web app under several uvicorn processes, each with a scheduler and a worker beside it, killed one by one."""

import signal
import sys
from collections.abc import Iterator
from datetime import timedelta

import httpx
import psutil
import pytest

from tests.harness.apps import EVIDENCE_FILE, GATE_FOLDER, SERVICE
from tests.harness.cluster import Cluster
from tests.harness.ports import free_port
from tests.harness.processes import RotaProcess, wait_until

PROCESSES = 4
EVERY_SECOND = "* * * * * *"


class Web:
    """The app at work."""

    def __init__(self, cluster: Cluster) -> None:
        self.port = free_port()
        command = (sys.executable, "-m", "uvicorn", "tests.harness.web_app:app", "--port", str(self.port))
        self.process = RotaProcess(
            "--workers",
            str(PROCESSES),
            database_url=cluster.url,
            environment={
                EVIDENCE_FILE: str(cluster.evidence_file),
                GATE_FOLDER: str(cluster.folder / "gates"),
                SERVICE: "web",
            },
            log=cluster.folder / "web.log",
            command=command,
        )
        cluster.processes.append(self.process)

    def servers(self) -> list[psutil.Process]:
        """The processes that serve, in the order of their start."""
        found = [one for one in psutil.Process(self.process.pid).children() if "spawn_main" in " ".join(one.cmdline())]
        return sorted(found, key=lambda one: one.create_time())

    def get(self) -> dict[str, object]:
        """What one of them answers."""
        answer: dict[str, object] = httpx.get(f"http://127.0.0.1:{self.port}/", timeout=10).json()
        return answer


@pytest.fixture
def web(cluster: Cluster) -> Iterator[Web]:
    made = Web(cluster)
    with made.process:
        wait_until(lambda: live(cluster) == PROCESSES, 60, "a worker beside each process")
        yield made


def live(cluster: Cluster) -> int:
    [row] = cluster.rows("SELECT COUNT(*) AS n FROM schedule_worker_beat WHERE gmt_dead IS NULL AND reason IS NULL")
    return int(row["n"])


@pytest.mark.timeout(300)
def test_each_second_runs_once_though_the_processes_are_killed_one_by_one(cluster: Cluster, web: Web) -> None:
    task = cluster.add_task(
        "note", "NOTE", EVERY_SECOND, cron_seconds=1, overlap_policy="allow", misfire_grace_seconds=3600
    )
    ran = "SELECT id FROM schedule_instance WHERE schedule_task_id = %s AND status = 'succeed' LIMIT 3"
    wait_until(lambda: len(cluster.rows(ran, task)) == 3, 30, "the first runs")
    began = cluster.now()
    for number, server in enumerate(web.servers(), start=1):
        beside = server.children(recursive=True)
        assert len(beside) >= 3, "a parent, a scheduler, a worker's guardian"
        server.kill()
        _, alive = psutil.wait_procs(beside, 40)
        assert alive == [], "what was beside the process has ended with it"
        wait_until(lambda: live(cluster) == PROCESSES, 60, f"uvicorn's new process {number}")
    ended = cluster.now()
    assert set(web.get()) == {"pid", "tasks"}
    last = began + timedelta(seconds=int((ended - began).total_seconds()))
    within = "schedule_task_id = %s AND schedule_datetime > %s AND schedule_datetime <= %s"
    left = f"SELECT id FROM schedule_instance WHERE {within} AND status <> 'succeed'"
    wait_until(lambda: not cluster.rows(left, task, began, last), 40, "each run to succeed")
    rows = cluster.rows(f"SELECT id, schedule_datetime FROM schedule_instance WHERE {within}", task, began, last)
    first = began.replace(microsecond=0)
    seconds = {first + timedelta(seconds=n) for n in range(1, int((last - first).total_seconds()) + 1)}
    assert {row["schedule_datetime"] for row in rows} == seconds
    assert len(rows) == len(seconds)
    entered = [entry.instance for entry in cluster.evidence() if entry.event == "enter"]
    assert [one["id"] for one in rows if entered.count(one["id"]) != 1] == []


def test_it_ends_within_the_grace_time_and_leaves_nothing_behind(cluster: Cluster, web: Web) -> None:
    task = cluster.add_task("hold", "HOLD", param={"gate": "hold"})
    [instance] = cluster.add_instances(task)
    cluster.wait_status([instance], "running")
    every = psutil.Process(web.process.pid).children(recursive=True)
    web.process.stop_signal(signal.SIGTERM)
    cluster.open_gate("hold")
    assert web.process.wait_exit(60) == 0
    _, alive = psutil.wait_procs(every, 10)
    assert alive == []
    assert cluster.instance(instance)["status"] == "succeed"
    assert live(cluster) == 0
