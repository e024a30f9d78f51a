"""The worker's side of its guardian: it answers, and ends the worker if the guardian is frozen when the lease ends."""

import logging
import os
import time
from collections.abc import Callable

from rota.shared.clock import WATCH_SECONDS, HostTimer
from rota.shared.settings import Settings
from rota.shared.store.workers import Load
from rota.worker_service import process_groups
from rota.worker_service.board import Board
from rota.worker_service.contents import Node
from rota.worker_service.liveness import die, lease_seconds

log = logging.getLogger(__name__)

LOOP_SHARE = 2
"""A worker whose event loop is blocked for half of ``blocked_seconds`` answers no more. Before, its threads go on."""


class Guarded:
    """The liveness of a worker whose guardian holds its lease.

    ``guardian`` is the process id of the guardian, which has the reading end of the pipe ``alive``.
    """

    def __init__(
        self, settings: Settings, board: Board, guardian: int, alive: int, lost: Callable[[str], None] = die
    ) -> None:
        self._lease_seconds = lease_seconds(settings)
        self._loop_seconds = settings.blocked_seconds / LOOP_SHARE
        self._board = board
        self._guardian = guardian
        self._lost = lost
        self._timer = HostTimer()
        self._stops = 0
        self.asked_to_stop: Callable[[int], None] = lambda times: None
        """Called when somebody asked the guardian to stop the worker, with how often."""

        process_groups.hold(alive)

    def registering(self) -> None:
        """Let the guardian look for the worker's row if this process ends before it has told which that is."""
        self._board.registering = True

    def begin(self, worker_id: int, asked: float, load: Callable[[], Load], silent: Callable[[], float]) -> None:
        """Let the guardian hold the lease, and answer it."""
        self._load, self._silent = load, silent
        self._board.answered, self._board.expires = self._timer.monotonic(), asked + self._lease_seconds
        self._board.worker_id = worker_id  # the last: from now on the guardian reads the board
        self._timer.thread("guarded", self._answer).start()

    def watched(self, node: Node) -> Node:
        """The node, with a handler that notes on the board which run it is in."""
        return self._board.watched(node)

    def end(self, *, all_ended: bool) -> None:
        """Nothing: the guardian marks the worker's row dead when its process has ended."""

    def _answer(self) -> None:
        try:
            while True:
                self._look()
                time.sleep(WATCH_SECONDS)
        except BaseException as error:  # a worker that does not answer would be taken for one that is held up
            log.exception("worker: it cannot answer its guardian")
            self._lost(f"it cannot answer its guardian: {type(error).__name__}: {error}")

    def _look(self) -> None:
        now = self._timer.monotonic()
        silent = self._silent()
        self._board.load, self._board.answered = self._load(), now - silent if silent > self._loop_seconds else now
        if now >= self._board.expires:
            self._lost(f"its guardian has not renewed its lease for {self._lease_seconds:g} s")
        if os.getppid() != self._guardian:  # the kernel's signal is lost if the app has changed its user
            self._lost("its guardian has ended")
        if self._board.stops > self._stops:
            self._stops = self._board.stops
            self.asked_to_stop(self._stops)
