"""Tasks with triggers of all kinds: add, edit and declare one, materialize its fires, read them."""

import json
from datetime import datetime
from typing import Any

from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.control import tasks
from rota.shared.control.actor import Actor
from rota.shared.domain.task import TaskDefinition
from rota.shared.settings import Settings
from tests.harness.scenario import Scenario

ANN = Actor("ann", "cli")


def materialize(rows: Scenario, *, seconds: int = 5) -> None:
    duty = Materializer(rows.database, Settings.load(lookahead_seconds=seconds))
    while duty.step() == 0:
        pass


def fires(rows: Scenario) -> list[datetime]:
    made = rows.sql("SELECT schedule_datetime FROM schedule_instance ORDER BY schedule_datetime")
    return [datetime.fromisoformat(str(moment)) for (moment,) in made]


def by_sql(rows: Scenario, kind: str, spec: Any, **columns: Any) -> int:
    rows.sql(
        "INSERT INTO schedule_task (name, type, trigger_kind, trigger_spec) VALUES ('poll', 'REPORT', :kind, :spec)",
        kind=kind,
        spec=json.dumps(spec),
    )
    [(task,)] = rows.sql("SELECT id FROM schedule_task WHERE live_name = 'poll'")
    for column, value in columns.items():
        rows.sql(f"UPDATE schedule_task SET {column} = :value WHERE id = :task", value=value, task=task)
    return int(task)


def add(rows: Scenario, **fields: Any) -> int:
    return int(tasks.add(rows.database, ANN, {"name": "poll", "type": "REPORT", **fields}).document["id"])


def edit(rows: Scenario, **changes: Any) -> Any:
    tasks.edit(rows.database, ANN, "poll", changes)
    return tasks.get(rows.database, "poll")


def declare(rows: Scenario, **fields: Any) -> Any:
    definition = TaskDefinition.of(name="poll", type="REPORT", **fields)
    assert tasks.declare(rows.database, Actor("w", "code"), definition, liveness_seconds=0)
    return tasks.get(rows.database, "poll")


def dues(rows: Scenario) -> list[tuple[datetime, datetime]]:
    made = rows.sql("SELECT schedule_datetime AS at, due_at AS due FROM schedule_instance ORDER BY schedule_datetime")
    return [(datetime.fromisoformat(str(row.at)), datetime.fromisoformat(str(row.due))) for row in made]
