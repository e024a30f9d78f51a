"""The lines of those that wait for a limit at one worker: one of them asks again, and what ends lets others ask."""

from rota.worker_service.pulling.limit_lines import WIDEST, LimitLines


def test_one_of_a_line_is_the_probe_and_stays_it() -> None:
    lines = LimitLines()
    assert [lines.join("warehouse", i) for i in (7, 8, 9)] == [True, False, False]
    assert (lines.join("warehouse", 8), lines.join("warehouse", 7)) == (False, True)
    assert lines.join("mail", 5), "each limit has its own"


def test_when_the_probe_gets_a_slot_twice_as_many_are_tried_each_time() -> None:
    lines = LimitLines()
    for instance in range(100):
        lines.join("warehouse", instance)
    assert lines.leave([0]) == [1, 2]
    assert lines.leave([1, 2]) == [3, 4, 5, 6]
    assert not lines.join("warehouse", 4), "it failed, and another one is the probe"
    assert lines.join("warehouse", 3), "the probe failed"
    assert lines.leave([3]) == [4, 5], "so few are tried again"


def test_no_more_than_so_many_are_tried_at_once() -> None:
    lines = LimitLines()
    for instance in range(1000):
        lines.join("warehouse", instance)
    tried = [0]
    for _ in range(20):
        tried = lines.leave(tried)
        assert len(tried) <= WIDEST
    assert tried != []


def test_each_run_that_ends_lets_the_next_one_be_tried() -> None:
    lines = LimitLines()
    for instance in (7, 8, 9):
        lines.join("warehouse", instance)
    assert [lines.next_of("warehouse") for _ in range(4)] == [7, 8, 9, None]
    assert lines.next_of("mail") is None
    assert lines.join("warehouse", 7), "the probe stays the probe"


def test_what_is_gone_is_forgotten() -> None:
    lines = LimitLines()
    for instance in (7, 8, 9):
        lines.join("warehouse", instance)
    lines.retain({8, 9})
    assert lines.join("warehouse", 9), "the probe is gone, and another one becomes it"
    assert lines.leave([9]) == [8]
    assert lines.leave([8]) == []
    assert lines.next_of("warehouse") is None


def test_what_never_waited_changes_nothing() -> None:
    assert LimitLines().leave([1, 2]) == []
