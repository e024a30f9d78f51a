"""A tick's first batch is small, so that the workers find some of it when they poll; the others are not."""

from datetime import timedelta

import pytest

from rota.scheduler_service.duties import materializer
from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.settings import Settings
from tests.harness.scenario import Scenario


def test_only_the_first_batch_of_a_tick_is_small(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materializer, "FIRST_BATCH", 2)
    duty = Materializer(rows.database, Settings.load(batch=4, lookahead_seconds=300))

    def tick() -> list[tuple[int, bool]]:
        """How many instances there are after each step, and whether there is more to do at once."""
        for _ in range(7):
            rows.planned_task(rows.start - timedelta(minutes=1), cron="0 0 1 1 *")
        steps: list[tuple[int, bool]] = []
        while not steps or steps[-1][1]:
            rest = duty.step()
            steps.append((rows.sql("SELECT COUNT(*) FROM schedule_instance")[0][0], rest == 0))
        return steps

    assert tick() == [(2, True), (6, True), (7, False)]
    assert tick() == [(9, True), (13, True), (14, False)]
