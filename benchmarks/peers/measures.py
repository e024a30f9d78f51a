"""The workloads as peers do them. What Rota must not do, to miss a fire, run it twice or start it early, is a figure
here: that a peer does it is a finding."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.cpu import Meter
from benchmarks.evidence import Start, WrongRun, curve, faults, lateness, middle_rate
from benchmarks.lab import Lab
from benchmarks.load import Load
from benchmarks.peers.running import Peer, Run, due_soon, running
from benchmarks.peers.stores import at_a_distance

FAR = datetime(2099, 1, 1, tzinfo=UTC).timestamp()
"""When schedules are due that are not to fire during a run."""

DRAIN_SECONDS = 120.0
HERD_SECONDS = 30.0
STEADY_SECONDS = 10
STEADY_EXTRA_SECONDS = 15.0
SETTLE_SECONDS = 15.0
"""Until then some of them still read what is registered."""

IDLE_SECONDS = 10.0

ASKED_SECONDS = 120.0

HERDS = (10_000,)
RATES = (200,)
REGISTERED = (10_000,)
DISTANCES = (100,)
DISTANT_RATE = 500
DISTANT_FILL_SECONDS = 6.0
"""What to allow for 1,000 schedules or jobs that are stored at a distance."""


def drains(scale: Scale, subject: str, peer: Peer, count: int, note: str) -> list[Case]:
    """Its drain, of as many jobs as it does in some seconds."""
    note = f"{count:,} jobs, stored before the processes start; the rate of the middle eight tenths of starts. {note}"
    return [Case("drain", subject, "", scale.peer_rounds, partial(drain, peer=peer, count=count), note)]


def herds(scale: Scale, subject: str, peer: Peer, note: str, counts: Iterable[int] = HERDS) -> list[Case]:
    """Its herds."""
    note = f"Waited for {HERD_SECONDS:.0f} s at most; what had not started is missing, in the percentiles too. {note}"
    return [
        Case("herd", subject, f"{count:,}", scale.peer_rounds, partial(herd, peer=peer, count=count), note)
        for count in counts
        if count in scale.herds
    ]


def steadies(scale: Scale, subject: str, peer: Peer, note: str, rates: Iterable[int] = RATES) -> list[Case]:
    """Its steady loads."""
    note = (
        f"{STEADY_SECONDS} s of load, a schedule or job for each fire, and {STEADY_EXTRA_SECONDS:.0f} s more at most;"
        f" what had not started is missing, in the percentiles too. {note}"
    )
    return [
        Case("steady", subject, f"{rate:,}/s", scale.peer_rounds, partial(steady, peer=peer, rate=rate), note)
        for rate in rates
        if rate in scale.rates
    ]


def distances(scale: Scale, subject: str, peer: Peer, note: str, counts: Iterable[int] = DISTANCES) -> list[Case]:
    """Its steady loads with its store so far away, in milliseconds of a round trip."""
    note = f"{DISTANT_RATE}/s for {STEADY_SECONDS} s; a proxy delays each packet by half the round trip. {note}"
    slow = replace(peer, fill_seconds_per_1_000=DISTANT_FILL_SECONDS)
    return [
        Case(
            "distance",
            subject,
            f"{count} ms, spread",
            scale.peer_rounds,
            partial(steady, peer=replace(slow, store=at_a_distance(peer.store, count / 1000)), rate=DISTANT_RATE),
            note,
        )
        for count in counts
        if count in scale.distances
    ]


def pipelines(scale: Scale, subject: str, peer: Peer, count: int, note: str) -> list[Case]:
    """Its drain of chains of five jobs, of which each passes on 1 KB; the last one of each is counted."""
    note = f"{count:,} chains of five jobs, stored before the processes start. {note}"
    run = partial(drain, peer=peer, count=count, workload="pipeline")
    return [Case("pipeline", subject, "chain, 1 KB", scale.peer_rounds, run, note)]


def processes(scale: Scale, subject: str, peer: Peer, count: int, note: str) -> list[Case]:
    """Its drain of jobs that run in processes of its own."""

    def run(lab: Lab) -> Outcome:
        figures = drain(lab, peer, count).figures
        return Outcome({"nodes/s": figures.pop("instances/s")} | figures)

    return [Case("processes", subject, "reused", scale.peer_rounds, run, f"{count:,} jobs. {note}")]


def registries(scale: Scale, subject: str, peer: Peer, note: str, counts: Iterable[int] = REGISTERED) -> list[Case]:
    """Its idle hours."""
    note = f"Memory is that of all its processes; what they share counts once (PSS). {note}"
    return [
        Case("registry", subject, f"{count:,}", scale.peer_rounds, partial(registry, peer=peer, count=count), note)
        for count in counts
        if count in scale.registered
    ]


def runs_now(scale: Scale, subject: str, peer: Peer, ask: Sequence[str], note: str) -> list[Case]:
    """Its jobs that a program asks for one by one, with the arguments ``ask``."""
    run = partial(run_now, peer=peer, count=scale.asked, ask=ask)
    return [Case("run_now", subject, "", scale.peer_rounds, run, note)]


def run_now(lab: Lab, peer: Peer, count: int, ask: Sequence[str]) -> Outcome:
    """One job after the other in an idle system, each when it is asked for."""
    with running(lab, peer, lambda: Load("run_now", count)) as run:
        run.fill()
        run.start()
        run.ask(ask)
        run.wait(time.time() + ASKED_SECONDS)
        first, *rest = run.records.starts()
        return Outcome(
            {**lateness(rest), "first ms": first.late * 1000, **_wrong([first, *rest], run.load)}, curve(rest)
        )


def drain(lab: Lab, peer: Peer, count: int, workload: str = "drain") -> Outcome:
    """All jobs there before the workers; the cost is of what is left once the first has started."""
    with running(lab, peer, lambda: Load(workload, count)) as run:
        run.fill()
        run.spawn()
        deadline = time.time() + DRAIN_SECONDS
        run.wait_first(deadline)
        own, database = run.costs()
        metered = count - run.records.count()
        run.wait(deadline)
        starts = run.records.starts()
        return Outcome(
            {
                "instances/s": middle_rate(starts),
                "seconds": starts[-1].entered - starts[0].entered,
                "peer CPU s per 1,000": own.seconds() / metered * 1_000,
                "database CPU s per 1,000": database.seconds() / metered * 1_000,
                **_wrong(starts, run.load),
            }
        )


def herd(lab: Lab, peer: Peer, count: int) -> Outcome:
    """All due at one moment."""
    with _ready(lab, peer, Load("herd", count)) as run:
        run.wait(run.load.due + HERD_SECONDS)
        starts = run.records.starts()
        wrong = _wrong(starts, run.load)
        if not starts:
            return Outcome(wrong)
        took = starts[-1].entered - run.load.due
        return Outcome({**lateness(starts), "started within s": took, **wrong}, curve(starts))


def steady(lab: Lab, peer: Peer, rate: int) -> Outcome:
    """Due one after the other; the cost is of the time in which they fall due."""
    with _ready(lab, peer, Load("steady", rate * STEADY_SECONDS, step=1 / rate)) as run:
        _sleep_until(run.load.due)
        own, database = run.costs()
        _sleep_until(run.load.last_due)
        costs = _percent(own, database, STEADY_SECONDS)
        run.wait(run.load.last_due + STEADY_EXTRA_SECONDS)
        starts = run.records.starts()
        return Outcome({**lateness(starts), **costs, **_wrong(starts, run.load)}, curve(starts))


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


@contextmanager
def _ready(lab: Lab, peer: Peer, load: Load) -> Iterator[Run]:
    """The peer at work before the first of a load is due, which is put off until it can be."""
    with running(lab, peer, lambda: replace(load, due=due_soon(peer, load.count))) as run:
        run.fill()
        run.start()
        if time.time() > run.load.due:
            raise WrongRun(f"it was ready only {time.time() - run.load.due:.1f} s after the first was due")
        yield run


def _percent(own: Meter, database: Meter, seconds: float) -> dict[str, float]:
    return {
        "peer CPU % of a core": own.seconds() / seconds * 100,
        "database CPU % of a core": database.seconds() / seconds * 100,
    }


def _wrong(starts: list[Start], load: Load) -> dict[str, float]:
    found = faults(starts, {key for key, _ in load.entries()})
    return {name: found[name] for name in ("missing", "double", "early") if load.due or name != "early"}


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))
