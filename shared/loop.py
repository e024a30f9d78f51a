"""The one loop of all duties. A duty is a step that works and returns its rest; the loop wakes, stops and backs off."""

import logging
import math
import random
from collections.abc import Callable
from threading import get_ident

from rota.shared.clock import Timer
from rota.shared.domain.errors import DatabaseAway, RotaError

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 5.0
LONGEST_REST_SECONDS = 3600.0
"""A step that says to rest for longer is run again after this, since no thread can wait for just any time."""

LONGEST_SPARING_SECONDS = 1.0


def sparing_rest(took: float, share: float, longest: float = LONGEST_SPARING_SECONDS) -> float:
    """How many seconds a duty rests after a look that took so many, to spend no more than this share of its time on it.

    At most ``longest``: a look also takes as long as the database, or the process itself, stood still meanwhile.

        sparing_rest(0.02, share=0.1)  # 0.18
    """
    return min(took * (1 / share - 1), longest)


class Loop:
    """Runs a step again and again on a thread of its own, until stopped.

    A step returns the seconds to rest: 0 runs it again at once, infinity rests until ``wake``. If a step fails, the
    loop tries it again after a random pause that grows up to ``LONGEST_BACKOFF_SECONDS``, because an outage of the
    database must not end the process. The loop logs an error only if it differs from the one before.

        loop = Loop("materializer", tick, clock)
        loop.start(); loop.wake(); loop.stop()
    """

    def __init__(self, name: str, step: Callable[[], float], timer: Timer) -> None:
        self._step = step
        self._timer = timer
        self._wake = timer.event()
        self._stopping = timer.event()
        self._thread = timer.thread(name, self._run)
        self._failure: str | None = None
        self.took = 0.0
        """How many seconds the last step took."""

    @property
    def name(self) -> str:
        """The duty's name, as threads and logs show it."""
        return self._thread.name

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """End the present rest, or the next one if the step is running; but not the pause after a failure."""
        if not self._wake.is_set():  # to set it again costs much more
            self._wake.set()

    def stop(self) -> None:
        """Ask the loop to end after the present step; ``join`` waits for that."""
        self._stopping.set()
        self._wake.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended; False if it has not within ``timeout`` seconds."""
        if self._thread.ident is not None and self._thread.ident != get_ident():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = self._timer.monotonic()
            try:
                rest = self._step()
            except BaseException as error:  # noqa: BLE001 - a duty continues after any error, SystemExit included
                failures += 1
                if not isinstance(error, DatabaseAway):  # the database says itself when it goes away and is back
                    self._log_failure(error)
                longest = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** min(failures, 10))
                rest = random.uniform(longest / 2, longest)  # noqa: S311
            else:
                if self._failure is not None:
                    log.info("%s: works again after %d failures", self.name, failures)
                failures, self._failure = 0, None
            self.took = self._timer.monotonic() - began
            if rest > 0:
                waited_for = self._stopping if failures else self._wake  # nobody may make it fail more often
                waited_for.wait(None if rest == math.inf else min(rest, LONGEST_REST_SECONDS))
            self._wake.clear()

    def _log_failure(self, error: BaseException) -> None:
        sentence = f"{type(error).__name__}: {error}"
        if sentence != self._failure:
            self._failure = sentence
            traceback = None if isinstance(error, RotaError) else error  # it is for what Rota did not expect
            log.error("%s: failed and will be tried again: %s", self.name, sentence, exc_info=traceback)
