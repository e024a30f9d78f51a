"""The guardian: the parent process of a worker. It beats for the worker, and kills it when its lease ends.

A thread of the worker cannot do that: a handler that holds Python's lock, in one long call of C, stops all threads of
its process. So ``rota worker`` parts in two before it starts any thread. The child becomes the worker. The parent

- sends the heartbeats, and SIGKILLs the worker when it could not renew the lease;
- beats for a worker that does not answer for ``blocked_seconds`` at most, while the worker's row says so;
- passes on signals;
- kills what handlers have started in the worker's process group, when the worker has ended;
- marks the worker's row dead as soon as the worker's process has ended, and exits with its exit code;
- reaps orphans where it is PID 1.

If the guardian dies, the kernel kills the worker (PR_SET_PDEATHSIG). If the guardian is frozen, the worker's own
watchdog ends the worker (``guarded``). In each case, the guard of the process groups kills the worker's commands.
"""

import ctypes
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

from sqlalchemy import Connection

from rota.shared.clock import boottime
from rota.shared.database.transactions import Database
from rota.shared.domain.times import span
from rota.shared.settings import Settings
from rota.shared.signals import signal_name
from rota.shared.store import workers
from rota.worker_service.board import Board
from rota.worker_service.guarded import Guarded
from rota.worker_service.liveness import EXIT_LEASE_LOST, LAST_BEAT_SECONDS, Lease, lease_database
from rota.worker_service.process_groups import kill_group
from rota.worker_service.registration import bury_the_gone

log = logging.getLogger(__name__)

