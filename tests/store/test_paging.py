"""A pass over what is pending reads in full what waits far back in a line once, and then only where it stands."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import pytest

from rota.scheduler_service import fleet, stretches
from rota.scheduler_service.duties.assigner import Assigner
from rota.shared.settings import Settings
from rota.shared.store import assignments
from rota.shared.store.pending import Cursor, Pending
from rota.shared.store.transitions import giving
from tests.harness.scenario import Scenario

pytestmark = pytest.mark.every_database

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
BATCH, NUMBER = 25, 200


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the scheduler's looks be due at once."""
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    monkeypatch.setattr(stretches, "LOOK_SECONDS", 0)


class Line:
    """A task that runs one at a time, with a line of ``NUMBER``, and a scheduler, whose passes note what they read."""

    def __init__(self, rows: Scenario) -> None:
        self.rows = rows
        self.task, self.worker = rows.task(overlap_policy="queue"), rows.worker(capacity=50, prefetch=1000)
        self.ids = [rows.pending(self.task, rows.start - (NUMBER - n) * SECOND) for n in range(NUMBER)]
        self.assigner = Assigner(rows.database, Settings.load(batch=BATCH, liveness_seconds=3600))
        self.order: list[int] = []
        """What the last pass has read in full, in its order."""

    def a_pass(self) -> set[int]:
        """Make a whole pass; returns the ids of what it has read in full."""
        assigner, order = self.assigner, self.order
        assign = assigner._assign
        order.clear()

        def noting(page: Sequence[Pending], *arguments: object) -> int:
            order.extend(one.id for one in page)
            return assign(page, *arguments)  # type: ignore[arg-type]

        assigner.is_woken, assigner._assign = True, noting  # type: ignore[method-assign, assignment]
        assigner.step()
        assigner._assign = assign  # type: ignore[method-assign]
        return set(order)

    def status(self, status: str) -> list[int]:
        """Those with a status, in the order of their turns."""
        found = (
            "SELECT id FROM schedule_instance WHERE status = :status AND schedule_task_id = :task ORDER BY due_at, id"
        )
        return [row.id for row in self.rows.sql(found, status=status, task=self.task)]

    def run(self, number: int = 5) -> None:
        """The oldest have run, and the next one runs."""
        ended = "UPDATE schedule_instance SET status = 'succeed' WHERE status = 'running' AND schedule_task_id = :task"
        self.rows.sql(ended, task=self.task)
        for instance in self.status("assigned")[:number]:
            self.rows.sql("UPDATE schedule_instance SET status = 'succeed' WHERE id = :id", id=instance)
        oldest = self.status("assigned")[0]
        self.rows.sql("UPDATE schedule_instance SET status = 'running' WHERE id = :id", id=oldest)

    def known(self) -> None:
        """Let passes work the line off until they know what waits far back in it."""
        for _ in range(3):
            self.a_pass()
            self.run()
        first, last = self.status("pending")[0], self.ids[-1]
        read = self.a_pass()
        assert first in read
        assert last not in read


def test_what_waits_far_back_in_a_line_that_is_worked_off_is_read_in_full_once(rows: Scenario) -> None:
    line = Line(rows)
    assert line.a_pass() == set(line.ids)
    line.run()
    assert line.ids[-1] in line.a_pass(), "only now is the line worked off"
    line.run()
    pending = line.status("pending")
    read = line.a_pass()
    assert BATCH <= len(read) < 3 * BATCH
    assert read == set(pending[: len(read)])
    assert {rows.row(i).reason for i in line.status("pending")[BATCH:]} == {rows.row(line.ids[-1]).reason}
    assert rows.row(line.ids[-1]).reason is not None


def test_the_line_is_given_in_its_order_to_the_end(rows: Scenario) -> None:
    line = Line(rows)
    given: list[int] = []
    while len(given) < NUMBER:
        line.a_pass()
        given += [i for i in line.status("assigned") if i not in given]
        line.run()
    assert given == line.ids


