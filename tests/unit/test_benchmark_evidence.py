"""What decides whether a benchmark's run was right, and whether it has to run again."""

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import workloads
from benchmarks.__main__ import main
from benchmarks.cases import FULL, QUICK, Case, Outcome
from benchmarks.cpu import Meter
from benchmarks.evidence import Records, Start, WrongRun, check, faults, quantile
from benchmarks.record import ROOM
from benchmarks.samples import Sample, Samples


def starts(*entries: tuple[str, float]) -> list[Start]:
    """Starts of what was due at 100, each so much later."""
    return [Start(key, 100.0, 100.0 + late) for key, late in entries]


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        ([("a", 0.0), ("b", 0.5)], {}),
        ([("a", 0.0)], {"missing": 1}),
        ([("a", 0.0), ("b", 0.0), ("b", 1.0)], {"double": 1}),
        ([("a", 0.0), ("b", 0.0), ("c", 0.0)], {"unexpected": 1}),
        ([("a", -0.001), ("b", 0.0)], {"early": 1}),
    ],
    ids=["right", "missing", "double", "unexpected", "early"],
)
def test_each_fire_starts_once_and_not_before_it_is_due(seen: list[tuple[str, float]], wrong: dict[str, int]) -> None:
    none = dict.fromkeys(("missing", "double", "unexpected", "early"), 0)
    assert faults(starts(*seen), {"a", "b"}) == none | wrong
    if not wrong:
        check(starts(*seen), {"a", "b"})
        return
    with pytest.raises(WrongRun, match=f"of 2: 1 {next(iter(wrong))}"):
        check(starts(*seen), {"a", "b"})


def test_what_is_due_at_no_time_is_never_early() -> None:
    assert faults([Start("a", 0.0, 5.0)], {"a"})["early"] == 0


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.5, 50.0), (0.505, 51.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0)]
)
def test_a_quantile_is_the_nearest_rank(share: float, value: float) -> None:
    assert quantile([float(number) for number in range(1, 101)], share) == value


def test_records_are_read_up_to_the_last_whole_line_of_a_killed_process(tmp_path: Path) -> None:
    records = Records(tmp_path / "records")
    written = records.folder / "17"
    with written.open("wb") as file:
        file.write(b"a 100.0 100.5\n")
        file.truncate(ROOM)
    assert records.count() == 1
    with written.open("r+b") as file:
        file.write(b"a 100.0 100.5\nb with spaces 0.0 99.0\nc 100.0 10")
    assert records.count() == 2
    assert records.starts() == [Start("b with spaces", 0.0, 99.0), Start("a", 100.0, 100.5)]


def ran(name: str, rounds: int = 1) -> Case:
    return Case("drain", name, "", rounds, lambda lab: Outcome({}))


def test_a_round_that_ran_well_does_not_run_again_and_a_failed_one_does(tmp_path: Path) -> None:
    samples = Samples(tmp_path / "results.jsonl")
    samples.add(Sample("drain", "rota", "", 0, {"instances/s": 1.0}))
    samples.add(Sample("drain", "rota", "", 1, {}, error="WrongRun: 1 missing"))
    again = Samples(tmp_path / "results.jsonl")
    assert [again.has(ran("rota"), number) for number in range(3)] == [True, False, False]
    assert not again.has(ran("Celery"), 0)


@pytest.mark.parametrize("unknown", ["drian", "drain:rot", "fleet:rota:3 workers"])
def test_a_choice_that_chooses_nothing_is_refused_by_name(unknown: str) -> None:
    result = CliRunner().invoke(main, ["run", "--only", "drain", "--only", unknown])
    assert (result.exit_code, f"no {unknown}\n" in result.stderr) == (2, True)


def test_peers_come_right_after_rota_in_each_workload_of_a_round() -> None:
    seen = [case.workload for case in workloads.cases(FULL)]
    assert [name for at, name in enumerate(seen) if at == 0 or seen[at - 1] != name] == list(dict.fromkeys(seen))
    assert {case.subject for case in workloads.cases(FULL) if case.workload == "drain"} >= {"rota", "Celery"}
    assert {case.subject for case in workloads.cases(QUICK)} == {"rota", "database"}


def test_all_that_is_rotas_runs_five_times_but_tuning_and_peers_three() -> None:
    cases = workloads.cases(FULL)
    own = [case for case in cases if case.subject.startswith(("rota", "database")) and case.workload != "tuning"]
    assert {case.rounds for case in own} == {5}
    assert {case.rounds for case in cases if case not in own} == {3}


def test_cpu_time_is_read_finer_than_the_kernel_tells_it_in_proc() -> None:
    meter = Meter([os.getpid()])
    until = time.process_time() + 0.002
    while time.process_time() < until:
        pass
    assert 0.002 <= meter.seconds() < 1
