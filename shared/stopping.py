"""How a process that has loaded an app waits until it is to stop."""

import logging
import threading

log = logging.getLogger(__name__)


def wait(stopping: threading.Event, who: str) -> None:
    """Wait on the main thread until ``stopping`` is set, whatever the app's own signal handlers raise there.

    wait(stopping, "worker")
    """
    while not stopping.is_set():
        try:
            stopping.wait()
        except BaseException:  # this thread runs the app's own signal handlers, such as one for SIGALRM
            log.exception("%s: a signal handler of the app has failed", who)
