"""The audit is read by its indexes: the newest acts on one object cost no more where there are many others."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, insert

from rota.shared.store import audit
from rota.shared.store.audit import INSTANCE, TASK, AuditEntry
from rota.shared.store.tables import schedule_audit
from tests.harness.scenario import Scenario
from tests.harness.statements import explained

FEW, MANY = 5, 3_000


def test_an_entry_is_read_back_as_it_was_recorded(rows: Scenario) -> None:
    entry = AuditEntry("k1", "ann", "cli", "task.set", TASK, 3, "nightly", "süß", {"cron": None}, {"cron": "@daily"})
    rows.database.write(lambda c: audit.record(c, entry))
    [row] = rows.database.read(lambda c: audit.listed(c, 10))
    assert {name: getattr(row, name) for name in AuditEntry.__dataclass_fields__} == {
        name: getattr(entry, name) for name in AuditEntry.__dataclass_fields__
    }
    assert (row.creator, row.modifier, row.is_deleted) == ("ann", "ann", 0)


def test_the_newest_acts_are_read_by_an_index(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task = rows.task("nightly")
    same: dict[str, Any] = {"act_key": "k1", "actor": "ann", "face": "cli", "action": "task.off"}
    many = [
        *({**same, "object_type": TASK, "object_id": task, "object_name": "nightly"} for _ in range(MANY)),
        *({**same, "object_type": INSTANCE, "object_id": n, "object_name": "other"} for n in range(MANY)),
    ]
    rows.database.write(lambda c: c.execute(insert(schedule_audit), many).rowcount)
    reads: list[tuple[int, Callable[[Connection], list[Any]]]] = [
        (FEW, lambda c: audit.listed(c, FEW)),
        (FEW, lambda c: audit.of_task(c, "nightly", FEW)),
        (FEW, lambda c: audit.of_task(c, "other", FEW)),
        (1, lambda c: audit.of_instance(c, 17, FEW)),
        (0, lambda c: [True] if audit.has_act(c, "k2") else []),
    ]
    for number, read in reads:
        with explained(rows.database.engine) as statements:
            assert len(rows.database.read(read)) == number
        for statement in statements:
            assert statement.rows_read <= 2 * FEW + 5, statement
