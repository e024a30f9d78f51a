"""A small file that a process writes as it beats, so that a container's health check can ask about this process."""

from pathlib import Path

from shared.clock import boottime


def beat(path: str | None) -> None:
    """Write down that this process is alive now; None: nobody asks."""
    if path is not None:
        fresh = Path(f"{path}.new")
        fresh.write_text(f"{boottime()!r}\n", encoding="ascii")
        fresh.replace(path)  # so that nobody reads half of it


def silent_seconds(path: str) -> float | None:
    """How long ago the process of this file has beaten, in seconds; None if it never has since the host's start."""
    try:
        silent = boottime() - float(Path(path).read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None
    return silent if silent >= 0 else None
