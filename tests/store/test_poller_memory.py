"""What a poller keeps in mind while instances come and go, and no slot is free for any of them."""

import pytest

from tests.store.scenario import Scenario
from tests.store.test_poller import Puller
from worker_service import poller as pollers

LIMIT = 10


def test_what_was_taken_back_and_came_again_takes_no_more_room_each_time(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pollers, "QUEUE_LIMIT", LIMIT)
    worker, other = rows.worker(), rows.worker()
    there = [rows.assigned(worker) for _ in range(5)]
    puller = Puller(rows, worker)
    puller.poller.poll()
    for _ in range(20):
        for owner in (other, worker):
            rows.sql("UPDATE schedule_instance SET schedule_worker_node_id = :w", w=owner)
            puller.poller.poll()
    assert set(puller.poller._waiting) == set(there)
    assert len(puller.poller._claims) <= 3 * LIMIT
