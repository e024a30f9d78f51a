"""Tables of the command: what a narrow terminal shows."""

import pytest

from rota.cli.show.fitting import fitted
from rota.cli.show.output import cell
from rota.cli.show.tasks import LEAST as TASK_LEAST

INSTANCE = {
    "id": 6, "task": 14, "status": 8, "schedule time": 25, "late": 6, "took": 6, "worker": 16, "result": 60,
}  # fmt: skip
LEAST = ("worker", "took", "late", "result", "schedule time")


def width(columns: dict[str, int]) -> int:
    return sum(columns.values()) + 2 * (len(columns) - 1)


def test_a_wide_terminal_shows_all_whole() -> None:
    assert fitted(INSTANCE, 200, LEAST) == INSTANCE


@pytest.mark.parametrize(
    ("places", "shown"),
    [
        (120, ["id", "task", "status", "schedule time", "late", "took", "worker", "result"]),
        (80, ["id", "task", "status", "schedule time", "late", "result"]),
        (60, ["id", "task", "status", "schedule time"]),
        (40, ["id", "task", "status", "late"]),
        (20, ["id", "task", "status"]),
    ],
)
def test_the_least_important_columns_go_first_and_id_name_and_status_stay(places: int, shown: list[str]) -> None:
    columns = fitted(INSTANCE, places, LEAST)
    assert list(columns) == shown
    assert width(columns) <= max(places, 6 + 10 + 8 + 4)


def test_what_fits_beside_the_others_is_put_back_the_most_important_first() -> None:
    instance = {**INSTANCE, "id": 2, "task": 6, "status": 7}
    assert list(fitted(instance, 40, LEAST)) == ["id", "task", "status", "late", "result"]


def test_a_long_name_is_cut_and_leaves_room_for_others() -> None:
    columns = fitted({**INSTANCE, "task": 63}, 80, LEAST)
    assert list(columns) == ["id", "task", "status", "schedule time", "result"]
    assert columns["task"] == 80 - 6 - 8 - 25 - 10 - 8


def test_a_long_name_does_not_push_out_when_a_task_fires_next() -> None:
    task = {"name": 63, "status": 6, "type": 12, "trigger": 12, "timezone": 8, "next fire": 25, "": 8}
    assert list(fitted(task, 80, TASK_LEAST)) == ["name", "status", "trigger", "next fire", ""]
    assert list(fitted(task, 40, TASK_LEAST)) == ["name", "status", ""]
    assert fitted(task, 200, TASK_LEAST) == task


def test_a_text_of_several_lines_stays_on_one_and_shows_where_they_end() -> None:
    assert cell("first\nsecond\x1b") == "first\\nsecond\\x1b"
