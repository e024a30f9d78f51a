"""Run now: an instance that a program asks for in an idle system, from the call to the handler.

1 scheduler and 1 worker with their default settings, and the same with wake-ups.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.evidence import Start, check, curve, lateness
from benchmarks.lab import Lab
from benchmarks.load import asked
from benchmarks.rota_app import key_of
from benchmarks.system import fresh_system
from rota import Client
from tests.harness.processes import wait_until

DEADLINE = 30.0
WAKE_UPS = {"ROTA_WAKE_ADDRESS": ":0"}

NOTE = (
    "1 scheduler, 1 worker; client.tasks.run of another process, each 0.3 to 1.3 s after the last one ran, spread"
    " evenly; of so few p99 is the largest. The first, for which nothing is compiled yet, is told apart."
)


def cases(scale: Scale) -> list[Case]:
    """By pull alone, and with wake-ups."""
    pulled, woken = partial(run_now, count=scale.asked), partial(run_now, count=scale.asked, settings=WAKE_UPS)
    return [
        Case("run_now", "rota", "", scale.rounds, pulled, f"By pull alone. {NOTE}"),
        Case("run_now", "rota", "wake-ups", scale.rounds, woken, f"ROTA_WAKE_ADDRESS=:0. {NOTE}"),
    ]


def run_now(lab: Lab, count: int, settings: Mapping[str, str] | None = None) -> Outcome:
    """So many instances, one after the other, and one before them that is told apart."""
    moments: dict[str, float] = {}
    with fresh_system(lab) as rota:
        rota.add_tasks(1)
        rota.start(workers=1, settings=settings)
        with Client(rota.url) as client:
            for number, (_, moment) in enumerate(asked(count + 1), start=1):
                run = client.tasks.run("t0")
                moments[key_of("t0", datetime.fromisoformat(run["schedule_datetime"]).timestamp())] = moment
                wait_until(lambda: rota.records.count() >= number, DEADLINE, f"instance {number}")  # noqa: B023
        rota.wait_drained(count + 1, DEADLINE)
        starts = [Start(start.key, moments.get(start.key, 0.0), start.entered) for start in rota.records.starts()]
    check(starts, moments)
    first, *rest = starts
    return Outcome({**lateness(rest), "first ms": first.late * 1000}, curve(rest))
