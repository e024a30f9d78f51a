"""The file that says that a process is alive."""

from pathlib import Path

import pytest

from rota.shared import health


def test_the_silence_counts_from_the_last_beat(tmp_path: Path) -> None:
    path = str(tmp_path / "beat")
    health.beat(path, 100.0)
    health.beat(path, 120.0)
    assert health.silent_seconds(path, 127.0) == pytest.approx(7)


@pytest.mark.parametrize("content", [None, "", "not a number"])
def test_without_a_beat_nothing_is_claimed(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "beat").write_text(content)
    assert health.silent_seconds(str(tmp_path / "beat"), 100.0) is None


def test_a_beat_before_the_host_started_is_none(tmp_path: Path) -> None:
    health.beat(str(tmp_path / "beat"), 100.0)
    assert health.silent_seconds(str(tmp_path / "beat"), 5.0) is None


def test_a_beat_is_never_seen_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "beat"
    health.beat(str(path), 100.0)
    write = Path.write_text

    def watched(target: Path, *args: str, **kwargs: str) -> int:
        written = write(target, "", **kwargs)
        assert health.silent_seconds(str(path), 100.0) is not None
        return written and write(target, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", watched)
    health.beat(str(path), 100.0)


def test_where_nobody_asks_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    health.beat(None, 100.0)
    assert list(tmp_path.iterdir()) == []
