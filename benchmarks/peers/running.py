"""A peer at work: filled, started in its own environment, watched until all started or its time is up, and ended."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks import record
from benchmarks.cpu import Meter
from benchmarks.environments import PEERS
from benchmarks.evidence import Records, WrongRun
from benchmarks.lab import Lab
from benchmarks.load import READY, STORE, Load
from benchmarks.peers.stores import Store, StoreOf
from benchmarks.servers import program
from tests.harness.processes import ROOT, RotaProcess

FILL_SECONDS = 180.0
START_SECONDS = 60.0

QUIET_SECONDS = 10.0
"""With no new start for so long, after all were due, nothing more is expected of a peer."""

LAST_WRITES_SECONDS = 1.0
"""What the completion of the last jobs, and a second start of some, are waited for."""


@dataclass(frozen=True, slots=True)
class Peer:
    """How a peer is run: its folder, which names its environment, its store, and the arguments of its interpreter.

    Peer("huey", stores.redis, processes=(("-m", "huey.bin.huey_consumer", "program.huey"),))
    """

    folder: str
    store: StoreOf
    processes: tuple[tuple[str, ...], ...]
    fill: tuple[str, ...] | None = ("program.py", "fill")
    """What fills the store before the processes start; None: they read their schedules from their own code."""
    settings: Mapping[str, str] = field(default_factory=dict)
    fill_seconds_per_1_000: float = 0.5
    """What to allow for it before the first schedule is due."""
    drops_late: bool = False
    """Whether it is set to drop what is late: that it starts nothing at all is then a finding, not a failed run."""

    @property
    def place(self) -> Path:
        """Its programs."""
        return PEERS / self.folder


class Run:
    """A peer over a fresh store, with a load.

    with running(lab, peer, lambda: Load("herd", 1_000, due_soon(peer, 1_000))) as run:
        run.fill(); run.start(); run.wait(until)
    """

    def __init__(
        self, peer: Peer, load: Load, store: Store, *, records: Records, environment: "Interpreter", folder: Path
    ) -> None:
        self.peer = peer
        self.store = store
        self.records = records
        self.load = load
        self._folder = folder
        self._interpreter = environment
        self._stack = ExitStack()
        self._numbers = itertools.count(1)
        self._processes: list[RotaProcess] = []

    def end(self) -> None:
        """Kill all its processes and theirs."""
        self._stack.close()

    def fill(self) -> None:
        """Let it have its jobs or schedules; returns when they are stored."""
        if self.peer.fill is not None:
            filling = self._spawn(self.peer.fill)
            if filling.wait_exit(FILL_SECONDS) != 0:
                raise WrongRun(f"could not be filled: {filling.log_tail()}")

    def spawn(self) -> None:
        """Start its processes."""
        self._processes = [self._spawn(arguments) for arguments in self.peer.processes]

    def start(self) -> None:
        """Start its processes and wait until each says that it is at work."""
        self.spawn()
        for process in self._processes:
            process.wait_for_log(READY, START_SECONDS)

    def ask(self, arguments: Sequence[str]) -> None:
        """Start the program that asks for jobs while its processes are at work."""
        self._spawn(arguments)

    def wait(self, deadline: float) -> None:
        """Wait until all have started, until nothing more comes, or until that time (seconds since the epoch)."""
        before, changed = -1, time.time()
        while time.time() < deadline and not self._all_started():
            count = self.records.count()
            if count != before:
                before, changed = count, time.time()
            if time.time() > max(changed, self.load.last_due) + QUIET_SECONDS:
                break
            self._check_alive()
            time.sleep(0.05)
        time.sleep(LAST_WRITES_SECONDS)
        if self.records.count() == 0 and not self.peer.drops_late:
            raise WrongRun(f"it started nothing: {self.log_tail()}")

    def wait_first(self, deadline: float) -> None:
        """Wait until anything has started."""
        while self.records.count() == 0:
            self._check_alive()
            if time.time() > deadline:
                raise WrongRun(f"it started nothing: {self.log_tail()}")
            time.sleep(0.01)

    def costs(self) -> tuple[Meter, Meter]:
        """Meters of the peer's processes and of its server, from now on."""
        return Meter([process.pid for process in self._processes]), Meter([self.store.pid])

    def megabytes(self) -> float:
        """The memory of its processes, children included; what they share counts once."""
        trees = [psutil.Process(process.pid) for process in self._processes]
        return sum(one.memory_full_info().pss for tree in trees for one in (tree, *tree.children(recursive=True))) / 1e6

    def log_tail(self) -> str:
        """The ends of the logs of its processes."""
        return "\n".join(process.log_tail() for process in self._processes)

    def _all_started(self) -> bool:
        if self.records.count() < self.load.count:
            return False
        return len({start.key for start in self.records.starts()}) >= self.load.count

    def _check_alive(self) -> None:
        if not all(process.alive for process in self._processes):
            raise WrongRun(f"a process ended: {self.log_tail()}")

    def _spawn(self, arguments: Sequence[str]) -> RotaProcess:
        environment = {
            **self._interpreter.environment,
            **self.peer.settings,
            **self.load.environment(),
            STORE: self.store.url,
            record.FOLDER: str(self.records.folder),
        }
        command = (self._interpreter.program, *self._located(arguments))
        log = self._folder / f"{next(self._numbers)}.log"
        process = RotaProcess(environment=environment, cwd=self._folder, command=command, log=log)
        self._stack.callback(process.discard)
        return process.start()

    def _located(self, arguments: Sequence[str]) -> list[str]:
        """The arguments, those that name a file of the peer with its path."""
        return [str(self.peer.place / one) if (self.peer.place / one).is_file() else one for one in arguments]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What runs a peer's programs, and how it finds the peer's libraries and ours."""

    program: str
    environment: Mapping[str, str]


def interpreter(lab: Lab, peer: Peer) -> Interpreter:
    """The one of the peer's environment, made at the first use."""
    if (peer.place / "package.json").exists():
        modules = lab.environments.node_modules(peer.folder) / "node_modules"
        return Interpreter(program("node"), {"NODE_PATH": str(modules)})
    return Interpreter(str(lab.environments.python(peer.folder)), {"PYTHONPATH": f"{ROOT}:{peer.place}"})


@contextmanager
def running(lab: Lab, peer: Peer, plan: Callable[[], Load]) -> Iterator[Run]:
    """The peer, not yet filled or started; all its processes are dead after the block.

    The plan is asked once its environment and its store are there, so that it can say when the load is due.
    """
    environment = interpreter(lab, peer)
    with (
        peer.store(lab) as store,
        lab.records() as records,
        TemporaryDirectory(dir=lab.folder) as folder,
        ExitStack() as stack,
    ):
        run = Run(peer, plan(), store, records=records, environment=environment, folder=Path(folder))
        stack.callback(run.end)
        yield run


def due_soon(peer: Peer, count: int) -> float:
    """The next whole second by which a peer can be filled and started."""
    return math.ceil(time.time() + 5 + peer.fill_seconds_per_1_000 * count / 1_000)
