"""What the store says to the database: its statements as they are executed, their plans, and the rows they read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event

_NOT_READS = ("Handler_read_retry", "Handler_icp_attempts", "Handler_icp_match")


@dataclass(slots=True)
class Step:
    """One table of a plan, as EXPLAIN says it."""

    table: str
    type: str
    key: str | None
    rows: int
    extra: str


@dataclass(slots=True)
class Statement:
    """One statement as it was executed, with its plan and the number of rows the server read for it."""

    text: str
    plan: list[Step] = field(default_factory=list)
    rows_read: int = 0

    def __str__(self) -> str:
        steps = (f"  {s.table}: {s.type} by {s.key}, ~{s.rows} rows; {s.extra}" for s in self.plan)
        return "\n".join([f"{self.text}\n  read {self.rows_read} rows", *steps])


@contextmanager
def executed(engine: Engine) -> Iterator[list[str]]:
    """The texts of the statements executed on `engine` inside the block, one for each call of the driver."""
    texts: list[str] = []

    def note(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        texts.append(text)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield texts
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def explained(engine: Engine) -> Iterator[list[Statement]]:
    """The statements executed on `engine` (MariaDB or MySQL) inside the block, each with its plan and what it read."""
    statements: list[Statement] = []
    before: list[int] = []

    def ask(connection: Any, _cursor: Any, text: str, parameters: Any, _context: Any, executemany: bool) -> None:
        with connection.connection.cursor() as cursor:
            plan = [] if executemany or text in ("BEGIN", "COMMIT") else _plan(cursor, text, parameters)
            statements.append(Statement(text, plan))
            before.append(_rows_read(cursor))

    def count(connection: Any, *_: Any) -> None:
        with connection.connection.cursor() as cursor:
            after = _rows_read(cursor)
            own = _rows_read(cursor) - after  # SHOW STATUS counts its own rows, too
            statements[-1].rows_read = after - before.pop() - own

    event.listen(engine, "before_cursor_execute", ask)
    event.listen(engine, "after_cursor_execute", count)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", ask)
        event.remove(engine, "after_cursor_execute", count)


def _plan(cursor: Any, text: str, parameters: Any) -> list[Step]:
    cursor.execute(f"EXPLAIN FORMAT=TRADITIONAL {text}", parameters)
    names = [column[0] for column in cursor.description]
    rows: Sequence[Any] = cursor.fetchall()
    steps = [dict(zip(names, row, strict=True)) for row in rows]
    return [_step(step) for step in steps if step["select_type"] != "INSERT"]  # MySQL names the table that is written


def _step(row: dict[str, Any]) -> Step:
    return Step(str(row["table"]), str(row["type"]), row["key"], _first_number(row["rows"]), str(row["Extra"] or ""))


def _first_number(rows: object) -> int:
    """A number of rows; with a rowid filter it is written ``5 (1%)``."""
    return int(str(rows or 0).split()[0])


def _rows_read(cursor: Any) -> int:
    """Rows that the storage engine gave this session so far, and index entries it looked at and did not give."""
    cursor.execute("SHOW SESSION STATUS LIKE 'Handler%'")
    status = {name: int(value) for name, value in cursor.fetchall()}
    looked_at = status.get("Handler_icp_attempts", 0) - status.get("Handler_icp_match", 0)  # MySQL counts neither
    return looked_at + sum(n for name, n in status.items() if name.startswith("Handler_read_"))
