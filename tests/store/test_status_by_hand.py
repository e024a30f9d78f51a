"""Each row of the table "A status that is set by hand" of docs/sql.md is true, on each database."""

import re
import sqlite3
from collections.abc import Callable

import pymysql
import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.shared.database.transactions import Database
from rota.shared.domain.states import InstanceStatus
from rota.shared.settings import Settings
from rota.shared.store import recovery, reports
from rota.shared.store.runs import Run
from tests.harness.scenario import Scenario, ended
from tests.harness.schemas import typed
from tests.harness.sql_page import PAGE

ROW = re.compile(r"^\| (pending|assigned|running|succeed|failed) \| `([^`]+)` \| (.+) \|$", re.M)
ROWS = ROW.findall(PAGE.read_text())
Refused = (pymysql.err.MySQLError, sqlite3.IntegrityError)


class Hand:
    """An instance in one of its states, and the hand that sets another."""

    def __init__(self, rows: Scenario) -> None:
        self.rows = rows
        self.worker = rows.worker("worker-1")
        self.run: Run | None = None
        self.id = 0

    def is_in(self, status: str) -> None:
        match status:
            case "pending":
                self.id = self.rows.pending()
            case "assigned":
                self.id = self.rows.assigned(self.worker)
            case _:
                self.run = self.rows.running(self.worker)
                self.id = self.run.id
        if status in ("succeed", "failed"):
            self.report(status)

    def write(self, edit: str) -> None:
        url = self.rows.database.url.render_as_string(hide_password=False)
        typed(url, f"UPDATE schedule_instance SET {edit} WHERE id = {self.id}")

    def report(self, status: str = "succeed") -> set[int]:
        """What the handler's end comes to; returns the instance if it is not the worker's any more."""
        assert self.run is not None
        return self.rows.report(self.worker, ended(self.run, InstanceStatus(status)))

    def started(self) -> list[Run]:
        """What runs when scheduler and worker have done what they do."""
        Assigner(self.rows.database, Settings.load()).step()
        return self.rows.claim(self.worker, self.id).runs

    def is_held(self) -> bool:
        """Whether the worker finds the instance among those that it is said to run."""
        return [i for i, *_ in self.rows.database.read(lambda c: recovery.held(c, self.worker))] == [self.id]


def never_runs(hand: Hand, edit: str) -> None:
    hand.write(edit)
    assert hand.started() == []
    assert hand.rows.status(hand.id) in edit
    assert hand.rows.row(hand.id).gmt_completed is None


def is_refused(hand: Hand, edit: str) -> None:
    before = hand.rows.row(hand.id)
    with pytest.raises(Refused, match="ck_schedule_instance_"):
        hand.write(edit)
    assert hand.rows.row(hand.id) == before


def is_handed_back_and_runs(hand: Hand, edit: str) -> None:
    hand.write(edit)
    assert hand.is_held()
    fences = [(hand.id, hand.rows.row(hand.id).attempt)]
    hand.rows.database.write(lambda c: reports.hand_back(c, hand.worker, fences, "its worker held it"))
    [run] = hand.started()
    assert run.attempt == 1


def drops_the_result(hand: Hand, edit: str) -> None:
    hand.write(edit)
    assert hand.report() == {hand.id}
    gets_no_result(hand, edit)


def goes_on(hand: Hand, edit: str) -> None:
    hand.write(edit)
    hand.report()
    gets_no_result(hand, edit)


def gets_no_result(hand: Hand, edit: str) -> None:
    row = hand.rows.row(hand.id)
    assert (row.execution_result, row.gmt_completed) == (None, None)
    assert row.status in edit
    assert hand.started() == []


def runs_once_more(hand: Hand, edit: str) -> None:
    hand.write(edit)
    assert hand.report() == {hand.id}
    [run] = hand.started()
    assert (run.attempt, len(run.nodes)) == (2, 2)


def runs_the_failed_node_once_more(hand: Hand, edit: str) -> None:
    hand.write(edit)
    [run] = hand.started()
    assert run.attempt == 2


def has_no_node_left(hand: Hand, edit: str) -> None:
    hand.write(edit)
    assert hand.rows.node_statuses(hand.id) == ["succeed", "succeed"]
    Assigner(hand.rows.database, Settings.load()).step()
    assert [(run.id, [n for n in run.nodes if n.status != "succeed"]) for run in hand.started()] == [(hand.id, [])]


def is_shown_so(hand: Hand, edit: str) -> None:
    before = hand.rows.row(hand.id)._asdict()
    hand.write(edit)
    assert hand.started() == []
    after = hand.rows.row(hand.id)._asdict()
    changed = {column for column in before if before[column] != after[column]}
    assert changed <= {"status", "gmt_modified", "modifier", "unsuccessful"}


CHECKS: dict[str, Callable[[Hand, str], None]] = {
    "it never runs": never_runs,
    "refused": is_refused,
    "its worker finds that it does not run it, and hands it back: it runs": is_handed_back_and_runs,
    "its handler goes on to its end, and the result is dropped": drops_the_result,
    "its handler goes on to its end, and the instance gets no result": goes_on,
    "its handler goes on, its result is dropped, and its node runs once more": runs_once_more,
    "its failed node runs once more": runs_the_failed_node_once_more,
    "it fails: none of its nodes is left to run": has_no_node_left,
    "nothing but that it is shown as": is_shown_so,
}


def test_the_table_is_found_and_each_outcome_has_a_check() -> None:
    assert len(ROWS) > 15
    told = {next((words for words in CHECKS if outcome.startswith(words)), outcome) for *_, outcome in ROWS}
    assert told == set(CHECKS)


@pytest.mark.parametrize(("status", "edit", "outcome"), ROWS)
def test_what_happens_is_what_the_page_says(database: Database, status: str, edit: str, outcome: str) -> None:
    hand = Hand(Scenario(database))
    hand.is_in(status)
    [check] = [check for words, check in CHECKS.items() if outcome.startswith(words)]
    check(hand, edit)


def test_a_deleted_instance_that_runs_goes_on_and_its_result_is_dropped(rows: Scenario) -> None:
    hand = Hand(rows)
    hand.is_in("running")
    rows.sql("DELETE FROM schedule_instance WHERE id = :id", id=hand.id)
    assert hand.report() == {hand.id}