STOPPING = (signal.SIGTERM, signal.SIGINT)
OTHERS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that the app may have handlers for; else they end the worker, as they end any program."""

WAITED = (*STOPPING, *OTHERS, signal.SIGCHLD)
LOOK_SECONDS = 0.25
"""How often the guardian looks at the board when no signal comes."""

UNANSWERED_SECONDS = 2.0
"""When a worker has not answered for so long, its row says that it is blocked. It answers ten times a second."""

GROUPS_SECONDS = 2.0
"""How long the guardian waits for the end of the commands of a worker that has ended, before others run them again."""

BURY_TRIES, BURY_PAUSE_SECONDS = 4, 0.25
"""How often the guardian tries to mark the worker dead: a death passes over a beat that somebody has locked."""

SAMPLES, SAMPLE_SECONDS, ENOUGH_TICKS = 10, 0.1, 5
"""So often, and for so long each time, the guardian looks which threads of a blocked worker use the processor, until
one has used it for so many ticks of the kernel: a busy machine may let none run for a while."""

NAMED = 10
"""How many runs the row of a blocked worker names at most."""

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


def part(settings: Settings) -> Guarded:
    """Part this process in two. Returns in the worker alone; the guardian exits when the worker has ended.

    Call it before any thread is started. The caller may have blocked the signals that stop a worker. Until the worker
    has its handlers, a signal ends it as any program.
    """
    board = Board(2 * settings.capacity)
    groups_ended, alive = os.pipe()
    guardian = os.getpid()
    sys.stdout.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it hands that on; then nobody could be reaped
    gc.freeze()  # the collector would write to memory that the two processes share
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)  # before the fork: no signal may be lost
    worker = os.fork()
    if worker:
        os.close(alive)
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"rota-guardian")  # as ps -e and top show it
        code = Guardian(settings, board, worker, groups_ended).run()
        logging.shutdown()
        os._exit(code)
    os.close(groups_ended)
    _die_with(guardian)
    os.setsid()  # Ctrl-C is for the guardian, which passes it on
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked - set(STOPPING))
    return Guarded(settings, board, guardian, alive)


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before
        os._exit(EXIT_LEASE_LOST)


class Guardian:
    """Guards one worker, a child of this process. ``groups_ended`` is a pipe that ends with the worker's commands."""

    def __init__(self, settings: Settings, board: Board, worker: int, groups_ended: int) -> None:
        self._settings = settings
        self._board = board
        self._worker = worker
        self._groups_ended = groups_ended
        self._lock = threading.Lock()
        self._ended = False
        self._lost: str | None = None
        self._culprits: list[int] | None = None
        self._lease: Lease | None = None
        self._blocked = False
        self._beaten = threading.Event()
        self._looked = self._awake = boottime()

    @cached_property
    def _database(self) -> Database:
        return lease_database(self._settings)

    def run(self) -> int:
        """Guard until the worker has ended. Returns the exit code: the worker's, or 128 and its signal's number."""
        while (status := self._reap()) is None:
            received = signal.sigtimedwait(WAITED, LOOK_SECONDS)
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._pass_on(received.si_signo)
            if self._board.worker_id:
                self._look()
        self._leave(status)
        if self._lost is not None:
            return EXIT_LEASE_LOST
        return status if status >= 0 else 128 - status

    def _reap(self) -> int | None:
        """Reap every child that has ended. Returns the worker's exit status, or None while it runs.

        When the worker has ended, what its handlers have started in its process group ends, too.
        """
        with self._lock:
            if os.waitid(os.P_PID, self._worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                kill_group(self._worker)  # before it is reaped: after that the number may be another process's
            while not self._ended:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self._worker:
                    self._ended = True
                    return os.waitstatus_to_exitcode(status)
                if not pid:
                    return None
        return None

    def _pass_on(self, number: int) -> None:
        """Pass on a signal. The board says how often somebody asked the worker to stop.

        A service manager may signal both processes itself. That is to count once.
        """
        if number in STOPPING:
            self._board.stops += 1
        if number in OTHERS or not self._board.worker_id:  # else it reads the board
            os.kill(self._worker, number)

    def _look(self) -> None:
        """Hold the lease of the worker that has registered, and kill it if it does not answer for too long."""
        now = boottime()
        if now - self._looked > UNANSWERED_SECONDS:  # this process was frozen, and so the worker may have been
            self._awake = now
        self._looked = now
        if self._lease is None:
            worker_id, load = self._board.worker_id, lambda: self._board.load
            self._lease = Lease(
                self._database, worker_id, self._settings, load, self._kill,
                expires=self._board.expires, renewed=self._renewed,
            )  # fmt: skip
            self._lease.start()
            threading.Thread(target=self._mark, name="blocked", daemon=True).start()
        elif self._board.stops > 1 and self._silent_seconds() > UNANSWERED_SECONDS:
            self._kill("it was asked twice to stop and did not answer", culprits=[])
        elif self._silent_seconds() > self._settings.blocked_seconds:
            blockers = self._blockers()
            blocked = f"blocked by {_named(blockers)}"
            self._kill(f"it did not answer for {self._settings.blocked_seconds:g} s, {blocked}", blockers or None)

    def _silent_seconds(self) -> float:
        """How long the worker has not answered, while this process could have heard it."""
        return boottime() - max(self._board.answered, self._awake)

    def _kill(self, reason: str, culprits: list[int] | None = None) -> None:
        """SIGKILL the worker, whatever it does. The guard of its process groups then kills its commands."""
        with self._lock:  # else it could be reaped meanwhile, and its number be another process's
            if self._ended or self._lost is not None:
                return
            self._lost, self._culprits = reason, culprits
            os.kill(self._worker, signal.SIGKILL)
        if self._lease is not None:
            self._lease.stop()  # a process that hangs in the kernel ends later, but runs nothing any more
        log.critical("worker: %s; its process ends now, others run its work", reason)

    def _renewed(self, expires: float) -> None:
        """After each heartbeat: tell the worker how long it may go on, and see whether it is blocked."""
        self._board.expires = expires
        self._beaten.set()

    def _mark(self) -> None:
        """Tell the database whether the worker is blocked, on a thread of its own: no heartbeat may wait for that."""
        while self._beaten.wait():
            self._beaten.clear()
            self._mark_once()

    def _mark_once(self) -> None:
        silent = self._silent_seconds()
        blocked = silent > UNANSWERED_SECONDS
        if blocked == self._blocked:
            return
        try:
            if self._note(silent if blocked else None):
                self._blocked = blocked
        except Exception as error:  # noqa: BLE001 - the next heartbeat tries it again
            log.warning("worker: its row could not be marked as blocked or not: %s", error)

    def _note(self, silent: float | None) -> bool:
        """Write into the worker's row whether it is blocked. None: it is not. False: the row is locked."""
        since = by = None
        if silent is not None:
            self._database.clock.measure()
            since, by = self._database.clock.at(self._board.answered), _named(self._blockers())
        note = partial(workers.note_blocked, worker_id=self._board.worker_id, since=since, by=by)
        if not self._database.write(note):
            return False
        if silent is None:
            log.warning("worker: answers again")
        else:
            log.warning("worker: has not answered for %s, blocked by %s", span(silent), by)
        return True

    def _blockers(self) -> list[int]:
        """The runs that may hold up the worker: those on threads that use the processor, or else all.

        A thread that waits for Python's lock wakes up again and again, and uses a little of it, too.
        """
        entered = self._board.entered()
        before = {thread: self._ticks(thread) for _, thread in entered}
        used = dict.fromkeys(before, 0)
        for _ in range(SAMPLES):
            time.sleep(SAMPLE_SECONDS)
            used = {thread: self._ticks(thread) - ticks for thread, ticks in before.items()}
            if max(used.values(), default=0) >= ENOUGH_TICKS:
                break
        most = max(used.values(), default=0)
        return sorted(instance for instance, thread in entered if 2 * used[thread] > most or most <= 0)

    def _ticks(self, thread: int) -> int:
        """The processor time of a thread of the worker (fields 14 and 15 of stat, proc(5)). 0: it has ended."""
        try:
            stat = Path(f"/proc/{self._worker}/task/{thread}/stat").read_bytes()
        except OSError:
            return 0
        return sum(map(int, stat.rpartition(b")")[2].split()[11:13]))

    def _leave(self, status: int) -> None:
        """Mark the row of a worker dead that has ended. The scheduler's next pass then recovers what it held."""
        if not self._board.worker_id:
            if self._board.registering:
                self._attempt(lambda: bury_the_gone(self._database, by="guardian"))
            return
        select.select([self._groups_ended], [], [], GROUPS_SECONDS)
        if self._lease is not None:
            self._lease.stop()
            self._lease.join(LAST_BEAT_SECONDS)
            if self._lease.is_over:  # others have declared it dead, or will
                return
        bury = partial(
            workers.bury,
            worker_ids=[self._board.worker_id],
            reason=self._lost or _ending(status),
            by="guardian",
            culprits=self._culprits,
        )
        self._attempt(lambda: self._bury(bury))

    def _bury(self, bury: Callable[[Connection], int]) -> None:
        for _ in range(BURY_TRIES):
            if self._database.write(bury):
                return
            time.sleep(BURY_PAUSE_SECONDS)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the scheduler declares it dead when its lease is over
            log.warning("worker: its row could not be marked dead: %s", error)


def _named(instances: list[int]) -> str:
    """The runs that may hold up a worker, in words."""
    if not instances:
        return "no run"
    if len(instances) == 1:
        return f"instance {instances[0]}"
    more = f" or {len(instances) - NAMED} others" if len(instances) > NAMED else ""
    return f"one of the instances {', '.join(map(str, instances[:NAMED]))}{more}"


def _ending(status: int) -> str:
    """Why a worker is dead that ended with this exit status; negative for a signal."""
    if status == 0:
        return workers.STOPPED
    if status > 0:
        return f"its process ended with exit code {status}"
    return f"its process was killed by {signal_name(-status)}"
