"""A scheduler that was frozen between its decision and its write gives its batch up: its decisions are out of date."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.writing import TaskWrite
from rota.shared.settings import Settings
from tests.harness.scenario import Scenario


def test_what_was_decided_longer_ago_than_the_lookahead_is_not_written(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was suspended alone: no other scheduler took the leases over."""
    task = rows.planned_task()
    duty = Materializer(rows.database, Settings.load())
    write = duty._write

    def frozen(token: str, writes: Sequence[TaskWrite], now: object) -> None:
        taken = (rows.now() - timedelta(seconds=6)).strftime("%Y-%m-%d %H:%M:%S.%f")
        rows.sql("UPDATE schedule_task_lock SET locked_at = :taken", taken=taken)
        write(token, writes, now)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(duty, "_write", frozen)
        duty.step()
    assert (rows.statuses(), rows.task_row(task).next_fire_at) == ({}, rows.start)
    duty.step()
    assert len(rows.statuses()) >= 1
    assert rows.task_row(task).next_fire_at > rows.start
