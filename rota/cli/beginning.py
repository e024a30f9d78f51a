"""Ctrl-C before the command has begun is told in a word. ``rota.cli`` imports this before all that takes long."""

import sys
from types import TracebackType


def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As Python's own hook; but a KeyboardInterrupt that nobody caught is no fault to look into."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _told
