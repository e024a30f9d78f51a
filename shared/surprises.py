"""Errors that Rota did not expect: each is logged with its traceback, but only once, although it comes again."""

import logging

log = logging.getLogger(__name__)

KEPT = 1_000
"""How many errors are remembered. Of more, the oldest are forgotten, and may be logged again."""


class Surprises:
    """The unexpected errors of one part of a process, by what they concern.

    surprises = Surprises("materializer")
    surprises.say("task 'nightly'", error)    # logged, unless it is the same error as before
    surprises.over("task 'nightly'")          # the next one is logged again
    """

    def __init__(self, part: str) -> None:
        self._part = part
        self._said: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Whether an error was said that is not over."""
        return bool(self._said)

    def warn(self, what: str, words: str) -> None:
        """Log a warning that concerns ``what`` in one line, if it is another than the last."""
        if self._is_new(what, words):
            log.warning("%s: %s", self._part, words)

    def say(self, what: str, error: BaseException) -> str:
        """Log an error that concerns ``what``, if it is another than the last; returns it in words."""
        words = f"{type(error).__name__}: {error}"
        if self._is_new(what, words):
            log.error("%s: %s: not expected, and will be tried again: %s", self._part, what, words, exc_info=error)
        return words

    def _is_new(self, what: str, words: str) -> bool:
        if self._said.get(what) == words:
            return False
        self._said.pop(what, None)
        self._said[what] = words
        if len(self._said) > KEPT:
            del self._said[next(iter(self._said))]
        return True

    def over(self, what: str) -> None:
        """What the errors concerned has gone well, or is no more."""
        if self._said:
            self._said.pop(what, None)
