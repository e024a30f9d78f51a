"""The benchmark's report: goals computed from known samples, nothing hidden, nothing made up, the same bytes again."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import facts, plots, report
from benchmarks.facts import Facts
from benchmarks.goals import GOALS, Verdict, verdicts
from benchmarks.samples import Sample, Samples
from benchmarks.tables import Key, number, show, tables

CURVE = [float(step) for step in range(1, 402)]
ROUNDS = 3


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    """A run whose figures are easy to reckon with; one round of the recovery failed."""
    made = Samples(tmp_path / "results.jsonl")
    for at in range(ROUNDS):
        drift = 1 + at / 10  # the machine got faster: a ratio within a round does not see it
        add(made, at, ("ceiling", "database", ""), {"instances/s": 10_000 * drift})
        add(made, at, ("drain", "rota", ""), {"instances/s": 6_000 * drift, "deadlocks": 0})
        add(made, at, ("drain", "Celery", ""), {"instances/s": 500 * drift, "missing": 0}, note="Redis | beat")
        add(made, at, ("drain", "graphile-worker", ""), {"instances/s": 8_000 * drift})
        add(made, at, ("herd", "rota", "10,000"), {"p50": 200, "max": 1_400 + 60 * at}, curve=CURVE)
        add(made, at, ("herd", "Celery", "10,000"), {"p50": 9_000, "max": 60_000, "missing": 7_001}, curve=CURVE)
        add(made, at, ("steady", "rota", "200/s"), {"p50": 0.5, "p99": 6}, curve=CURVE)
        add(made, at, ("registry", "rota", "1,000"), {"tick ms": 4, "memory MB": 60, "idle CPU % of a core": 0.1})
        add(made, at, ("registry", "rota", "1,000,000"), {"tick ms": 6, "memory MB": 90, "idle CPU % of a core": 0.2})
        for count, speed in ((1, 4_000), (2, 6_000), (16, 5_700)):
            variant = f"{count} worker" + "s" * (count > 1)
            add(made, at, ("fleet", "rota", variant), {"instances/s": speed, "deadlocks": 1})
        add(made, at, ("pipeline", "database", "1 KB"), {"instances/s": 4_000 * drift})
        add(made, at, ("pipeline", "rota", "async, 1 KB"), {"instances/s": 1_800 * drift})
        add(made, at, ("pipeline", "rota", "async, 100 KB"), {"instances/s": 60})
        add(made, at, ("mystery", "rota", "odd"), {"quarks": 3})
    add(made, 0, ("recovery", "rota", "worker killed"), {"work elsewhere s": 15})
    add(made, 1, ("recovery", "rota", "worker killed"), error="WrongRun: of 320: 1 missing\n| [and] more")
    return made


def add(samples: Samples, at: int, key: Key, figures: dict[str, float] | None = None, **rest: Any) -> None:
    samples.add(Sample(*key, at, figures or {}, **rest))


def verdict(samples: Samples, goal: str) -> Verdict:
    (found,) = (one for one in verdicts(samples) if goal in one.goal)
    return found


@pytest.mark.parametrize(
    ("goal", "measured", "met"),
    [
        ("of the ceiling", "0.6, n=3", "yes"),
        ("of its ceiling", "0.45, n=3", "no"),
        ("times Celery", "12 times, n=3", "yes"),
        ("ahead of graphile-worker", "0.75 times, n=3", "no"),
        ("all started within", "1.46 [1.4–1.52] s, n=3", "yes (in 2 of 3 runs)"),  # noqa: RUF001
        ("200/s: p50", "0.5 ms, n=3", "yes"),
        ("200/s: p99", "6 ms, n=3", "no"),
        ("a tick within", "1.5 times, n=3", "no"),
        ("idle CPU", "0.2 %, n=3", "yes"),
        ("under 150 MB", "90 MB, n=3", "yes"),
        ("16 workers", "0.95, n=3", "yes"),
        ("no deadlock", "3 met and retried in a round, n=3", "yes"),
        ("a killed worker's work", "15 s, n=1, 1 failed run", "no"),
    ],
)
def test_a_goal_is_judged_by_the_samples(samples: Samples, goal: str, measured: str, met: str) -> None:
    found = verdict(samples, goal)
    assert (found.measured, found.met) == (measured, met)


@pytest.mark.parametrize("goal", ["Procrastinate", "1,000/s: p99", "10 M finished", "per idle worker", "p99 1.3 s"])
def test_a_goal_without_samples_is_not_measured(samples: Samples, goal: str) -> None:
    found = verdict(samples, goal)
    assert (found.measured, found.met) == ("not measured", "not measured")


def test_nothing_is_measured_by_an_empty_run(tmp_path: Path) -> None:
    empty = Samples(tmp_path / "none.jsonl")
    assert {one.met for one in verdicts(empty)} == {"not measured"}
    assert report.markdown(empty, []).count("| not measured | **not measured** |") == len(GOALS)


def test_a_goal_whose_every_run_failed_is_not_met(tmp_path: Path) -> None:
    failed = Samples(tmp_path / "failed.jsonl")
    add(failed, 0, ("drain", "rota", ""), error="WrongRun: 1 double")
    found = verdict(failed, "of the ceiling")
    assert (found.measured, found.met) == ("1 failed run", "no")


@pytest.mark.parametrize(("error", "met"), [("Failed: a deadline", "yes"), ("WrongRun: 1 double", "no")])
def test_a_round_that_ran_well_later_makes_up_for_a_fault_but_not_for_a_wrong_run(
    samples: Samples, error: str, met: str
) -> None:
    add(samples, 0, ("steady", "rota", "200/s"), error=error)
    assert verdict(samples, "200/s: p50").met == met


def test_failed_samples_are_shown_and_their_figures_are_not(samples: Samples) -> None:
    page = report.markdown(samples, [])
    assert r"| Recovery | Rota | worker killed | 2 | WrongRun: of 320: 1 missing \| [and] more | no |" in page
    assert "| worker killed | **Rota** | 1, 1 failed | 15 |" in page


def test_a_pipeline_is_told_as_a_part_of_the_ceiling_for_its_size(samples: Samples) -> None:
    (pipeline,) = (one for one in tables(samples) if one.workload == "pipeline")
    told = {row.key[1:]: row.cells[pipeline.figures.index("of the ceiling")] for row in pipeline.rows}
    assert {key: cell and cell.median for key, cell in told.items()} == {
        ("database", "1 KB"): None,
        ("rota", "async, 1 KB"): pytest.approx(0.45),
        ("rota", "async, 100 KB"): None,
    }


def test_a_peer_that_started_nothing_is_told_as_missing_it_all(samples: Samples) -> None:
    add(samples, 0, ("herd", "APScheduler 3, default grace", "10,000"), {"missing": 10_000})
    (row,) = (line for line in report.markdown(samples, []).splitlines() if "default grace" in line)
    assert re.findall(r"[\d,–]+", row.partition("grace")[2]) == ["1", "–", "–", "10,000"]  # noqa: RUF001


def test_every_figure_is_in_a_table_known_or_not(samples: Samples) -> None:
    page = report.markdown(samples, [])
    for sample in samples.all:
        for name in sample.figures:
            assert re.search(rf"^\|.* {re.escape(name)} .*\|$", page, re.M), name
    assert "| odd | **Rota** | 3 | 3 |" in page


def test_notes_are_footnotes(samples: Samples) -> None:
    page = report.markdown(samples, [])
    assert "Celery[^drain-1]" in page
    assert r"[^drain-1]: Redis \| beat" in page


def test_variants_are_in_the_order_of_their_numbers(samples: Samples) -> None:
    for count in (1_000, 20_000):
        add(samples, 0, ("herd", "rota", f"{count:,}"), {"max": 1})
    herd, fleet = (one for one in tables(samples) if one.workload in ("herd", "fleet"))
    assert [row.key[2] for row in herd.rows] == ["1,000", "10,000", "10,000", "20,000"]
    assert [row.key[1] for row in herd.rows] == ["rota", "rota", "Celery", "rota"]
    assert [row.key[2] for row in fleet.rows] == ["1 worker", "2 workers", "16 workers"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00123, "0.00123"),
        (0.5, "0.5"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (12345.6, "12,346"),
    ],
)
def test_numbers_have_three_digits_that_mean_something(value: float, text: str) -> None:
    assert number(value) == text


def test_the_facts_of_the_last_session_are_told_with_what_was_another_before(samples: Samples, tmp_path: Path) -> None:
    path = facts.beside(tmp_path / "results.jsonl")
    for commit, kernel in (("abc", "Linux 5"), ("abc", "Linux 6")):
        facts.append(
            path,
            Facts(
                "begun", "ended", commit, {"herds": [1_000], "recovery": True}, {"kernel": kernel}, {"Node": "20"}, {}
            ),
        )
    page = report.markdown(samples, facts.read(path))
    assert "| kernel | Linux 6; in an earlier session: Linux 5 |" in page
    assert "| Node | 20 |" in page
    assert "| Rota | commit abc |" in page
    assert "| size | herds 1,000, recovery yes |" in page


def test_what_the_host_gave_to_others_is_told_of_the_runs_that_know(samples: Samples) -> None:
    known = [Facts("begun", "ended", "abc", {}, {}, {}, {})]
    assert "gave to others" not in report.markdown(samples, known)
    for at, stolen in enumerate((0.01, 0.02, 0.3)):
        add(samples, at, ("drain", "Huey", ""), {"instances/s": 1}, stolen=stolen)
    assert "| CPU time that the host gave to others | 2 [1–30] % of all during a run, n=3 |" in report.markdown(  # noqa: RUF001
        samples, known
    )


def test_what_the_servers_are_told_is_stated_with_the_last_of_each_option() -> None:
    told = facts.settings()["MariaDB"]
    assert told.count("--innodb-buffer-pool-size=") == 1
    assert "--innodb-flush-log-at-trx-commit=1" in told
    assert "sync_binlog has nothing to sync" in told


def test_the_terminal_shows_the_chosen_cases(samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
    show(samples, {("drain", "rota", ""), ("recovery", "rota", "worker killed")})
    said = capsys.readouterr().out
    assert "6,600" in said
    assert "[and]" in said
    assert "Celery" not in said


@pytest.fixture(scope="module")
def _matplotlib() -> None:
    """Import it before the tests may start no process: on the first import it asks the machine for its fonts."""
    pytest.importorskip("matplotlib.font_manager")


@pytest.mark.usefixtures("_matplotlib")
def test_the_same_samples_give_the_same_bytes(samples: Samples, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    for out in ("one", "two"):
        assert report.write(results, tmp_path / out) == tmp_path / out / "benchmarks.md"
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / out).rglob("*.*")} for out in ("one", "two"))
    assert one == two
    assert sorted(one) == ["benchmarks.md", "drain.svg", "fleet.svg", "herd.svg", "registry.svg", "steady.svg"]
    assert all(len(content) < 100_000 for content in one.values())
    linked = re.findall(r"\]\(benchmarks/(\w+\.svg)\)", one["benchmarks.md"].decode())
    assert sorted(linked) == [name for name in sorted(one) if name.endswith(".svg")]


@pytest.mark.usefixtures("_matplotlib")
def test_a_plot_without_samples_is_not_drawn_and_an_old_one_goes(tmp_path: Path) -> None:
    old = tmp_path / "herd.svg"
    old.write_text("of an earlier run")
    assert plots.draw(Samples(tmp_path / "none.jsonl"), tmp_path) == []
    assert not old.exists()
