"""Spreading: for which workers the shards are, and what becomes of the parent."""

import json

import pytest

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.spreading import MOST_SHARDS, RESULTS_BYTES, Shard, gathered, together, workers_of
from rota.shared.domain.states import InstanceStatus


def shard(index: int, status: str = "succeed", result: str | None = "1", reason: str | None = None) -> Shard:
    return Shard(100 + index, index, status, "w", reason, result)


@pytest.mark.parametrize(
    ("spread", "shards", "fitting", "workers"),
    [
        ("shards", 3, [], []),
        ("shards", 3, [7], [None] * 3),
        ("workers", None, [7, 9], [None, None]),
        ("workers", 5, [], []),
        ("broadcast", None, [9, 7], [7, 9]),
        ("broadcast", None, list(range(1, 1500)), list(range(1, MOST_SHARDS + 1))),
    ],
)
def test_a_fire_has_so_many_shards(
    spread: str, shards: int | None, fitting: list[int], workers: list[int | None]
) -> None:
    assert workers_of(spread, shards, fitting) == workers


@pytest.mark.parametrize(
    ("spread", "shards"), [("shards", None), ("shards", 0), ("shards", "many"), ("all", 1), ("", 1)]
)
def test_what_is_no_spread_is_refused(spread: str, shards: int | None) -> None:
    with pytest.raises(InvalidInput, match="spread is shards, with the number in shards, or workers, or broadcast"):
        workers_of(spread, shards, [1])


def test_the_parent_succeeds_with_the_results_in_their_order() -> None:
    end = gathered([shard(1, result="[2]"), shard(0, result=None)], 2, is_cancel_requested=False, reason=None)
    assert (end.status, end.reason) == (InstanceStatus.SUCCEED, None)
    assert [(one["shard"], one["instance"], one["result"]) for one in json.loads(end.result)] == [
        (0, 100, None),
        (1, 101, [2]),
    ]


def test_the_parent_fails_with_any_of_its_shards_and_says_how_many_and_which_was_the_first() -> None:
    some = [shard(0), shard(2, "canceled"), shard(1, "failed", reason="it broke")]
    end = gathered(some, 4, is_cancel_requested=False, reason=None)
    assert end.status is InstanceStatus.FAILED
    assert end.reason == (
        "1 of 4 shards were canceled; 1 of 4 shards failed; the rows of 1 of 4 shards are gone;"
        " the first is shard 1, instance 101: it broke"
    )


def test_one_that_was_asked_to_stop_is_canceled_whatever_became_of_its_shards() -> None:
    end = gathered([shard(0)], 1, is_cancel_requested=True, reason="by ann")
    assert (end.status, end.reason) == (InstanceStatus.CANCELED, "by ann")


def test_results_are_bounded_and_what_cannot_be_read_is_left_out() -> None:
    large = json.dumps("x" * (RESULTS_BYTES // 2))
    end = gathered(
        [
            shard(0, result=large),
            shard(1, result=large),
            shard(2, result="{"),
            shard(3, result="4"),
            Shard(104, 4, "succeed", "w", None, None, has_large_result=True),
        ],
        5,
        is_cancel_requested=False,
        reason=None,
    )
    assert len(end.result) < 2 * RESULTS_BYTES
    assert ["result" in one for one in json.loads(end.result)] == [True, False, False, True, False]


def test_changes_of_the_one_field_bring_those_of_the_other() -> None:
    assert together({"shards": 8}) == {"shards": 8, "spread": "shards"}
    assert together({"spread": "broadcast"}) == {"spread": "broadcast", "shards": None}
    assert together({"spread": None}) == {"spread": None, "shards": None}
    assert together({"cron": None}) == {"cron": None}


def test_more_shards_than_there_should_be_are_no_reason_to_fail() -> None:
    assert gathered([shard(0), shard(1)], 1, is_cancel_requested=False, reason=None).status is InstanceStatus.SUCCEED
