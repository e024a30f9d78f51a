"""Runs a command in a process group of its own, and reads its output. At the end, no process of the group is left."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rota.worker_service import process_groups

GATE = str(Path(__file__).resolve().with_name("gate.py"))

LINGER_SECONDS = 1.0
"""How long to wait for output after a command has ended: processes that it started may still hold the pipe open."""

TAIL_BYTES = 1000
LAST_BYTES = 8192
"""How much of the end of each output a failure keeps."""

READ_BYTES = 65_536

LOOKS = ThreadPoolExecutor(2, thread_name_prefix="groups")
"""Looks whether processes of killed groups live."""


class Output:
    """The output of one pipe: its first ``limit`` bytes and its last ``LAST_BYTES``. The rest is discarded."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._end = b""
        self.bytes_read = 0
        self.truncated = False

    def feed(self, data: bytes) -> None:
        """Add bytes that were read."""
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self.truncated = self.truncated or len(data) > room
        self._end = (self._end + data[-LAST_BYTES:])[-LAST_BYTES:]
        self.bytes_read += len(data)

    @property
    def text(self) -> str:
        """The first bytes, decoded as UTF-8. Bytes that are not UTF-8 are replaced."""
        return self._kept.decode("utf-8", "replace")

    @property
    def tail(self) -> str:
        """The last bytes, decoded as UTF-8, without blanks around them."""
        return self._end[-TAIL_BYTES:].decode("utf-8", "replace").strip()

    @property
    def last(self) -> str:
        """The last bytes that a failure keeps, ``limit`` at most, decoded as UTF-8."""
        return self._end[-self._limit :].decode("utf-8", "replace") if self._limit else ""

    @property
    def last_is_all(self) -> bool:
        """Whether ``last`` is the whole output."""
        return self.bytes_read <= min(self._limit, LAST_BYTES)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit status, negative for a signal, and its output."""

    status: int
    stdout: Output
    stderr: Output
    timed_out: bool
    """Whether it was terminated because its time was over."""


class CommandStopped(asyncio.CancelledError):
    """The call was canceled, and the command with it; ``ended`` is how it ended."""

    def __init__(self, ended: Ended) -> None:
        super().__init__()
        self.ended = ended


async def run_command(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: str | None,
    stdin: str | None,
    timeout_seconds: float,
    grace_seconds: float,
    max_output_bytes: int,
) -> Ended:
    """Run a command to its end.

    At its timeout and when it is canceled, its process group gets SIGTERM, and after ``grace_seconds`` SIGKILL. Then no
    process of the group is left. When the command has ended by itself, the rest of its group is killed.

    Raises OSError when the command cannot be started, and CommandStopped when this call is canceled.
    """
    with _held_back(arguments, environment, cwd, stdin) as (process, gate):
        command, timed_out = Command(process, max_output_bytes), False
        try:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await _begin(gate, arguments[0])
                    await command.exited.wait()
            except TimeoutError:
                timed_out = True
            finally:
                await command.close(grace_seconds)
        except asyncio.CancelledError:
            raise CommandStopped(command.ended()) from None
    return command.ended(timed_out=timed_out)


@contextmanager
def _held_back(
    arguments: Sequence[str], environment: Mapping[str, str], cwd: str | None, stdin: str | None
) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The command's process, registered, and the gate behind which the process waits until it may begin."""
    ours, theirs = socket.socketpair()
    with (
        ours,
        tempfile.TemporaryFile() as given,  # a file, since a pipe that the command does not read would block
        open(os.memfd_create("environment"), "w+b") as variables,  # noqa: PTH123 - a number, not a path
    ):
        for name, value in environment.items():
            variables.write(os.fsencode(f"{name}={value}\0"))
        variables.seek(0)
        if stdin is not None:
            given.write(stdin.encode())
            given.seek(0)
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - running commands is the purpose of this node
                [sys.executable, "-I", "-S", GATE, str(theirs.fileno()), str(variables.fileno()), *arguments],
                env=process_groups.environment(),
                cwd=cwd,
                stdin=subprocess.DEVNULL if stdin is None else given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=[theirs.fileno(), variables.fileno()],
            )
        try:
            process_groups.register(process.pid)
        except BaseException:
            process.kill()
            process.wait()
            raise
        yield process, ours


async def _begin(gate: socket.socket, program: str) -> None:
    """Let the command begin. Raises OSError if the program cannot be run."""
    gate.setblocking(False)
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):  # it has been killed
        await loop.sock_sendall(gate, b"!")
        if number := await loop.sock_recv(gate, 16):
            raise OSError(int(number), os.strerror(int(number)), program)


class Command:
    """A running command, on the event loop.

    Its leader is reaped last. Until then the group's number, which signals are sent to, cannot become another's.
    """

    def __init__(self, process: subprocess.Popen[bytes], max_output_bytes: int) -> None:
        self.stdout = Output(max_output_bytes)
        self.stderr = Output(max_output_bytes)
        self.exited = asyncio.Event()
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._released = False
        self._status = -signal.SIGKILL
        self._read_to_end = asyncio.Event()
        self._pipes: set[IO[bytes]] = set()
        for pipe, output in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._pipes.add(pipe)
                self._loop.add_reader(pipe.fileno(), self._read, pipe, output)
        watch = threading.Thread(target=self._watch, name=f"command-{process.pid}", daemon=True)
        try:
            watch.start()
        except BaseException:
            for pipe in list(self._pipes):
                self._end(pipe)
            process.kill()  # it waits behind its gate, alone in its group
            self._reap()
            raise

    def ended(self, *, timed_out: bool = False) -> Ended:
        """How it ended. Call it after ``close``."""
        return Ended(self._status, self.stdout, self.stderr, timed_out)

    async def close(self, grace_seconds: float) -> None:
        """End the command and its group. When this call is canceled, it kills them at once."""
        group, ended_by_itself = self._process.pid, self.exited.is_set()
        try:
            if ended_by_itself:
                await _within(LINGER_SECONDS, self._read_to_end)
            else:
                process_groups.kill_group(group, signal.SIGTERM)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._gone(), grace_seconds)
        finally:
            process_groups.kill_group(group)
            try:
                if not ended_by_itself:
                    await self._killed()
                await _within(LINGER_SECONDS, self._read_to_end)
            finally:
                self._release()

    async def _killed(self) -> None:
        """Wait until the group that was killed is gone. A further cancel does not end the wait."""
        gone = asyncio.ensure_future(self._gone())
        while not gone.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([gone])

    async def _gone(self) -> None:
        """Wait until no process of the group lives."""
        await self.exited.wait()
        while await self._lives():  # noqa: ASYNC110 - no event says it
            await asyncio.sleep(0.05)

    async def _lives(self) -> bool:
        """Whether a process of the group lives. The loop's own threads may all be taken by handlers."""
        try:
            return await asyncio.get_running_loop().run_in_executor(LOOKS, process_groups.lives, self._process.pid)
        except RuntimeError:  # the machine has no thread for it now
            return True

    def _release(self) -> None:
        for pipe in list(self._pipes):
            self._end(pipe)
        self._released = True
        if self.exited.is_set():
            self._reap()

    def _reap(self) -> None:
        process_groups.forget(self._process.pid)
        self._status = self._process.wait()

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
        """Wait for the leader's end without reaping it. Runs on a thread of its own."""
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._see_exit)

    def _see_exit(self) -> None:
        self.exited.set()
        if self._released:  # it ended only after close had stopped waiting for it
            self._reap()


async def _within(seconds: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
