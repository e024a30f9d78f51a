"""A small file that a process writes as it beats, so that a container's health check can ask about this process."""

from pathlib import Path

from shared.clock import boottime


def beat(path: str | None) -> None:
    """Write down that this process is alive now; None: nobody asks."""
    if path is not None:
        Path(path).write_text(f"{boottime():.3f}\n", encoding="ascii")


def silent_seconds(path: str) -> float | None:
    """How long ago the process of this file has beaten, in seconds; None if it never has."""
    try:
        return boottime() - float(Path(path).read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None