def test_a_line_that_is_not_worked_off_any_more_is_read_in_full(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(rows)
    line.known()
    monkeypatch.setattr(stretches, "SLOW_SECONDS", -1)
    line.a_pass()
    assert line.ids[-1] in line.a_pass()


def test_what_comes_far_back_is_told_why_it_waits_and_then_passed_over(rows: Scenario) -> None:
    line = Line(rows)
    line.known()
    new = rows.pending(line.task, rows.start - SECOND / 2)
    assert new in line.a_pass()
    assert rows.row(new).reason == rows.row(line.ids[-1]).reason
    assert new not in line.status("assigned")
    line.a_pass()
    assert new not in line.a_pass()


def test_others_behind_such_a_line_are_given(rows: Scenario) -> None:
    line = Line(rows)
    line.known()
    other = rows.pending(rows.task(), rows.start - SECOND / 2)
    assert other in line.a_pass()
    assert rows.status(other) == "assigned"


def fill_the_first_page(rows: Scenario) -> None:
    """With what no worker can run."""
    for _ in range(BATCH):
        waits = rows.pending(rows.task(required_labels={"gpu": "a100"}), rows.start - 2 * MINUTE, origin="manual")
        rows.sql("UPDATE schedule_instance SET priority = 1 WHERE id = :id", id=waits)


def test_a_line_behind_the_first_page_goes_on_though_no_look_tops_its_stretch_up(rows: Scenario) -> None:
    line = Line(rows)
    fill_the_first_page(rows)
    while set(line.status("pending")) & {*line.ids}:
        line.a_pass()
        assert line.status("assigned")
        line.run()


def test_a_retry_that_has_no_place_in_the_line_yet_is_read_until_it_has_one(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(rows)
    line.known()
    retry = rows.pending(line.task, rows.start - SECOND / 2)
    rows.sql(
        "UPDATE schedule_instance SET attempt = 1, reason = 'it failed', overlap_slot = NULL WHERE id = :id", id=retry
    )
    monkeypatch.setattr(giving, "free_pending", lambda c, ids: {})  # somebody has locked it
    assert retry in line.a_pass()
    monkeypatch.undo()
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    monkeypatch.setattr(stretches, "LOOK_SECONDS", 0)
    assert rows.row(retry).turn_key is None
    assert retry in line.a_pass()
    assert rows.row(retry).turn_key == line.task


def test_what_falls_into_the_line_waits_for_its_turn_also_where_no_page_shows_those_before_it(rows: Scenario) -> None:
    line = Line(rows)
    fill_the_first_page(rows)
    for _ in range(4):
        line.a_pass()
        line.run()
    before = line.ids[-20]
    new = rows.pending(line.task, rows.row(before).due_at + SECOND / 2)
    read = line.a_pass()
    assert new in read
    assert before not in read
    assert rows.status(new) == "pending"
    assert rows.row(new).reason == rows.row(before).reason


@pytest.mark.parametrize(
    "change",
    [
        "SET due_at = '2020-01-01 00:00:00.000000'",
        "SET priority = 1",
    ],
)
def test_what_was_changed_far_back_is_read_again(rows: Scenario, change: str) -> None:
    line = Line(rows)
    line.known()
    changed = line.ids[-10]
    rows.sql(f"UPDATE schedule_instance {change} WHERE id = :id", id=changed)
    assert changed in line.a_pass()


def test_what_is_read_far_back_is_in_the_order_of_its_due_times(rows: Scenario) -> None:
    """Not by comparing their times in Python: SQL may write a date that is none, which stays a text."""
    line = Line(rows)
    line.known()
    new = [rows.pending(rows.task(), rows.start - n * SECOND / 2) for n in (1, 3, 5, 7)]
    line.a_pass()
    assert [i for i in line.order if i in new] == new[::-1]


def test_a_page_from_which_rows_go_while_it_is_read_is_not_the_last_one(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(rows)
    line.known()
    new = [rows.pending(line.task, rows.row(line.ids[at]).due_at + SECOND / 2) for at in (-40, -2)]
    monkeypatch.setattr(assignments, "pending_of", lambda c, ids, horizon: [])
    line.a_pass()
    monkeypatch.undo()
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    monkeypatch.setattr(stretches, "LOOK_SECONDS", 0)
    read = line.a_pass()
    assert {*new} <= read
    assert line.ids[-1] not in read, "the pass before has seen it"


def test_where_instances_stand_is_what_a_page_has(rows: Scenario) -> None:
    for n in range(30):
        rows.sql(
            "UPDATE schedule_instance SET priority = :p WHERE id = :id",
            p=(5, 2, 9)[n % 3],
            id=rows.pending(rows.task(), rows.start - (n % 7) * SECOND),
        )
    after: Cursor | None = None
    for _ in range(4):
        page = rows.database.read(partial(assignments.pending, horizon=rows.start, limit=9, after=after))
        standing = rows.database.read(partial(assignments.standing, horizon=rows.start, limit=9, after=after))
        assert [(one.task_id, one.cursor) for one in standing] == [(one.task_id, one.cursor) for one in page]
        after = page[-1].cursor
    assert len(page) == 3
