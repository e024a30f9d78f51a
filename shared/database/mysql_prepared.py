"""Writes that are executed again and again: their text is made once, and each execution only writes its values in.

SQLAlchemy would look for the text at each execution, and get ready to read rows. A statement that waits in its
connection has no rows (docs/decisions/0076-prepared-writes.md).
"""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Executable

from rota.shared.database.later import Later
from rota.shared.database.mysql_connection import MySQLConnection

Process = Callable[[Any], Any]

MARK = re.compile(r"%\((\w+)\)s|%%")
"""Where PyMySQL writes a value, or a percent sign, into a text of SQLAlchemy's."""

SQLALCHEMYS_LOG = logging.getLogger("sqlalchemy.engine.Engine")

EVENTS = ("before_execute", "after_execute", "before_cursor_execute", "after_cursor_execute")


class Prepared:
    """A statement's text, with places for the values of an execution. ``values`` are those of one execution.

    Raises ValueError if the text is not the same at each execution with such values.
    """

    def __init__(self, connection: Connection, statement: Any, values: Mapping[str, Any]) -> None:
        compiled = statement.compile(dialect=connection.dialect, column_keys=list(values))
        given = {name: bind.key for name, bind in compiled.binds.items() if bind.key in values}
        if {*values} & {*compiled.binds} - {*given}:
            raise ValueError(f"a value has the name of a constant of {compiled.string}")
        _require_constant_text(compiled, given)
        state = compiled.construct_expanded_state(values, escape_names=False)
        processes = {**_processes(compiled), **state.processors}
        driver = driver_of(connection)
        self.keys = frozenset(values)
        self._parts: list[str] = []
        self._places: list[tuple[int, str, Process]] = []
        """Which part is which value, and what makes of the value what the driver takes."""

        end = 0
        for mark in MARK.finditer(state.statement):
            self._parts.append(state.statement[end : mark.start()])
            name, process = mark[1], processes.get(mark[1], _as_it_is)
            if name is None:
                self._parts.append("%")
            elif name in given:
                self._places.append((len(self._parts), given[name], process))
                self._parts.append("")
            else:
                self._parts.append(driver.escape(process(state.parameters[name])))
            end = mark.end()
        self._parts.append(state.statement[end:])

    def text(self, driver: MySQLConnection, values: Mapping[str, Any]) -> str:
        """The statement with the values of an execution."""
        parts = self._parts.copy()
        for at, key, process in self._places:
            parts[at] = driver.escape(process(values[key]))
        return "".join(parts)


class Keeper:
    """Keeps statements that are executed ``later`` in their connections. It prepares each one that comes again."""

    def __init__(self) -> None:
        self._seen: WeakSet[Executable] = WeakSet()
        self._prepared: WeakKeyDictionary[Executable, Prepared | None] = WeakKeyDictionary()
        """None: its text is not the same at each execution."""

    def __call__(self, connection: Connection, statement: Executable, values: Mapping[str, Any], later: Later) -> bool:
        """``Keeps``: give the statement to its connection; False: SQLAlchemy is to execute it."""
        if not connection.in_transaction() or (driver := driver_of(connection)).is_told:
            return False
        prepared = self._of(connection, statement, values)
        if prepared is None or values.keys() != prepared.keys:
            return False
        try:
            text = prepared.text(driver, values).encode(driver.encoding)
        except Exception:  # noqa: BLE001 - a value cannot be written: SQLAlchemy is to raise its own error for it
            return False
        return driver.keep(text, later)

    def _of(self, connection: Connection, statement: Executable, values: Mapping[str, Any]) -> Prepared | None:
        try:
            return self._prepared[statement]
        except KeyError:
            pass
        if statement not in self._seen:  # many are made for one execution only
            self._seen.add(statement)
            return None
        try:
            prepared = Prepared(connection, statement, values)
        except ValueError:
            prepared = None
        self._prepared[statement] = prepared
        return prepared


def is_listened_to(connection: Connection) -> bool:
    """Whether SQLAlchemy must execute each statement itself: it logs statements, or tells them to a tracer."""
    told: Any = connection.engine.dispatch  # that of a connection is made anew for each connection
    return SQLALCHEMYS_LOG.isEnabledFor(logging.INFO) or any(getattr(told, event) for event in EVENTS)


def driver_of(connection: Connection) -> MySQLConnection:
    """The driver's connection."""
    return cast("MySQLConnection", connection.connection.dbapi_connection)


def _require_constant_text(compiled: Any, given: Mapping[str, str]) -> None:
    """Raise ValueError if the text depends on the values, or if SQLAlchemy adds some at each execution."""
    added = compiled.insert_prefetch or compiled.update_prefetch or compiled.escaped_bind_names
    written_out = {bind.key for bind in compiled.post_compile_params | compiled.literal_execute_params}
    others = [bind for name, bind in compiled.binds.items() if name not in given]
    if added or written_out & {*given.values()} or any(bind.required or bind.callable for bind in others):
        raise ValueError(compiled.string)


def _processes(compiled: Any) -> dict[str, Process]:
    """What the types of the values make of them, by the names of the values in the text."""
    of_types = {
        name: bind.type.dialect_impl(compiled.dialect).bind_processor(compiled.dialect)
        for name, bind in compiled.binds.items()
    }
    return {name: process for name, process in of_types.items() if process is not None}


def _as_it_is(value: Any) -> Any:
    return value
