"""What a worker keeps in mind while instances come and go, and no slot is free for any of them."""

from tests.harness.puller import Puller
from tests.harness.scenario import Scenario

LIMIT = 10


def test_what_was_taken_back_and_came_again_takes_no_more_room_each_time(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    there = [rows.assigned(worker) for _ in range(5)]
    puller = Puller(rows.database, worker, limit=LIMIT)
    puller.fetcher.fetch()
    for _ in range(20):
        for owner in (other, worker):
            rows.sql("UPDATE schedule_instance SET schedule_worker_node_id = :w", w=owner)
            puller.fetcher.fetch()
    assert set(puller.backlog._waiting) == set(there)
    assert len(puller.backlog._queue) <= 3 * LIMIT
