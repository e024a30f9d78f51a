"""The health file: a process writes it at each heartbeat, and a container's health check reads it."""

from pathlib import Path


def beat(path: str | None, now: float) -> None:
    """Record in the file ``path`` that this process is alive at ``now`` (CLOCK_BOOTTIME seconds); None: no file."""
    if path is not None:
        fresh = Path(f"{path}.new")
        fresh.write_text(f"{now!r}\n", encoding="ascii")
        fresh.replace(path)  # atomic, so that no reader sees half of the text


def silent_seconds(path: str, now: float) -> float | None:
    """Seconds from the last heartbeat in the file to ``now`` (CLOCK_BOOTTIME seconds).

    None if the process has not written the file since the host's start.
    """
    try:
        silent = now - float(Path(path).read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None
    return silent if silent >= 0 else None
