"""How long a failed run waits."""

import pytest

from rota.shared.domain.retry import retry_delay


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
    assert retry_delay(failures, base, backoff) == seconds


@pytest.mark.parametrize("failures", [1, 2])
def test_a_base_longer_than_an_hour_is_waited_in_full(failures: int) -> None:
    assert retry_delay(failures, 7200, "exponential") == 7200


def test_no_number_of_failures_is_too_large_to_compute() -> None:
    assert retry_delay(32_767, 86_400, "exponential") == 86_400
