"""Which fires that waited for a worker run no more."""

from datetime import datetime, timedelta

import pytest

from rota.shared.domain.waiting import WaitingFire, superseded

NOON = datetime.fromisoformat("2026-11-19T12:00:00")


def waiting(
    *ages: int, task: int = 1, policy: str = "skip", grace: int = 10, misfire: str = "fire_once", cap: int = 100
) -> list[WaitingFire]:
    """Fires of a task so many seconds late; their ids are 100 times the task, plus the age."""
    moments = {100 * task + age: NOON - timedelta(seconds=age) for age in ages}
    return [WaitingFire(i, task, moment, moment, grace, policy, misfire, cap) for i, moment in moments.items()]


@pytest.mark.parametrize("policy", ["skip", "allow"])
def test_of_fires_that_waited_longer_than_the_grace_the_newest_runs(policy: str) -> None:
    gone = superseded(waiting(*range(89), policy=policy), NOON)
    assert set(gone) == {100 + age for age in range(1, 89)}
    assert set(gone.values()) == {"missed: no worker could run it in time; instance 100 runs"}


def test_fires_that_waited_no_longer_than_the_grace_all_run() -> None:
    assert superseded(waiting(*range(11)), NOON) == {}


def test_a_single_fire_runs_however_long_it_has_waited() -> None:
    assert superseded([*waiting(5000), *waiting(5000, task=2)], NOON) == {}


def test_the_grace_is_that_of_the_task() -> None:
    assert set(superseded([*waiting(1, 20, grace=30), *waiting(1, 20, task=2)], NOON)) == {220}


def test_under_replace_a_newer_fire_supersedes_at_once() -> None:
    gone = superseded(waiting(1, 2, 3, policy="replace"), NOON)
    assert gone == dict.fromkeys((102, 103), "replaced by instance 101, a newer fire of its task")


def test_under_skip_none_runs_that_waited_longer_than_the_grace_and_the_others_do() -> None:
    gone = superseded(waiting(5, 10, 11, 80, misfire="skip"), NOON)
    assert gone == dict.fromkeys((111, 180), "missed: no worker could run it in time, and misfire_policy is skip")


def test_under_fire_all_all_run_up_to_the_cap() -> None:
    assert superseded(waiting(*range(80), misfire="fire_all"), NOON) == {}
    gone = superseded(waiting(5, 11, 12, 13, 14, misfire="fire_all", cap=3), NOON)
    assert gone == {114: "missed: no worker could run it in time; the newest 3 of those that were missed run"}
