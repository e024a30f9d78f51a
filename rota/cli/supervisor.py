"""The supervisor of ``rota up``: child processes that are started again when they die, and never outlive it."""

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from shared.clock import boottime

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 30.0
"""A child that ran for so long was well: its next pause is the first again."""

KILL_SECONDS = 5.0
"""Beyond their grace time, until children are killed."""


@dataclass
class Child:
    """One child: what it is, and its process while it runs. ``command`` must take ``--parent-pipe``."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    pause: float = field(default=FIRST_PAUSE_SECONDS)

    @property
    def pid(self) -> int | None:
        """Its process id, if it has been started."""
        return None if self.process is None else self.process.pid

    def exit_code(self) -> int | None:
        """Its exit code if it has ended (minus the signal's number, if one ended it)."""
        return None if self.process is None else self.process.poll()


class Supervisor:
    """Keeps children running until a signal says stop.

    Each child is in a session of its own, so that Ctrl-C reaches it as one SIGTERM from here, and holds the reading
    end of a pipe that nobody writes to: however this process ends, the kernel closes the other end and the child
    stops (rota/cli/parent.py).
    """

    def __init__(self, children: Sequence[Child], grace_seconds: float, say: Callable[[str], None]) -> None:
        self._children = children
        self._grace_seconds = grace_seconds
        self._say = say
        self._signals = 0
        self._asked = False
        self._lifeline, self._held = os.pipe()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def run(self, step: Callable[[], None], rest_seconds: float) -> None:
        """Run the children until SIGINT, SIGTERM or SIGHUP, then stop them; ``step`` is run all the while.

        SIGTERM to every child, SIGKILL at a second signal or after the grace time; returns when all have ended.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            while not self._signals:
                self._look_after()
                step()
                if not self._signals:
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
        if not self._asked:  # a second SIGTERM would stop a worker at once
            self._signal_all(signal.SIGTERM)
        self._asked = True
        deadline = boottime() + self._grace_seconds + KILL_SECONDS
        while self._running():
            if self._signals > 1 or boottime() > deadline:
                self._signal_all(signal.SIGKILL)
            step()
            self._rest(rest_seconds)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _rest(self, seconds: float) -> None:
        """Until a signal comes, at most so long."""
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
        child.started_at = boottime()

    def _look_after(self) -> None:
        """Start again what has ended, after a pause that grows while it keeps ending soon."""
        now = boottime()
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

    def _running(self) -> list[Child]:
        return [child for child in self._children if child.process is not None and child.process.poll() is None]

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._running():
            if child.process is not None:
                child.process.send_signal(number)


def ending(code: int) -> str:
    """An exit code in words."""
    return f"exit code {code}" if code >= 0 else f"{signal.Signals(-code).name} (exit code {code})"
