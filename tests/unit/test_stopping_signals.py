"""A test that leaves SIGINT or SIGTERM blocked, or with another handler, fails, and the next one has them as before."""

import signal
from collections.abc import Callable

import pytest

from tests.harness.stopping import STOPPING, stopping_signals_kept


def block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def ignore() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("leave", "said"), [(block, "SIGINT is left blocked"), (ignore, "SIGTERM is left with the handler")]
)
def test_what_a_test_leaves_is_told_and_mended(leave: Callable[[], None], said: str) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ()), [signal.getsignal(number) for number in STOPPING]
    with pytest.raises(AssertionError, match=said), stopping_signals_kept():
        leave()
    assert (signal.pthread_sigmask(signal.SIG_BLOCK, ()), [signal.getsignal(number) for number in STOPPING]) == before


def test_a_handler_that_is_put_back_is_no_fault() -> None:
    with stopping_signals_kept():
        signal.signal(signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))
