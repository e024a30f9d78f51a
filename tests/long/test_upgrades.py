"""Rolling upgrades: processes of this Rota and of a later one over one database, on each kind of database."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rota import __version__
from tests.harness import later
from tests.harness.apps import EVIDENCE_FILE, GATE_FOLDER
from tests.harness.processes import RotaProcess, wait_until
from tests.harness.schemas import ddl, typed

IMPATIENT = """
from rota import cli
from rota.scheduler_service import kinds
from rota.worker_service import registration

kinds.LOOK_SECONDS = registration.LOOK_SECONDS = 1.0
cli.main()
"""


@dataclass
class Upgrade:
    """One database, and the commands of this Rota and of a later one."""

    url: str
    folder: Path
    start: Callable[..., RotaProcess]

    def old(self, *arguments: str) -> RotaProcess:
        """A process of this Rota."""
        return self._start(*arguments)

    def new(self, *arguments: str, revision: str = later.ADDS_A_KIND) -> RotaProcess:
        """A process of the later Rota, which knows the migrations up to this revision."""
        migrations = self.folder / revision
        if not migrations.exists():
            later.migrations_until(revision, migrations)
        return self._start(*arguments, command=later.command(later.VERSION, migrations))

    def scheduler(self, process: Callable[..., RotaProcess]) -> RotaProcess:
        started = process("scheduler")
        started.wait_for_log("scheduler: started")
        return started

    def worker(self, process: Callable[..., RotaProcess], name: str) -> RotaProcess:
        started = process("worker", "--app", "tests.harness.apps:app", "--name", name)
        started.wait_for_log("started as #")
        return started

    def impatient(self, *arguments: str) -> RotaProcess:
        """A process of this Rota that asks each second whether the database still takes it."""
        return self._start(*arguments, command=(sys.executable, "-c", IMPATIENT))

    def ends(self, process: RotaProcess) -> tuple[int, str]:
        """The exit code of a command, and what it said."""
        return process.wait_exit(30), process.log

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return typed(self.url, statement)

    def fires(self, task: str) -> list[tuple[str, str]]:
        """The fires of a task: time and status."""
        return [
            (str(moment), status)
            for moment, status in self.sql(
                "SELECT i.schedule_datetime, i.status FROM schedule_instance AS i JOIN schedule_task AS t"
                f" ON t.id = i.schedule_task_id WHERE t.name = '{task}' ORDER BY i.schedule_datetime"
            )
        ]

    def wait_for_fires(self, task: str, number: int) -> None:
        """Wait until so many more fires of a task have succeeded."""
        before = self._succeeded(task)
        wait_until(lambda: self._succeeded(task) >= before + number, 30, f"{number} fires of {task}")

    def entered(self, task: str) -> Counter[str]:
        """How often the handlers were entered for each fire of a task."""
        lines = [json.loads(line) for line in (self.folder / "evidence").read_text().splitlines()]
        return Counter(line["fire"] for line in lines if line["task"] == task and line["event"] == "enter")

    def set_aside(self) -> list[tuple[Any, ...]]:
        return self.sql("SELECT name, plan_error FROM schedule_task WHERE plan_error IS NOT NULL")

    def _succeeded(self, task: str) -> int:
        return sum(status == "succeed" for _, status in self.fires(task))

    def _start(self, *arguments: str, **options: Any) -> RotaProcess:
        environment = {EVIDENCE_FILE: str(self.folder / "evidence"), GATE_FOLDER: str(self.folder)}
        return self.start(*arguments, database_url=self.url, environment=environment, **options)


@pytest.fixture
def upgrade(database_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]) -> Upgrade:
    """A database that this Rota has migrated, by its command."""
    folder = tmp_path / "later"
    folder.mkdir()
    (folder / "evidence").touch()
    one = Upgrade(database_url, folder, rota)
    code, said = one.ends(one.old("migrate"))
    assert code == 0, said
    return one


def stop(*processes: RotaProcess) -> None:
    for process in processes:
        process.stop_signal(signal.SIGTERM)
    for process in processes:
        assert process.wait_exit(40) == 0


def add_solar(upgrade: Upgrade, name: str) -> None:
    upgrade.sql(
        "INSERT INTO schedule_task (name, type, trigger_kind, trigger_spec)"
        f" VALUES ('{name}', 'NOTE', 'solar', '{{\"seconds\": 1}}')"
    )


def migrate(upgrade: Upgrade, revision: str = later.ADDS_A_KIND) -> None:
    code, said = upgrade.ends(upgrade.new("migrate", revision=revision))
    assert (code, f"to {revision}" in said) == (0, True), said


def test_old_processes_go_on_and_start_again_and_leave_a_new_kind_of_trigger_to_new_ones(upgrade: Upgrade) -> None:
    workers = [upgrade.worker(upgrade.old, "old")]
    schedulers = [upgrade.scheduler(upgrade.old), upgrade.scheduler(upgrade.old)]
    cron = "'* * * * * *', 1"
    upgrade.sql(f"INSERT INTO schedule_task (name, type, cron, cron_seconds) VALUES ('ticking', 'NOTE', {cron})")
    upgrade.wait_for_fires("ticking", 2)

    migrate(upgrade)
    add_solar(upgrade, "early")
    leaves = r"tasks with trigger_kind 'solar', such as 'early', are left to newer schedulers"
    wait_until(lambda: any(leaves in old.log for old in schedulers), 20, "an old scheduler to see the task")
    upgrade.wait_for_fires("ticking", 2)
    assert (upgrade.fires("early"), upgrade.set_aside()) == ([], [])
    code, said = upgrade.ends(upgrade.old("doctor"))
    assert (code, "trigger_kind 'solar': 1 that are on" in said) == (0, True), said
    code, said = upgrade.ends(upgrade.old("task", "list"))
    assert (code, "trigger_kind 'solar' is not known to this Rota" in said) == (0, True), said

    stop(schedulers.pop())
    for process in workers:
        stop(process)
        process.start().wait_for_log(r"(?s)started as #.*started as #")
    schedulers.append(upgrade.scheduler(upgrade.old))
    new = upgrade.scheduler(upgrade.new)
    workers.append(upgrade.worker(upgrade.new, "new"))
    add_solar(upgrade, "late")
    upgrade.wait_for_fires("late", 5)
    upgrade.wait_for_fires("early", 5)
    code, said = upgrade.ends(upgrade.old("doctor"))
    assert (code, "that are on" in said) == (0, False), said

    stop(new)
    count = len(upgrade.fires("late"))
    upgrade.wait_for_fires("ticking", 10)
    assert len(upgrade.fires("late")) == count, "nobody is left who knows the kind"
    upgrade.scheduler(upgrade.new)
    upgrade.wait_for_fires("late", 3)
    upgrade.wait_for_fires("ticking", 3)

    assert upgrade.set_aside() == []
    for task in ("ticking", "early", "late"):
        moments = Counter(moment for moment, _ in upgrade.fires(task))
        assert set(moments.values()) == {1}, task
        assert set(upgrade.entered(task).values()) == {1}, task
    assert upgrade.sql("SELECT misfires FROM schedule_task WHERE name = 'ticking'") == [(0,)]


def test_an_old_migrate_says_that_the_schema_is_newer_and_changes_nothing(upgrade: Upgrade) -> None:
    migrate(upgrade)
    tables, types = ddl(upgrade.url), "SELECT id, type, gmt_modified FROM schedule_task_node_type"
    registered = upgrade.sql(types)
    code, said = upgrade.ends(upgrade.old("migrate"))
    assert code == 0, said
    said_so = "a newer Rota migrated it, and it takes this Rota 0.1.0, too; nothing was changed"
    assert f"is at {later.ADDS_A_KIND}: {said_so}" in said
    assert (ddl(upgrade.url), upgrade.sql(types)) == (tables, registered)


def test_a_database_that_takes_no_older_rota_is_migrated_without_old_processes_and_refuses_them(
    upgrade: Upgrade,
) -> None:
    migrate(upgrade)
    old = [upgrade.scheduler(upgrade.old), upgrade.worker(upgrade.old, "old")]
    before = ddl(upgrade.url)
    code, said = upgrade.ends(upgrade.new("migrate", revision=later.TAKES_NO_OLDER))
    assert (code, ddl(upgrade.url)) == (3, before), said
    assert f"{later.TAKES_NO_OLDER} takes no Rota older than 0.2.0, and still at work are scheduler '" in said
    assert f"(Rota {__version__}), worker 'old' (Rota {__version__}); stop them, or upgrade them to 0.2.0" in said

    stop(*old)
    migrate(upgrade, later.TAKES_NO_OLDER)
    before = ddl(upgrade.url)
    refusal = (
        f"takes no Rota older than 0.2.0 (found Rota {__version__}, wanted 0.2.0 or newer): "
        "install Rota 0.2.0 or newer for this process"
    )
    for command in (["scheduler"], ["worker"], ["task", "list"], ["migrate"]):
        code, said = upgrade.ends(upgrade.old(*command))
        assert (code, refusal in said, len(said.splitlines())) == (3, True, 1), said
    assert ddl(upgrade.url) == before
    code, said = upgrade.ends(upgrade.old("doctor"))
    assert (code, "install Rota 0.2.0 or newer" in said) == (3, True), said
    stop(upgrade.scheduler(lambda *arguments: upgrade.new(*arguments, revision=later.TAKES_NO_OLDER)))


def test_processes_at_work_stop_when_the_database_takes_them_no_more(upgrade: Upgrade) -> None:
    scheduler = upgrade.scheduler(upgrade.impatient)
    worker = upgrade.worker(upgrade.impatient, "old")
    cron = "'* * * * * *', 1"
    upgrade.sql(f"INSERT INTO schedule_task (name, type, cron, cron_seconds) VALUES ('ticking', 'NOTE', {cron})")
    upgrade.wait_for_fires("ticking", 2)
    upgrade.sql("UPDATE rota_schema_version SET oldest_version = '0.2.0'")  # as the statements of migrate --sql do
    for process in (scheduler, worker):
        assert process.wait_exit(40) == 3, process.log
        assert "since it is too old" in process.log
        assert "install Rota 0.2.0 or newer for this process" in process.log
        assert "Traceback" not in process.log
    assert upgrade.sql("SELECT count(*) FROM schedule_instance WHERE status = 'running'") == [(0,)]
    assert {state for (state,) in upgrade.sql("SELECT state FROM schedule_worker_node")} == {"dead"}

    # the scheduler may have given the worker something in the moment in which it stopped: the next one takes it back
    migrate(upgrade, later.TAKES_NO_OLDER)
    upgrade.worker(lambda *arguments: upgrade.new(*arguments, revision=later.TAKES_NO_OLDER), "new")
    upgrade.scheduler(lambda *arguments: upgrade.new(*arguments, revision=later.TAKES_NO_OLDER))
    upgrade.wait_for_fires("ticking", 7)
    held_by_old = (
        "SELECT count(*) FROM schedule_instance AS i JOIN schedule_worker_node AS w ON w.id = i.schedule_worker_node_id"
        " WHERE w.name = 'old' AND i.status IN ('assigned', 'running')"
    )
    wait_until(lambda: upgrade.sql(held_by_old) == [(0,)], 10, "what the old worker held to be taken back")
    assert set(Counter(moment for moment, _ in upgrade.fires("ticking")).values()) == {1}
    assert set(upgrade.entered("ticking").values()) == {1}
