"""What a duty places by: read again when it is too old, and counted on meanwhile."""

import pytest
from sqlalchemy import Connection

from scheduler_service import world as worlds
from scheduler_service.placement import needs_of
from scheduler_service.world import WORLD_SECONDS, Worlds
from shared.store import workers
from tests.store.scenario import Scenario
from tests.store.statements import executed


class Boot:
    """Boot time that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> Boot:
    boot = Boot()
    monkeypatch.setattr(worlds, "boottime", boot)
    return boot


def test_it_is_read_again_when_it_is_too_old_and_not_before(sqlite_rows: Scenario, boot: Boot) -> None:
    rows, known = sqlite_rows, Worlds(sqlite_rows.database)
    needs = needs_of(rows.nodes, {})
    assert known.current().fleet.choose(needs) is None
    worker = rows.worker()
    boot.seconds += WORLD_SECONDS
    with executed(rows.database.engine) as statements:
        assert known.current().fleet.choose(needs) is None
    assert statements == []
    boot.seconds += 0.001
    assert known.current().fleet.choose(needs) == worker
    assert known.current().catalog.nodes_of("REPORT", None) == rows.nodes


@pytest.mark.parametrize(("took", "good_for"), [(0.001, 0.25), (0.02, 0.4), (10.0, 1.0)])
def test_a_look_that_took_long_is_good_for_longer_but_not_for_ever(
    sqlite_rows: Scenario, boot: Boot, monkeypatch: pytest.MonkeyPatch, took: float, good_for: float
) -> None:
    known, look = Worlds(sqlite_rows.database), workers.fleet

    def slow(connection: Connection) -> list[workers.LiveWorker]:
        boot.seconds += took
        return look(connection)

    monkeypatch.setattr(workers, "fleet", slow)
    seen = known.current()
    assert known.seconds_good() == pytest.approx(good_for)
    boot.seconds += good_for - 0.001
    assert known.current() is seen
    boot.seconds += 0.002
    assert known.seconds_good() == 0
    assert known.current() is not seen


def test_what_was_given_counts_until_it_is_read_again(sqlite_rows: Scenario, boot: Boot) -> None:
    rows, known = sqlite_rows, Worlds(sqlite_rows.database)
    worker = rows.worker(capacity=2, prefetch=1)
    needs = needs_of(rows.nodes, {})
    assert [known.current().fleet.choose(needs) for _ in range(4)] == [worker, worker, worker, None]
    for _ in range(2):
        rows.assigned(worker)
    boot.seconds += WORLD_SECONDS + 0.001
    assert [known.current().fleet.choose(needs) for _ in range(2)] == [worker, None]
