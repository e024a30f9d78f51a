"""Times as people read them at the command line."""

from datetime import datetime, timedelta

import pytest

from rota.cli.commands.up import line
from rota.cli.show.times import moment_of, relative
from rota.shared.domain.times import written_utc

NOON = datetime.fromisoformat("2026-11-21 12:00:00")


@pytest.mark.parametrize(
    ("started", "late"),
    [
        ("2026-11-21T12:00:00.012000Z", "+12 ms"),
        ("2026-11-21T12:00:49.600000Z", "+49.6 s"),
        ("2026-11-21T12:02:03Z", "+2 min 3 s"),
        ("2026-11-21T11:59:59.500000Z", "-500 ms"),
        (None, "-"),
    ],
)
def test_the_line_of_a_fire_says_in_words_how_late_it_was_and_how_long_it_took(started: str | None, late: str) -> None:
    times = {"gmt_started": started, "gmt_completed": "2026-11-21T12:05:00Z", "due_at": "2026-11-21T12:00:00Z"}
    fire = {**times, "task_name": "daily", "timezone": "UTC", "status": "succeed", "worker_name": "w", "reason": None}
    shown = line({**fire, "schedule_datetime": times["due_at"], "execution_result": None})
    assert shown.split("  ")[-3] == late


@pytest.mark.parametrize(
    ("seconds", "words"), [(180, "in 3 min"), (0.4, "now"), (-0.4, "just now"), (-7200, "2 h ago"), (2.6, "in 3 s")]
)
def test_relative_times_say_the_direction(seconds: float, words: str) -> None:
    assert relative(NOON + timedelta(seconds=seconds), NOON) == words


def test_a_documents_time_is_read_back() -> None:
    assert moment_of(written_utc(NOON)) == NOON
    assert moment_of(None) is None
