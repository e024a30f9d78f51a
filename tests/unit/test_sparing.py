"""Listeners leave most of a process's connections to its runs."""

import threading
from typing import Any, cast

from rota.shared.database.transactions import Database
from rota.shared.telling.sparing import MOST_CONNECTIONS, Sparing
from tests.harness.processes import wait_until


class Counting:
    """A database that counts whose work is under way."""

    clock = None

    def __init__(self) -> None:
        self.at_work = 0

    def read(self, work: Any) -> Any:
        self.at_work += 1
        try:
            return work(None)
        finally:
            self.at_work -= 1


def test_no_more_than_a_few_are_at_work_at_once_and_all_get_their_turn() -> None:
    database, gate, done = Counting(), threading.Semaphore(0), list[int]()
    sparing = Sparing(cast("Database", database))

    def work(number: int) -> None:
        sparing.read(lambda _: gate.acquire(timeout=10))
        done.append(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(2 * MOST_CONNECTIONS)]
    for thread in threads:
        thread.start()
    wait_until(lambda: database.at_work == MOST_CONNECTIONS, 5, "as many as may be at work")
    for ended in range(1, len(threads) + 1):
        gate.release()
        wait_until(lambda ended=ended: len(done) == ended, 5, "one more to end")  # type: ignore[misc]
        assert database.at_work <= MOST_CONNECTIONS
    for thread in threads:
        thread.join()
