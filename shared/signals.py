"""The names of signals."""

import signal


def signal_name(number: int) -> str:
    """``SIGKILL``, say; ``signal 40`` for one without a name.

    signal_name(9)
    """
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
