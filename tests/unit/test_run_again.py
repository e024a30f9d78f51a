"""What a handler says by RunAgain, and what the runner reports of it."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from rota import RunAgain
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.triggers.zones import load_zone

at = datetime.fromisoformat
SHANGHAI = load_zone("Asia/Shanghai")
LEFT = at("2030-01-01T00:00:00")


@pytest.mark.parametrize("given", [{}, {"at": LEFT, "in_": 5}])
def test_a_time_or_a_span_is_given_and_not_both(given: Any) -> None:
    with pytest.raises(InvalidInput, match="RunAgain: give at=…, a datetime, or in_=…"):
        RunAgain(**given)


@pytest.mark.parametrize(
    "given", [{"in_": -1}, {"in_": float("nan")}, {"in_": True}, {"in_": "5m"}, {"in_": 32e6}, {"at": "2030-01-01"}]
)
def test_what_is_no_time_and_no_span_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"RunAgain (in_|at) .*: write"):
        RunAgain(**given)


@pytest.mark.parametrize(
    ("again", "moment"),
    [
        (RunAgain(in_=300), "2030-01-01T00:05:00"),
        (RunAgain(in_=timedelta(minutes=1)), "2030-01-01T00:01:00"),
        (RunAgain(in_=0), "2030-01-01T00:00:00"),
        (RunAgain(at=at("2030-01-01T09:30:00")), "2030-01-01T01:30:00"),
        (RunAgain(at=at("2030-01-01T09:30:00+01:00")), "2030-01-01T08:30:00"),
        (RunAgain(at=at("2020-01-01T09:30:00+00:00")), "2020-01-01T09:30:00"),
    ],
)
def test_a_span_counts_from_the_handlers_end_and_a_naive_time_is_of_the_tasks_zone(
    again: RunAgain, moment: str
) -> None:
    assert again.moment(LEFT, SHANGHAI) == at(moment)
