"""Tuning: one setting at a time is not Rota's default, or not the benchmark's for MariaDB, and what that changes.

A drain and a herd for each; for what decides how soon Rota looks at the database, runs by hand in an idle system, too.
Each setting of MariaDB has a server of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.lab import Lab
from benchmarks.servers import MARIADB_OPTIONS
from benchmarks.workloads.drain import drain
from benchmarks.workloads.herd import herd
from benchmarks.workloads.run_now import run_now
from tests.harness.databases import PrivateMariaDB

ROUNDS = 3
"""It is a guide; ``--only tuning --rounds 5`` for more."""

OWN_SERVER = ("--innodb-flush-log-at-trx-commit=1",)
"""The benchmark's own setting once more, on a server of its own: what the other settings of MariaDB compare with."""

HERD = 1_000
HERD_FIGURES = ("p50", "p99", "max")


@dataclass(frozen=True, slots=True)
class Factor:
    """A setting that is not the default: of Rota's processes, or options of MariaDB."""

    settings: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    by_hand: bool = False
    """Whether it may decide how soon a run by hand starts."""

    def __str__(self) -> str:
        told = [f"{name}={value}" for name, value in self.settings.items()]
        return " ".join((*told, *(option.removeprefix("--") for option in self.options))) or "default"


def _of_rota(name: str, *values: str) -> list[Factor]:
    return [Factor({name: value}) for value in values]


FACTORS = (
    Factor(by_hand=True),
    *_of_rota("ROTA_CAPACITY", "10", "500"),
    *_of_rota("ROTA_BATCH", "100", "5000"),
    *_of_rota("ROTA_PREFETCH", "100", "1000"),
    *_of_rota("ROTA_LOOKAHEAD_SECONDS", "2", "15"),
    Factor({"ROTA_TICK_SECONDS": "0.25", "ROTA_POLL_SECONDS": "0.25"}, by_hand=True),
    Factor({"ROTA_TICK_SECONDS": "3", "ROTA_LOOKAHEAD_SECONDS": "15"}, by_hand=True),
    Factor({"ROTA_POLL_SECONDS": "3", "ROTA_LOOKAHEAD_SECONDS": "15"}, by_hand=True),
    Factor({"ROTA_WAKE_ADDRESS": ":0"}, by_hand=True),
    Factor(options=OWN_SERVER),
    *(Factor(options=(f"--innodb-flush-log-at-trx-commit={value}",)) for value in (2, 0)),
    Factor(options=("--innodb-buffer-pool-size=128M",)),
    Factor(options=("--innodb-log-file-size=96M",)),
    Factor(options=("--thread-handling=pool-of-threads",)),
    *(Factor(options=("--log-bin=bin", f"--sync-binlog={value}")) for value in (0, 1)),
)


def cases(scale: Scale) -> list[Case]:
    """A case for each; none in a quick benchmark."""
    if scale.rounds == 1:
        return []
    return [
        Case("tuning", "rota", str(factor), ROUNDS, partial(tuning, factor=factor, scale=scale), _note(scale))
        for factor in FACTORS
    ]


def _note(scale: Scale) -> str:
    return (
        f"A drain of {scale.drain // 5:,} and a herd of {HERD:,}, 1 scheduler and 2 workers; by hand: as in the section"
        " on it, in ms. A setting of MariaDB has a server that was just started, so compare it with"
        f" {OWN_SERVER[0].removeprefix('--')}."
    )


def tuning(lab: Lab, factor: Factor, scale: Scale) -> Outcome:
    """One factor's figures."""
    if factor.options:
        with Tuned(factor.options) as own:
            return _measured(own, factor, scale)
    return _measured(lab, factor, scale)


def _measured(lab: Lab, factor: Factor, scale: Scale) -> Outcome:
    drained = drain(lab, scale.drain // 5, settings=factor.settings).figures
    late = herd(lab, HERD, settings=factor.settings).figures
    figures = {
        "drain instances/s": drained["instances/s"],
        "statements per instance": drained["statements per instance"],
        **{f"herd {name} ms": late[name] for name in HERD_FIGURES},
    }
    if factor.by_hand:
        asked = run_now(lab, scale.asked, settings=factor.settings).figures
        figures |= {f"by hand {name} ms": asked[name] for name in ("p50", "p99")}
    return Outcome(figures)


class Tuned(Lab):
    """A lab whose MariaDB has other options.

    with Tuned(("--sync-binlog=1",)) as lab: ...
    """

    def __init__(self, options: tuple[str, ...]) -> None:
        super().__init__(Path())  # the peers' environments are not asked for
        self._options = options

    @cached_property
    def mariadb(self) -> PrivateMariaDB:
        """A MariaDB of its own."""
        return self._stack.enter_context(PrivateMariaDB(*MARIADB_OPTIONS, *self._options))
