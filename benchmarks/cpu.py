"""CPU seconds of processes and their children, and the share of this machine's CPU time that its host took (steal)."""

import time
from collections.abc import Iterable

import psutil


class Meter:
    """CPU seconds of some process trees, counted since this meter was made. Later children count from their start.

    meter = Meter([server.pid]); ...; meter.seconds()
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._before = self._total()

    def seconds(self) -> float:
        """CPU seconds, user and system, since it was made."""
        return self._total() - self._before

    def _total(self) -> float:
        return sum(_seconds(process) for pid in self._pids for process in _alive(pid))


class Steal:
    """The share of this machine's CPU time that its host gave to others, since this meter was made.

    steal = Steal(); ...; steal.share()   # 0.03
    """

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def share(self) -> float | None:
        """The part, of all cores' time; None where the kernel does not tell."""
        now = psutil.cpu_times()
        passed = sum(now[:8]) - sum(self._before[:8])  # guests' time is in the users'
        return (now.steal - self._before.steal) / passed if passed and hasattr(now, "steal") else None


def _seconds(process: psutil.Process) -> float:
    """What a process has used, to the nanosecond (clock_getcpuclockid(3): /proc has hundredths of a second, which is
    as much as an idle one uses in a second), and what its children had that are gone."""
    gone = process.cpu_times()
    return time.clock_gettime(~process.pid << 3 | 2) + gone.children_user + gone.children_system


def _alive(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]
