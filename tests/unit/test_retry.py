"""When a failed run is retried, and after how long."""

import json
from datetime import timedelta
from typing import Any

import pytest

from rota import Fail, Retry
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.retry import OF_A_TIMEOUT, RetryPolicy, exception_name, names_of
from rota.shared.domain.task import TaskDefinition


@pytest.mark.parametrize(
    ("failures", "base", "backoff", "seconds"),
    [
        (1, 10, "exponential", 10),
        (3, 10, "exponential", 40),
        (9, 10, "exponential", 2560),
        (10, 10, "exponential", 3600),
        (5, 0, "exponential", 0),
        (1, 10, "fixed", 10),
        (50, 10, "fixed", 10),
        (50, 86_400, "fixed", 86_400),
    ],
)
def test_the_delay_doubles_up_to_an_hour_or_stays(failures: int, base: int, backoff: str, seconds: float) -> None:
    assert RetryPolicy(retry_delay_seconds=base, retry_backoff=backoff).delay(failures, 7) == seconds


@pytest.mark.parametrize("failures", [1, 2])
def test_a_base_longer_than_an_hour_is_waited_in_full(failures: int) -> None:
    assert RetryPolicy(retry_delay_seconds=7200).delay(failures, 7) == 7200


def test_no_number_of_failures_is_too_large_to_compute() -> None:
    assert RetryPolicy(retry_delay_seconds=86_400).delay(32_767, 7) == 86_400


@pytest.mark.parametrize(("longest", "seconds"), [(15, [10, 15, 15]), (10_000, [10, 20, 40]), (10, [10, 10, 10])])
def test_an_exponential_delay_grows_up_to_the_longest(longest: int, seconds: list[float]) -> None:
    policy = RetryPolicy(max_retry_delay_seconds=longest)
    assert [policy.delay(failures, 7) for failures in (1, 2, 3)] == seconds


def test_a_longest_delay_that_sql_made_shorter_than_the_first_shortens_nothing() -> None:
    assert RetryPolicy(retry_delay_seconds=60, max_retry_delay_seconds=5).delay(1, 7) == 60


def test_jitter_shortens_each_delay_by_up_to_its_share_evenly_and_always_alike() -> None:
    policy = RetryPolicy(retry_delay_seconds=100, retry_backoff="fixed", retry_jitter_percent=20)
    delays = [policy.delay(failures, instance) for failures in (1, 2) for instance in range(500)]
    assert all(80 < delay <= 100 for delay in delays)
    assert sum(delays) / len(delays) == pytest.approx(90, abs=1)
    assert len(set(delays)) == len(delays)
    assert delays[3] == policy.delay(1, 3)


def test_full_jitter_goes_down_to_nothing_and_never_beyond_the_longest_delay() -> None:
    policy = RetryPolicy(retry_delay_seconds=10, max_retry_delay_seconds=30, retry_jitter_percent=100)
    delays = [policy.delay(5, instance) for instance in range(500)]
    assert 0 <= min(delays) < 1
    assert 29 < max(delays) <= 30


class Away(ConnectionError):
    """An exception of the author's own."""


AWAY = f"{__name__}.Away"


def test_an_exception_is_named_with_its_module_but_a_built_in_one_without() -> None:
    assert exception_name(json.JSONDecodeError) == "json.decoder.JSONDecodeError"
    assert names_of(Away) == [AWAY, "ConnectionError", "OSError", "Exception", "BaseException"]


def test_a_timeout_is_known_by_the_names_of_the_built_in_one() -> None:
    assert tuple(names_of(TimeoutError)) == OF_A_TIMEOUT


@pytest.mark.parametrize(
    ("retry_on", "never_retry", "why"),
    [
        (None, None, None),
        (["OSError"], None, None),
        ([AWAY], None, None),
        (["ValueError", "KeyError"], None, "retry_on has only ValueError, KeyError"),
        ([], None, "retry_on is empty"),
        (None, ["ConnectionError"], "never_retry has ConnectionError"),
        (["OSError"], [AWAY], f"never_retry has {AWAY}"),
        (None, ["ValueError"], None),
        (["Away"], None, "retry_on has only Away"),
    ],
)
def test_an_exception_is_chosen_by_its_class_or_one_that_it_derives_from(
    retry_on: Any, never_retry: Any, why: str | None
) -> None:
    assert RetryPolicy(retry_on=retry_on, never_retry=never_retry).why_not(names_of(Away)) == why


def test_a_failure_without_an_exception_is_retried_whatever_is_chosen() -> None:
    assert RetryPolicy(retry_on=["ValueError"], never_retry=["OSError"]).why_not(()) is None


@pytest.mark.parametrize(("in_", "seconds"), [(None, None), (0, 0), (0.5, 0.5), (timedelta(minutes=5), 300)])
def test_a_handler_says_in_seconds_or_as_a_span_when_it_is_to_be_retried(in_: Any, seconds: float | None) -> None:
    assert Retry("not yet", in_=in_).in_seconds == seconds


@pytest.mark.parametrize("in_", [-1, float("nan"), float("inf"), "5m", True, timedelta(days=-1), timedelta(days=400)])
def test_a_retry_in_no_time_is_refused_in_a_sentence(in_: Any) -> None:
    with pytest.raises(InvalidInput, match="write seconds, from 0 to 31,536,000, or a timedelta") as refused:
        Retry("not yet", in_=in_)
    assert str(refused.value).startswith(f"Retry in_ {in_!r}: ")


def test_what_a_handler_says_of_its_failure_has_words_of_its_own_where_none_are_given() -> None:
    assert (str(Retry()), str(Fail())) == ("the handler asks for a retry", "the handler gives up")


def test_an_exception_that_has_several_names_is_kept_by_its_own() -> None:
    task = TaskDefinition.of(name="sync", type="REPORT", retries=1, retry_on=["IOError", "EnvironmentError"])
    assert task.retry_on == ["OSError"]


def test_an_exception_that_was_made_in_a_function_can_be_read_back() -> None:
    class Away(Exception):
        pass

    [name] = TaskDefinition.of(name="sync", type="REPORT", retries=1, retry_on=[Away]).retry_on or []
    assert name.endswith("<locals>.Away")
    assert TaskDefinition.of(name="sync", type="REPORT", retries=1, retry_on=[name]).retry_on == [name]


def test_a_list_of_exceptions_that_no_row_holds_is_refused_in_a_sentence() -> None:
    most = [f"some.module.Error{number:04d}" for number in range(160)]
    assert TaskDefinition.of(name="sync", type="REPORT", never_retry=most).never_retry == most
    with pytest.raises(InvalidInput, match=r"never_retry has 4,801 bytes as JSON; at most 4,000 are kept"):
        TaskDefinition.of(name="sync", type="REPORT", never_retry=[f"some.module.Error{n:04d}" for n in range(200)])
