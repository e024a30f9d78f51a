"""Times as people read them at the command line."""

from datetime import datetime, timedelta

import pytest

from rota.cli.show.times import moment_of, relative, span
from rota.shared.domain.times import written_utc

NOON = datetime.fromisoformat("2026-11-21 12:00:00")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (0.0123, "12 ms"),
        (1, "1 s"),
        (1.25, "1.2 s"),
        (59.96, "60 s"),
        (60, "1 min"),
        (61.4, "1 min 1 s"),
        (3599.7, "1 h"),
        (3720, "1 h 2 min"),
        (90_000, "1 d 1 h"),
        (86_460, "1 d"),
        (-0.5, "-500 ms"),
    ],
)
def test_a_span_reads_in_at_most_two_units(seconds: float, words: str) -> None:
    assert span(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(180, "in 3 min"), (0.4, "now"), (-0.4, "just now"), (-7200, "2 h ago"), (2.6, "in 3 s")]
)
def test_relative_times_say_the_direction(seconds: float, words: str) -> None:
    assert relative(NOON + timedelta(seconds=seconds), NOON) == words


def test_a_documents_time_is_read_back() -> None:
    assert moment_of(written_utc(NOON)) == NOON
    assert moment_of(None) is None
