"""Jitter: a later start, the same for whoever asks, and before the next fire.

Everything random is derived from what hypothesis prints with a failure.
"""

from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.times import LATEST
from tests.harness.examples import examples

NOON = datetime.fromisoformat("2026-11-19T12:00:00")
SECOND = timedelta(seconds=1)


def hourly(jitter: Any, **fields: Any) -> PlanInputs:
    return PlanInputs("cron", "0 * * * *", trigger_spec={"jitter_seconds": jitter}, **fields)


def test_without_jitter_a_fire_is_due_at_its_own_time() -> None:
    for inputs in (hourly(0), PlanInputs("cron", "0 * * * *"), PlanInputs("cron", "0 * * * *", trigger_spec=[5])):
        assert inputs.due_at(7, NOON) is None


def test_it_is_what_it_always_was() -> None:
    """A change of the hash would let two versions of Rota differ."""
    assert hourly(3600).due_at(7, NOON) == datetime.fromisoformat("2026-11-19T12:14:42.399433")


def test_it_spreads_tasks_and_fires_over_all_of_its_seconds() -> None:
    fires = list(islice(hourly(600).fires_after(NOON), 24))
    late = sorted((hourly(600).due_at(task, fire) or fire) - fire for task in range(40) for fire in fires)
    assert len(set(late)) == 40 * 24
    for part in range(10):
        assert 40 <= sum(part * 60 * SECOND <= one < (part + 1) * 60 * SECOND for one in late) <= 160


def test_the_last_fire_has_its_jitter_too_and_stays_within_the_times_that_rota_takes() -> None:
    last = hourly(3600, ends_at=NOON)
    assert NOON <= (last.due_at(7, NOON) or LATEST) < NOON + 3600 * SECOND
    once = PlanInputs("once", trigger_spec={"at": LATEST.isoformat(), "jitter_seconds": 60})
    assert once.due_at(7, LATEST) == LATEST


@pytest.mark.parametrize("wrong", [-1, 1.5, "60", None, True, [], {}, 86_401, 10**400], ids=lambda w: f"{w!r:.20}")
def test_a_jitter_that_sql_wrote_wrong_is_refused(wrong: Any) -> None:
    for ask in (hourly(wrong).next_after, hourly(wrong).newest_until, lambda at: hourly(wrong).due_at(7, at)):
        with pytest.raises(InvalidInput, match="write whole seconds from 0 to 86400"):
            ask(NOON)


@settings(derandomize=True, max_examples=examples(800), deadline=None, print_blob=True)
@given(
    task=st.integers(1, 2**63 - 1),
    jitter=st.integers(1, 86_400),
    every=st.integers(1, 100_000),
    moment=st.datetimes(datetime.fromisoformat("1970-01-01"), datetime.fromisoformat("2100-01-01")),
)
def test_a_start_is_at_its_fire_or_later_and_before_the_next(
    *, task: int, jitter: int, every: int, moment: datetime
) -> None:
    inputs = PlanInputs("interval", trigger_spec={"every": every, "jitter_seconds": jitter})
    plain = PlanInputs("interval", trigger_spec={"every": every})
    fire = inputs.next_after(moment)
    assert fire is not None
    assert fire == plain.next_after(moment)
    due = inputs.due_at(task, fire)
    assert due is not None
    assert fire <= due < fire + min(jitter, every) * SECOND
    assert due == inputs.due_at(task, fire)
