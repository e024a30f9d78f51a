"""What the benchmark runs on: the processor, the memory, the disk of the databases, and what a flush of it costs."""

import os
import platform
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.evidence import quantile

FLUSHES = 300
FLUSHED_BYTES = 4096


def machine() -> dict[str, str]:
    """The facts about this machine, in the words of the report."""
    folder = Path(tempfile.gettempdir()).resolve()  # where the lab's servers have their data
    return {
        "CPU": f"{processor()}, {os.cpu_count()} cores{', virtual machine' if _is_virtual() else ''}",
        "RAM": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "disk": f"{filesystem(folder)}, {psutil.disk_usage(str(folder)).total / 2**30:.0f} GiB",
        "flush": flush_cost(folder),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def processor() -> str:
    """The model of the CPU."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def filesystem(folder: Path) -> str:
    """The file system that a folder is on, and its device."""
    mounts = [mount for mount in psutil.disk_partitions(all=True) if folder.is_relative_to(mount.mountpoint)]
    if not mounts:
        return "unknown"
    nearest = max(mounts, key=lambda mount: len(Path(mount.mountpoint).parts))
    return f"{nearest.fstype} on {nearest.device}"


def flush_cost(folder: Path) -> str:
    """What one durable write costs here: a page appended to a file, and fdatasync."""
    page, took = os.urandom(FLUSHED_BYTES), []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(FLUSHES):
            file.write(page)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    took.sort()
    median, most = quantile(took, 0.5), quantile(took, 0.99)
    return f"fdatasync after a 4 KiB write: {median:.2f} ms at the median, {most:.2f} ms at p99 (n={FLUSHES})"


def _is_virtual() -> bool:
    return "hypervisor" in (_cpuinfo("flags") or "").split()


def _cpuinfo(name: str) -> str | None:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), None)
