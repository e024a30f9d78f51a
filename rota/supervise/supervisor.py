"""The supervisor of ``rota up``: it restarts children that die. When the supervisor dies, its children stop."""

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from rota.shared.clock import Timer
from rota.shared.signals import signal_name
from rota.supervise.family import kill_family
from rota.supervise.parent import AFTER_GRACE_SECONDS

MOST_WORKERS = 64
"""So many workers are children of one supervisor at most."""

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
KILLS_FIRST_SECONDS = 10.0
"""A supervisor without its own parent is killed so much later than it kills what its children still run."""

PARENT_GONE = signal.SIGUSR1
"""The signal by which a supervisor learns that its own parent is gone. Unlike a second SIGTERM it kills nothing."""

STEADY_SECONDS = 30.0
"""When a child has run for so long, the pause before its next restart is the shortest again."""


@dataclass
class Child:
    """One child: its command, and its process while it runs. ``command`` must accept ``--parent-pipe``."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    pause: float = field(default=FIRST_PAUSE_SECONDS)

    @property
    def pid(self) -> int | None:
        """The child's process id. None: it is not started."""
        return None if self.process is None else self.process.pid

    def exit_code(self) -> int | None:
        """The child's exit code. None: it has not ended. Negative: the number of the signal that ended it."""
        return None if self.process is None else self.process.poll()


class Supervisor:
    """Keeps children running until a signal says stop.

    Each child runs in a session of its own. So Ctrl-C does not reach a child; the supervisor sends it one SIGTERM.

    Each child also holds the reading end of a pipe that nobody writes to. However this process ends, the kernel closes
    the other end, and the child stops (rota/supervise/parent.py).
    """

    def __init__(
        self, children: Sequence[Child], grace_seconds: float, say: Callable[[str], None], timer: Timer
    ) -> None:
        self._children = children
        self._grace_seconds = grace_seconds
        self._say = say
        self._timer = timer
        self._signals = 0
        self._is_parent_gone = False
        self._sigterm_sent = False
        self._lifeline, self._held = os.pipe()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def run(self, step: Callable[[], None], rest_seconds: float) -> None:
        """Keep the children running until SIGINT, SIGTERM or SIGHUP, then stop them. Returns when all have ended.

        To stop, every child gets SIGTERM. At a second signal, or ``AFTER_GRACE_SECONDS`` after the grace time, it gets
        SIGKILL, and with it what it has started (``kill_family``). ``step`` is called again and again, with
        ``rest_seconds`` between two calls.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(PARENT_GONE, self._on_parent_gone)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            while not self._must_stop():
                self._restart_ended()
                step()
                if not self._must_stop():
                    self._rest(rest_seconds)
            self._say("stopping; once more kills what still runs")
            self._stop(step, rest_seconds)
            step()
        finally:
            self._stop(lambda: None, rest_seconds)
            signal.set_wakeup_fd(-1)

    def start(self) -> None:
        """Start every child."""
        for child in self._children:
            self._start(child)

    def _stop(self, step: Callable[[], None], rest_seconds: float) -> None:
        if not self._sigterm_sent:  # a second SIGTERM would end a worker's grace time
            for process in self._running():
                process.terminate()
        self._sigterm_sent = True
        deadline = self._timer.monotonic() + self._grace_seconds + AFTER_GRACE_SECONDS
        while self._running():
            if self._signals > 1 or self._timer.monotonic() > deadline:
                for process in self._running():
                    kill_family(process.pid)
            step()
            self._rest(rest_seconds)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _on_parent_gone(self, number: int, frame: FrameType | None) -> None:
        self._is_parent_gone = True

    def _must_stop(self) -> bool:
        return self._is_parent_gone or self._signals > 0

    def _rest(self, seconds: float) -> None:
        """Wait until a signal comes, or so many seconds."""
        ready, _, _ = select.select([self._woken], [], [], seconds)
        if ready:
            os.read(self._woken, 4096)

    def _start(self, child: Child) -> None:
        child.process = subprocess.Popen(  # noqa: S603 - our own command, and no shell
            [*child.command, "--parent-pipe", str(self._lifeline)],
            env=dict(child.environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[self._lifeline],
        )
        child.started_at = self._timer.monotonic()

    def _restart_ended(self) -> None:
        """Restart the children that have ended, after a pause. The pause doubles while a child keeps ending soon."""
        now = self._timer.monotonic()
        for child in self._children:
            if (code := child.exit_code()) is not None:
                if now - child.started_at > STEADY_SECONDS:
                    child.pause = FIRST_PAUSE_SECONDS
                self._say(f"{child.name} ({child.pid}) ended with {ending(code)}; it starts again in {child.pause:g} s")
                child.process, child.start_at = None, now + child.pause
                child.pause = min(child.pause * 2, LONGEST_PAUSE_SECONDS)
            elif child.process is None and now >= child.start_at:
                self._start(child)
                self._say(f"{child.name} ({child.pid}) is started again")

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [one.process for one in self._children if one.process is not None and one.process.poll() is None]


def ending(code: int) -> str:
    """An exit code in words."""
    return f"exit code {code}" if code >= 0 else f"{signal_name(-code)} (exit code {code})"
