"""A command as a process group of its own: started, read, terminated; at its end nothing of the group is left."""

import asyncio
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from worker_service import children

TERM_SECONDS = 5.0
"""From SIGTERM to SIGKILL."""

LINGER_SECONDS = 1.0
"""How long output is awaited that others still hold open when the command itself has ended."""

TAIL_BYTES = 1000
READ_BYTES = 65_536


class Output:
    """What a pipe brought: the first ``limit`` bytes, and the last few; the rest is read and discarded."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._tail = b""
        self.truncated = False

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self.truncated = self.truncated or len(data) > room
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]

    @property
    def text(self) -> str:
        """The beginning, as UTF-8; what is not UTF-8 is replaced."""
        return self._kept.decode("utf-8", "replace")

    @property
    def tail(self) -> str:
        """The end, as UTF-8, without blank ends."""
        return self._tail.decode("utf-8", "replace").strip()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit status, negative for a signal, and its output."""

    status: int
    stdout: Output
    stderr: Output


async def run_command(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: str | None,
    stdin: str | None,
    timeout_seconds: float,
    max_output_bytes: int,
) -> Ended:
    """Run a command to its end.

    Raises TimeoutError when its time is over; then, and when it is canceled, its group is terminated, and killed after
    ``TERM_SECONDS``. What is left of its group when it has ended by itself is killed. Raises OSError where it cannot be
    started.
    """
    command = Command(_started(arguments, environment, cwd, stdin), max_output_bytes)
    try:
        async with asyncio.timeout(timeout_seconds):
            await command.exited.wait()
    finally:
        status = await command.close()
    return Ended(status, command.stdout, command.stderr)


def _started(
    arguments: Sequence[str], environment: Mapping[str, str], cwd: str | None, stdin: str | None
) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as given:  # a file, since a pipe that the command does not read would block
        if stdin is not None:
            given.write(stdin.encode())
            given.seek(0)
        process = subprocess.Popen(  # noqa: S603 - that is what the node is for
            arguments,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    children.register(process.pid)
    return process


class Command:
    """A running command, on the event loop.

    Its leader is reaped last: until then its number, by which the group is signalled, cannot become another's.
    """

    def __init__(self, process: subprocess.Popen[bytes], max_output_bytes: int) -> None:
        self.stdout = Output(max_output_bytes)
        self.stderr = Output(max_output_bytes)
        self.exited = asyncio.Event()
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._released = False
        self._read_to_end = asyncio.Event()
        self._pipes: set[IO[bytes]] = set()
        for pipe, output in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._pipes.add(pipe)
                self._loop.add_reader(pipe.fileno(), self._read, pipe, output)
        threading.Thread(target=self._watch, name=f"command-{process.pid}", daemon=True).start()

    async def close(self) -> int:
        """End it and all of its group, and return its exit status; canceled meanwhile, it kills at once."""
        group = self._process.pid
        try:
            if self.exited.is_set():
                await _within(LINGER_SECONDS, self._read_to_end)
            else:
                children.kill_group(group, signal.SIGTERM)
                await self._gone()
        finally:
            children.kill_group(group)
            try:
                await _within(TERM_SECONDS, self.exited)
                await _within(LINGER_SECONDS, self._read_to_end)
            finally:
                status = self._release()
        return status

    async def _gone(self) -> None:
        """Until nothing of the group lives, or the time between SIGTERM and SIGKILL is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TERM_SECONDS):
                await self.exited.wait()
                while await asyncio.to_thread(lives, self._process.pid):  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.05)

    def _release(self) -> int:
        for pipe in list(self._pipes):
            self._end(pipe)
        self._released = True
        return self._reap() if self.exited.is_set() else -signal.SIGKILL

    def _reap(self) -> int:
        children.forget(self._process.pid)
        return self._process.wait()

    def _read(self, pipe: IO[bytes], output: Output) -> None:
        try:
            data = os.read(pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        output.feed(data)
        if not data:
            self._end(pipe)

    def _end(self, pipe: IO[bytes]) -> None:
        self._loop.remove_reader(pipe.fileno())
        pipe.close()
        self._pipes.discard(pipe)
        if not self._pipes:
            self._read_to_end.set()

    def _watch(self) -> None:
        """On a thread of its own: see the leader end, without reaping it."""
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._see_exit)

    def _see_exit(self) -> None:
        self.exited.set()
        if self._released:  # it hung in the kernel for a while, or nobody had the time to wait
            self._reap()


async def _within(seconds: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def lives(group: int) -> bool:
    """Whether a process of the group runs: its leader, unreaped, would still answer to signal 0. From /proc, stat."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, _, of_group, *_ = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                if int(of_group) == group and state not in b"ZX":
                    return True
    return False
