"""The file that says that a process is alive."""

from pathlib import Path

import pytest

from shared import health


@pytest.fixture
def uptime(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds since boot, to be set."""
    seconds = [100.0]
    monkeypatch.setattr(health, "boottime", lambda: seconds[0])
    return seconds


def test_the_silence_counts_from_the_last_beat(tmp_path: Path, uptime: list[float]) -> None:
    path = str(tmp_path / "beat")
    health.beat(path)
    uptime[0] += 20
    health.beat(path)
    uptime[0] += 7
    assert health.silent_seconds(path) == pytest.approx(7)


@pytest.mark.parametrize("content", [None, "", "not a number"])
def test_without_a_beat_nothing_is_claimed(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "beat").write_text(content)
    assert health.silent_seconds(str(tmp_path / "beat")) is None


def test_a_beat_before_the_host_started_is_none(tmp_path: Path, uptime: list[float]) -> None:
    health.beat(str(tmp_path / "beat"))
    uptime[0] = 5
    assert health.silent_seconds(str(tmp_path / "beat")) is None


def test_a_beat_is_never_seen_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "beat"
    health.beat(str(path))
    write = Path.write_text

    def watched(target: Path, *args: str, **kwargs: str) -> int:
        written = write(target, "", **kwargs)
        assert health.silent_seconds(str(path)) is not None
        return written and write(target, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", watched)
    health.beat(str(path))


def test_where_nobody_asks_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    health.beat(None)
    assert list(tmp_path.iterdir()) == []
