"""What a peer's programs are to do, told by their environment. No imports beyond the standard library: they run in the
peer's own environment.

In ``drain`` the jobs are due at once and carry no due time; in ``registry`` nothing falls due during the run; in
``run_now`` nothing is stored before: a program asks for one job after the other, and each is due when it is asked for.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

STORE = "BENCH_STORE"
"""The environment variable with the URL of the peer's database."""

READY = "bench: ready"
"""What a process prints when it is at work."""


@dataclass(frozen=True, slots=True)
class Load:
    """So many jobs or schedules named t0, t1 …; the first is due at ``due`` (seconds since the epoch), each next one
    ``step`` seconds later.

    environment = Load("steady", 1_000, due=1795219200.0, step=0.02).environment()
    load = Load.given()
    """

    workload: str
    count: int
    due: float = 0.0
    step: float = 0.0

    @classmethod
    def given(cls) -> "Load":
        """The one that the environment tells."""
        workload, count, due, step = os.environ["BENCH_LOAD"].split()
        return cls(workload, int(count), float(due), float(step))

    def environment(self) -> dict[str, str]:
        """What tells it to a program."""
        return {"BENCH_LOAD": f"{self.workload} {self.count} {self.due!r} {self.step!r}"}

    @property
    def last_due(self) -> float:
        """When the last is due."""
        return self.due + (self.count - 1) * self.step

    def entries(self) -> Iterator[tuple[str, float]]:
        """Names and due times, in order."""
        return ((f"t{number}", self.due + number * self.step) for number in range(self.count))


PAUSE_SECONDS = 0.3
PERIOD_SECONDS = 1.0
GOLDEN = 0.618_034


def asked(count: int) -> Iterator[tuple[str, float]]:
    """Names of jobs to be asked for, each with the moment of the question, after a pause.

    The pauses are spread evenly over a second, so that they meet all moments between two polls alike.
    """
    for number in range(count):
        time.sleep(PAUSE_SECONDS + number * GOLDEN % PERIOD_SECONDS)
        yield f"t{number}", time.time()


def moment(due: float) -> datetime:
    """A due time as a datetime in UTC; 0: now."""
    return datetime.fromtimestamp(due, UTC) if due else datetime.now(UTC)


def ready() -> None:
    """Tell that this process is at work."""
    print(READY, flush=True)
