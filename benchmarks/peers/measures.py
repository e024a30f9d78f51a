"""The workloads as peers do them. What Rota must not do, to miss a fire, run it twice or start it early, is a figure
here: that a peer does it is a finding."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.evidence import Start, WrongRun, curve, faults, lateness
from benchmarks.lab import Lab
from benchmarks.load import Load
from benchmarks.peers.running import Peer, due_soon, running

FAR = datetime(2099, 1, 1, tzinfo=UTC).timestamp()
"""When schedules are due that are not to fire during a run."""

DRAIN_SECONDS = 120.0
HERD_SECONDS = 60.0
STEADY_SECONDS = 20
STEADY_EXTRA_SECONDS = 30.0
SETTLE_SECONDS = 2.0
IDLE_SECONDS = 10.0

HERDS = (1_000, 10_000)
RATES = (50, 200)
REGISTERED = (1_000, 10_000)


def drains(scale: Scale, subject: str, peer: Peer, count: int, note: str) -> list[Case]:
    """Its drain, of as many jobs as it does in some seconds."""
    note = f"{count:,} jobs, stored before the processes start; from the first handler's start to the last. {note}"
    return [Case("drain", subject, "", scale.peer_rounds, partial(drain, peer=peer, count=count), note)]


def herds(scale: Scale, subject: str, peer: Peer, note: str, counts: Iterable[int] = HERDS) -> list[Case]:
    """Its herds."""
    note = f"Waited for {HERD_SECONDS:.0f} s at most; what had not started then is missing. {note}"
    return [
        Case("herd", subject, f"{count:,}", scale.peer_rounds, partial(herd, peer=peer, count=count), note)
        for count in counts
        if count in scale.herds
    ]


def steadies(scale: Scale, subject: str, peer: Peer, note: str, rates: Iterable[int] = RATES) -> list[Case]:
    """Its steady loads."""
    note = (
        f"{STEADY_SECONDS} s of load, and {STEADY_EXTRA_SECONDS:.0f} s more at most;"
        f" what had not started then is missing. {note}"
    )
    return [
        Case("steady", subject, f"{rate:,}/s", scale.peer_rounds, partial(steady, peer=peer, rate=rate), note)
        for rate in rates
        if rate in scale.rates
    ]


def registries(scale: Scale, subject: str, peer: Peer, note: str, counts: Iterable[int] = REGISTERED) -> list[Case]:
    """Its idle hours."""
    return [
        Case("registry", subject, f"{count:,}", scale.peer_rounds, partial(registry, peer=peer, count=count), note)
        for count in counts
        if count in scale.registered
    ]


def drain(lab: Lab, peer: Peer, count: int) -> Outcome:
    """All jobs there before the workers; the cost is of what is left once the first has started."""
    with running(lab, peer, lambda: Load("drain", count)) as run:
        run.fill()
        run.spawn()
        deadline = time.time() + DRAIN_SECONDS
        run.wait_first(deadline)
        own, database = run.costs()
        metered = count - run.records.count()
        run.wait(deadline)
        starts = run.records.starts()
        seconds = starts[-1].entered - starts[0].entered
        return Outcome(
            {
                "instances/s": len(starts) / seconds,
                "seconds": seconds,
                "peer CPU s per 1,000": own.seconds() / metered * 1_000,
                "database CPU s per 1,000": database.seconds() / metered * 1_000,
                **_wrong(starts, count),
            }
        )


def herd(lab: Lab, peer: Peer, count: int) -> Outcome:
    """All due at one moment."""
    due, starts = _timed(lab, peer, count, step=0.0, extra=HERD_SECONDS)
    figures = {**lateness(starts), "done after s": starts[-1].entered - due, **_wrong(starts, count)}
    return Outcome(figures, curve(starts))


def steady(lab: Lab, peer: Peer, rate: int) -> Outcome:
    """Due one after the other."""
    count = rate * STEADY_SECONDS
    _, starts = _timed(lab, peer, count, step=1 / rate, extra=STEADY_EXTRA_SECONDS)
    return Outcome({**lateness(starts), **_wrong(starts, count)}, curve(starts))


def registry(lab: Lab, peer: Peer, count: int) -> Outcome:
    """Registered, and none of them due."""
    with running(lab, peer, lambda: Load("registry", count, FAR)) as run:
        run.fill()
        began = time.monotonic()
        run.start()
        took = time.monotonic() - began
        time.sleep(SETTLE_SECONDS)
        own, database = run.costs()
        time.sleep(IDLE_SECONDS)
        return Outcome(
            {
                "start-up s": took,
                "idle CPU % of a core": own.seconds() / IDLE_SECONDS * 100,
                "database idle CPU % of a core": database.seconds() / IDLE_SECONDS * 100,
                "memory MB": run.megabytes(),
            }
        )


def _timed(lab: Lab, peer: Peer, count: int, *, step: float, extra: float) -> tuple[float, list[Start]]:
    workload = "steady" if step else "herd"
    with running(lab, peer, lambda: Load(workload, count, due_soon(peer, count), step)) as run:
        run.fill()
        run.start()
        if time.time() > run.load.due:
            raise WrongRun(f"it was ready only {time.time() - run.load.due:.1f} s after the first was due")
        run.wait(run.load.last_due + extra)
        return run.load.due, run.records.starts()


def _wrong(starts: list[Start], count: int) -> dict[str, float]:
    found = faults(starts, {f"t{number}" for number in range(count)})
    return {name: found[name] for name in ("missing", "double", "early")}
