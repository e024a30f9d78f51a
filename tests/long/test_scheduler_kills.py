"""A scheduler killed, or stopped and woken, between any two of its statements: no fire is lost, none is doubled.

The points are not chosen by hand: a dry run writes down what one batch says to the database, and then one scheduler
dies, and one stops, before each statement and each commit of it, and after the last.
"""

import signal
from pathlib import Path

import pytest

from tests.harness.databases import MariaDBServer
from tests.harness.faults import COMMIT
from tests.harness.lives import Lives, Stage, stage_chain, stage_ends, stage_fires, stage_pending, stage_shards

DUTIES = [
    pytest.param("materializer", stage_fires, id="materializer"),
    pytest.param("assigner", stage_pending, id="assigner"),
    pytest.param("follower", stage_ends, id="follower"),
    pytest.param("chains", stage_chain, id="chains"),
]
SPREADER = pytest.param("spreader", stage_shards, id="spreader")


@pytest.fixture
def lives(mariadb_server: MariaDBServer, mariadb_template: list[str], tmp_path: Path, duty: str, stage: Stage) -> Lives:
    return Lives(mariadb_server, mariadb_template, tmp_path, duty, stage)


@pytest.mark.parametrize(("duty", "stage"), [*DUTIES, SPREADER])
def test_a_scheduler_killed_between_any_two_statements_loses_no_fire_and_doubles_none(lives: Lives) -> None:
    assert lives.points.count(COMMIT) >= (1 if lives.duty == "chains" else 3)
    lives.lead(signal.SIGKILL)


@pytest.mark.parametrize(("duty", "stage"), DUTIES)
def test_a_scheduler_stopped_between_any_two_statements_holds_up_nobody_and_doubles_nothing_when_it_wakes(
    lives: Lives,
) -> None:
    first = lives.first_of("schedule_chain_run" if lives.duty == "chains" else "schedule_task_lock")
    lives.lead(signal.SIGSTOP, first=first)
