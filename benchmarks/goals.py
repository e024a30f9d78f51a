"""The goals, and what of them was met: computed from the samples, round by round."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from benchmarks.samples import Sample, Samples, spread
from benchmarks.tables import CEILING, CEILING_KEY, ROTA, Key, ratios, rounds, shown, was_repeated

NOT_MEASURED = "not measured"

LATE_MS = 20.0
"""What a fire may be late on a busy machine and still count as not late: the goal for p99 at 1,000/s."""

Values = Callable[[Samples], Iterable[float]]


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted, how to find it round by round, its limits, and the variants that must not fail (none: all)."""

    workload: str
    text: str
    values: Values
    variants: tuple[str, ...] = ()
    at_least: float = -inf
    at_most: float = inf
    unit: str = ""

    def concerns(self, sample: Sample) -> bool:
        """Whether a sample's failure is one of this goal's."""
        return sample.key[:2] == (self.workload, ROTA) and (not self.variants or sample.variant in self.variants)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal, what was measured, and whether it was met."""

    workload: str
    goal: str
    measured: str
    met: str


def verdicts(samples: Samples) -> list[Verdict]:
    """All goals, in the order of the report."""
    return [_verdict(goal, samples) for goal in GOALS]


def _verdict(goal: Goal, samples: Samples) -> Verdict:
    values = list(goal.values(samples))
    found, failed = spread(values), sum(goal.concerns(sample) and _counts(samples, sample) for sample in samples.all)
    runs = f"{failed} failed run{'s' * (failed != 1)}" if failed else ""
    if found is None:
        return Verdict(goal.workload, goal.text, runs or NOT_MEASURED, "no" if failed else NOT_MEASURED)
    good = sum(goal.at_least <= value <= goal.at_most for value in values)
    met = "yes" if goal.at_least <= found.median <= goal.at_most and not failed else "no"
    if good not in (0, len(values)):
        met += f" (in {good} of {len(values)} runs)"
    measured = f"{shown(found)}{goal.unit and f' {goal.unit}'}, n={found.count}"
    return Verdict(goal.workload, goal.text, f"{measured}, {runs}" if runs else measured, met)


def _counts(samples: Samples, sample: Sample) -> bool:
    """Whether the failure counts: a wrong run always does, any other until the same round went well."""
    return sample.error is not None and (sample.error.startswith("WrongRun") or not was_repeated(samples, sample))


def _rota(workload: str, variant: str = "") -> Key:
    return (workload, ROTA, variant)


def _figure(key: Key, name: str, scale: float = 1.0) -> Values:
    return lambda samples: [value * scale for value in rounds(samples, key, name).values()]


def _ratio(key: Key, to: Key, name: str) -> Values:
    return lambda samples: ratios(samples, key, to, name)


def _against(peer: str, text: str, at_least: float) -> Goal:
    values = _ratio(_rota("drain"), ("drain", peer, ""), "instances/s")
    return Goal("drain", text, values, at_least=at_least, unit="times")


def _registry(text: str, values: Values, at_most: float, unit: str) -> Goal:
    return Goal("registry", text, values, ("1,000", "1,000,000"), at_most=at_most, unit=unit)


def _steady(rate: str, percentile: str, at_most: float) -> Goal:
    values = _figure(_rota("steady", rate), percentile)
    return Goal("steady", f"{rate}: {percentile} under {at_most:g} ms", values, (rate,), at_most=at_most, unit="ms")


def _at_most(case: tuple[str, str], text: str, figure: str, limit: float, unit: str) -> Goal:
    """A limit for a figure of a case, (workload, variant)."""
    workload, variant = case
    return Goal(workload, text, _figure(_rota(workload, variant), figure), (variant,), at_most=limit, unit=unit)


def _of_fleet(samples: Samples, figure: str) -> dict[Key, float]:
    """The medians of a figure, by case."""
    keys = dict.fromkeys(sample.key for sample in samples.all if sample.key[:2] == ("fleet", ROTA))
    return {key: found.median for key in keys if (found := samples.spread(key, figure)) is not None}


def _fleet_of_16(samples: Samples) -> Iterable[float]:
    """16 workers to the number of workers whose median is best."""
    medians = {key: value for key, value in _of_fleet(samples, "instances/s").items() if "worker" in key[2]}
    best = max(medians, key=lambda key: medians[key], default=None)
    return [] if best is None else ratios(samples, _rota("fleet", "16 workers"), best, "instances/s")


def _fleet_deadlocks(samples: Samples) -> Iterable[float]:
    """Of all fleets of a round together."""
    counted: dict[int, float] = {}
    for key in _of_fleet(samples, "deadlocks"):
        for number, value in rounds(samples, key, "deadlocks").items():
            counted[number] = counted.get(number, 0) + value
    return counted.values()


def _fleet_idle(samples: Samples) -> Iterable[float]:
    """Of the fleet that asks most."""
    name = "statements/s per idle worker"
    medians = _of_fleet(samples, name)
    most = max(medians, key=lambda key: medians[key], default=None)
    return [] if most is None else rounds(samples, most, name).values()


GOALS = (
    Goal(
        "drain",
        "at least 0.5 of the ceiling (aim: 0.7)",
        _ratio(_rota("drain"), CEILING_KEY, "instances/s"),
        at_least=0.5,
    ),
    _against("Celery", "at least 6 times Celery", 6),
    _against("APScheduler 3", "at least 6 times APScheduler 3 on MariaDB", 6),
    _against("Procrastinate", "at least 6 times Procrastinate", 6),
    _against("graphile-worker", "ahead of graphile-worker unbatched", 1),
    Goal(
        "herd",
        "10,000: all started within 1.5 s (aim: 1.0 s), none missed or doubled, default settings",
        _figure(_rota("herd", "10,000"), "max", scale=0.001),
        ("10,000",),
        at_most=1.5,
        unit="s",
    ),
    *(
        Goal(
            "backlog",
            f"{variant}: at least 500 runs/s",
            _figure(_rota("backlog", variant), "runs/s"),
            (variant,),
            at_least=500,
        )
        for variant in ("1 worker", "2 workers")
    ),
    *(
        Goal(
            "different",
            f"herd of 10,000: {what} within twice what equal tasks of one node take",
            _ratio(_rota("different", "herd of 10,000"), _rota("herd", "10,000"), figure),
            ("herd of 10,000",),
            at_most=2,
            unit="times",
        )
        for what, figure in (("started", "started within s"), ("done", "done after s"))
    ),
    _steady("200/s", "p50", 1),
    _steady("200/s", "p99", 5),
    _steady("1,000/s", "p99", 20),
    *(
        Goal(
            "distance",
            f"500/s at a round trip of {milliseconds} ms, {shape}: p99 under {late} ms",
            _figure(_rota("distance", f"{milliseconds} ms, {shape}"), "p99"),
            (f"{milliseconds} ms, {shape}",),
            at_most=late,
            unit="ms",
        )
        for milliseconds, late in ((100, 100), (200, 500))
        for shape in ("spread", "on the second")
    ),
    _registry(
        "1 M tasks: a tick within 1.2 times its cost at 1 k",
        _ratio(_rota("registry", "1,000,000"), _rota("registry", "1,000"), "tick ms"),
        1.2,
        "times",
    ),
    _registry(
        "1 M tasks: idle CPU under 0.5 % of a core",
        _figure(_rota("registry", "1,000,000"), "idle CPU % of a core"),
        0.5,
        "%",
    ),
    _registry("1 M tasks: scheduler under 150 MB", _figure(_rota("registry", "1,000,000"), "memory MB"), 150, "MB"),
    Goal(
        "history",
        "10 M finished: drain at least 0.9 of that on an empty table",
        _ratio(_rota("history", "10,000,000"), _rota("history", "0"), "instances/s"),
        ("0", "10,000,000"),
        at_least=0.9,
    ),
    Goal("fleet", "16 workers at least 0.9 of the best number of workers", _fleet_of_16, at_least=0.9),
    Goal("fleet", "no deadlock reaches a user", _fleet_deadlocks, unit="met and retried in a round"),
    Goal("fleet", "at most 2 statements/s per idle worker", _fleet_idle, at_most=2),
    Goal(
        "pipeline",
        "async, 1 KB: at least 0.5 of its ceiling",
        _ratio(_rota("pipeline", "async, 1 KB"), ("pipeline", CEILING, "1 KB"), "instances/s"),
        ("async, 1 KB",),
        at_least=0.5,
    ),
    _at_most(
        ("edit", "300,000"), "300,000 edited by one statement: others late by less than 20 ms at p99", "p99", 20, "ms"
    ),
    *(
        Goal(
            "flood",
            f"{variant}: p99 of another group within twice what it is without",
            _ratio(_rota("flood", variant), _rota("flood", "alone"), "p99"),
            (variant,),
            at_most=2,
            unit="times",
        )
        for variant in ("beside 100,000 of nothing", "beside 100,000 of 0.2 s")
    ),
    Goal("run_now", "p50 0.6 s", _figure(_rota("run_now"), "p50"), at_most=600, unit="ms"),
    Goal("run_now", "p99 1.3 s", _figure(_rota("run_now"), "p99"), at_most=1_300, unit="ms"),
    Goal("run_now", "with wake-ups p50 20 ms", _figure(_rota("run_now", "wake-ups"), "p50"), at_most=20, unit="ms"),
    Goal("run_now", "with wake-ups p99 60 ms", _figure(_rota("run_now", "wake-ups"), "p99"), at_most=60, unit="ms"),
    _at_most(
        ("recovery", "worker killed"), "a killed worker's work runs elsewhere within 18 s", "work elsewhere s", 18, "s"
    ),
    _at_most(
        ("recovery", "scheduler killed"),
        f"with two schedulers, a killed one makes no fire late (by more than {LATE_MS:g} ms)",
        "next fires late ms",
        LATE_MS,
        "ms",
    ),
    Goal(
        "processes",
        "at least 500 nodes/s where processes are reused",
        _figure(_rota("processes", "reused"), "nodes/s"),
        ("reused",),
        at_least=500,
    ),
    _at_most(
        ("processes", "first"), "the first process node of a worker less than 50 ms late", "first max ms", 50, "ms"
    ),
)
