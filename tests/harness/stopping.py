"""SIGINT and SIGTERM as a test finds them must be as it leaves them: what later tests start would inherit them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_signals_kept() -> Iterator[None]:
    """Fail if the block leaves one of them blocked or with another handler, and set it right for what follows."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    yield
    left = signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    faults = [f"{number.name} is left blocked" for number in STOPPING if number in left - blocked]
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            faults.append(f"{number.name} is left with the handler {signal.getsignal(number)}")
            signal.signal(number, handler)
    assert not faults, "; ".join(faults)
