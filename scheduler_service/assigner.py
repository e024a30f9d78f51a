"""Assigning: from pending instances that are due to workers. What SQL inserted, retries, replays and runs by hand."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Connection

from scheduler_service.leases import new_token
from scheduler_service.notices import Notices
from scheduler_service.placement import Fleet
from shared.domain.errors import InvalidInput, UnknownType
from shared.domain.jsontext import json_text
from shared.domain.nodes import Catalog, PlannedNode
from shared.settings import Settings
from shared.store import assignments, fires, locks, node_types, workers
from shared.store.assignments import Cursor, Pending
from shared.store.database import Database

PAGES = 10
"""Pages that one pass looks at before it rests; the next goes on where this one stood."""

Placed = tuple[Pending, int, list[PlannedNode]]


class Assigner:
    """The duty: page through what is pending, place what fits, say why the rest waits.

    Instances that no worker fits stay where they are in the order; a pass goes on behind them, so that they do not hold
    up those that somebody could run.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._notices = Notices("assigner")
        self._cursor: Cursor | None = None
        self._complaints: set[str] = set()

    def step(self) -> float:
        """One pass; returns the seconds to rest."""
        for _ in range(PAGES):
            page = self._page()
            if len(page) < self._settings.batch:
                self._cursor = None
                self._notices.now(self._complaints)
                self._complaints = set()
                return self._settings.tick_seconds
            self._cursor = page[-1].cursor
        return 0

    def _page(self) -> list[Pending]:
        limit = self._settings.batch
        horizon = self._database.clock.now() + timedelta(seconds=self._settings.lookahead_seconds)
        page = self._database.read(lambda c: assignments.pending(c, horizon, limit, self._cursor))
        if not page or self._cursor is None:
            adopted = self._database.write(lambda c: assignments.adopt(c, limit))
            if adopted:
                page = self._database.read(lambda c: assignments.pending(c, horizon, limit, self._cursor))
        if page:
            self._assign(page)
        return page

    def _assign(self, page: Sequence[Pending]) -> None:
        catalog, fleet = self._database.read(lambda c: (node_types.catalog(c), Fleet(workers.fleet(c))))
        placed, waiting, refused = _place(page, catalog, fleet)
        self._complaints.update(f"task type {p.task_type}: {reason}" for p, reason in waiting)
        unexplained = {p.id: reason for p, reason in waiting if p.reason != reason}
        if unexplained or refused:
            self._database.write(lambda c: _explain(c, unexplained, refused))
        if placed:
            self._give(placed)

    def _give(self, placed: Sequence[Placed]) -> None:
        token = new_token()
        task_ids = {p.task_id for p, _, _ in placed}
        lease = self._settings.lock_lease_seconds
        got = self._database.write(lambda c: locks.acquire(c, token, task_ids, lease))
        if got:
            self._database.write(lambda c: _write(c, token, got, placed))


def _place(
    page: Sequence[Pending], catalog: Catalog, fleet: Fleet
) -> tuple[list[Placed], list[tuple[Pending, str]], dict[int, str]]:
    placed: list[Placed] = []
    waiting: list[tuple[Pending, str]] = []
    refused: dict[int, str] = {}
    for one in page:
        if one.task_type is None:
            refused[one.id] = f"there is no task {one.task_id}"
            continue
        if one.task_deleted:
            refused[one.id] = "its task was deleted"
            continue
        try:
            nodes = catalog.nodes_of(one.task_type, one.task_param if one.param is None else one.param)
            labels = one.required_labels or {}
            worker = fleet.choose(nodes, labels, avoid=one.lost_by)
            if worker is None:
                waiting.append((one, fleet.why_not(nodes, labels)))
            else:
                placed.append((one, worker, nodes))
        except UnknownType as error:
            waiting.append((one, str(error)[:1000]))
        except InvalidInput as error:
            refused[one.id] = str(error)[:1000]
        except Exception as error:  # noqa: BLE001 - one poisonous row must not stop the others
            refused[one.id] = f"{type(error).__name__}: {error}"[:1000]
    return placed, waiting, refused


def _explain(connection: Connection, unexplained: dict[int, str], refused: dict[int, str]) -> None:
    assignments.explain(connection, unexplained)
    assignments.refuse(connection, refused)


def _write(connection: Connection, token: str, got: set[int], placed: Sequence[Placed]) -> None:
    held = locks.hold(connection, token, got)
    mine = [(p, worker, nodes) for p, worker, nodes in placed if p.task_id in held]
    numbers = assignments.last_run_numbers(connection, {p.fire for p, _, _ in mine if p.run_number is None})
    rows = []
    for p, worker, _ in mine:
        number = p.run_number
        if number is None:
            number = numbers[p.fire] = numbers.get(p.fire, 0) + 1
        param = json_text(p.task_param) if p.param is None and p.task_param is not None else None
        rows.append((p.id, worker, number, param))
    assignments.give(connection, rows)
    fires.pin_nodes(connection, [(p.id, node) for p, _, nodes in mine for node in nodes])
    locks.release(connection, token, held)
