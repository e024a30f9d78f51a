"""An app whose tasks use SIGALRM: one whose own timeout raises in the worker's main thread, and one in a child."""

import signal
import time
from typing import Any

from rota import NodeContext
from tests.harness.apps import app, recorded

__all__ = ["app"]


class TookTooLong(Exception):
    """What the app's handler of SIGALRM raises, wherever the main thread is."""


def alarmed(*_: Any) -> None:
    raise TookTooLong


signal.signal(signal.SIGALRM, alarmed)


@app.task("ALARM_THREAD")
def alarm_thread(ctx: NodeContext[Any]) -> dict[str, int]:
    """Sets an alarm, which Python handles in the main thread."""
    with recorded(ctx):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(0.3)
        return {"attempt": ctx.attempt}


@app.task("ALARM_PROCESS", execution="process")
def alarm_process(ctx: NodeContext[Any]) -> str:
    """Is interrupted by its own alarm, as its author wants it."""
    with recorded(ctx):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            time.sleep(10)
        except TookTooLong:
            return "interrupted"
        return "slept"
