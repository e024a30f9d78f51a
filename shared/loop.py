"""The one loop. A duty is a step that does its work and returns how long to rest; this wakes, stops and backs off."""

import logging
import random
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 5.0


class Loop:
    """Runs a step again and again on a thread of its own, until stopped.

    A step returns the seconds to rest (0: at once). A step that fails is logged, once for each different error, and
    tried again after a growing, jittered pause: a database that is away must not end a process.

        loop = Loop("materializer", step=tick)
        loop.start(); loop.wake(); loop.stop()
    """

    def __init__(self, name: str, step: Callable[[], float]) -> None:
        self._step = step
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._failure: str | None = None

    @property
    def name(self) -> str:
        """The duty's name, as threads and logs show it."""
        return self._thread.name

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """End the present rest."""
        self._wake.set()

    def stop(self) -> None:
        """Ask it to end after the present step; ``join`` waits for that."""
        self._stopping.set()
        self._wake.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended; False if it has not within ``timeout`` seconds."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                rest = self._step()
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the duty goes on
                failures += 1
                self._say(error)
                longest = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** min(failures, 10))
                rest = random.uniform(longest / 2, longest)  # noqa: S311
            else:
                if failures:
                    log.info("%s: works again after %d failures", self.name, failures)
                failures, self._failure = 0, None
            if rest > 0:
                self._wake.wait(rest)
            self._wake.clear()

    def _say(self, error: Exception) -> None:
        sentence = f"{type(error).__name__}: {error}"
        if sentence != self._failure:
            self._failure = sentence
            log.error("%s: failed and will be tried again: %s", self.name, sentence, exc_info=error)
