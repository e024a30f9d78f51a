"""Wrong SQL, generated: values, dates, states, nulls, truncations, deletes, on each table, about rows of its own.

    wrong = WrongSql(url, seed=7)
    wrong.renew()            # its own rows are there again
    wrong.statement()        # a session's settings, and a statement about these rows

Its tasks are named ``victim-…``, and nothing that it writes concerns a row of another name.
"""

import contextlib
import random
import sqlite3
from collections.abc import Sequence
from typing import Any

import pymysql
from sqlalchemy import JSON, Column, DateTime, Integer, Table, make_url

from rota.shared.database.words import WordType
from rota.shared.store.tables import metadata
from tests.harness.databases import connect
from tests.harness.schemas import is_sqlite

VICTIMS = "SELECT id FROM (SELECT id FROM schedule_task WHERE name LIKE 'victim%') AS victims"
INSTANCES = f"SELECT id FROM (SELECT id FROM schedule_instance WHERE schedule_task_id IN ({VICTIMS})) AS theirs"
WORKERS = "SELECT id FROM schedule_worker_node WHERE name LIKE 'victim%'"
OWN = {
    "schedule_task": "name LIKE 'victim%'",
    "schedule_instance": f"schedule_task_id IN ({VICTIMS})",
    "schedule_task_node": f"schedule_instance_id IN ({INSTANCES})",
    "schedule_task_node_type": "type LIKE 'VICTIM%' OR type = 'NOTE_THREAD'",
    "schedule_task_type_version": "category IN ('VICTIM', 'NOTE_THREAD')",
    "schedule_kept_slot": f"schedule_instance_id IN ({INSTANCES})",
    "schedule_worker_node": "name LIKE 'victim%'",
    "schedule_worker_beat": f"schedule_worker_node_id IN ({WORKERS})",
    "schedule_task_lock": f"schedule_task_id IN ({VICTIMS})",
    "schedule_skip": f"schedule_task_id IN ({VICTIMS})",
    "schedule_catch_up": f"schedule_task_id IN ({VICTIMS})",
    "schedule_follow_up": f"schedule_task_id IN ({VICTIMS})",
    "schedule_chain": f"schedule_task_id IN ({VICTIMS})",
    "schedule_chain_run": f"schedule_instance_id IN ({INSTANCES})",
    "schedule_request": "type LIKE 'VICTIM%'",
    "schedule_business_key": f"schedule_task_id IN ({VICTIMS})",
    "schedule_backfill": f"schedule_task_id IN ({VICTIMS})",
    "schedule_deadline": f"schedule_instance_id IN ({INSTANCES})",
    "schedule_scheduler_node": "name LIKE 'victim%'",
    "schedule_calendar": "name LIKE 'victim%'",
    "schedule_calendar_use": f"schedule_task_id IN ({VICTIMS})",
    "schedule_audit": "actor LIKE 'victim%'",
    "schedule_listener": "name LIKE 'victim%'",
}
"""Which rows are its own, those of the real type NOTE_THREAD among them. Of other tables, those that it has created."""

TIMES = (
    *("0001-01-01 00:00:00.000000", "0000-00-00 00:00:00.000000", "2026-00-10 00:00:00.000000"),
    *("2026-02-30 00:00:00.000000", "1969-12-31 23:59:59.000000", "1970-01-01 00:00:00.000000"),
    *("9999-11-30 23:59:59.999999", "9999-12-31 23:59:59.999999", "2026-11-19T02:00", "tomorrow", ""),
)
NUMBERS = ("-1", "0", "2", "32767", "2147483647", "9223372036854775807", "18446744073709551615", "1.5", "'many'")
TEXTS = ("''", f"'{'x' * 5000}'", "'ü😀'", "'%s %(a)s :b'", "' '")
JSONS = (
    *("[[1]]", '[{"a": 1}, 5, null]', '{"VICTIM": [1], "cron": {}}', '[{"type": "VICTIM_A", "param_schema": 5}]'),
    *("{not json", "[]", "5", '"text"', "null", '{"nodes": 5}', '{"nodes": ["NO_SUCH"]}', '{"nodes": []}'),
    *('{"n": 1e999}', "[" * 40 + "]" * 40, '{"a": "\\ud800"}', "{" + '"n": ' + "9" * 5000 + "}"),
)
Refused = (pymysql.err.MySQLError, sqlite3.Error)


class WrongSql:
    """Generates statements, and runs them as a client does."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self._random = random.Random(seed)
        self._tables = list(metadata.sorted_tables)

    def renew(self) -> None:
        """Make rows of its own in each table, where there are none."""
        for number in range(4):
            policy = ("skip", "queue", "replace", "allow")[number]
            columns = f"('victim-{number}', 'NOTE_THREAD', '* * * * * *', 1, '{policy}')"
            task = "INSERT INTO schedule_task (name, type, cron, cron_seconds, overlap_policy) VALUES "
            self.run(task + columns)
        self.run(
            "INSERT INTO schedule_worker_node"
            " (name, host, pid, process_identity, version, capacity, prefetch, node_types)"
            " VALUES ('victim', 'h', 1, 'x', '0', 1, 5, '[\"VICTIM_A\"]')",
            "INSERT INTO schedule_worker_beat (schedule_worker_node_id, last_beat)"
            " SELECT id, last_heartbeat FROM schedule_worker_node WHERE name LIKE 'victim%'",
            "INSERT INTO schedule_scheduler_node (name, host, pid, version) VALUES ('victim', 'h', 1, '0')",
            "INSERT INTO schedule_task_node_type (type, category) VALUES ('VICTIM_A', 'VICTIM')",
            "INSERT INTO schedule_task_type_version (category, version, nodes)"
            " VALUES ('VICTIM', 'v', '[{\"type\": \"VICTIM_A\"}]')",
            "UPDATE schedule_worker_beat SET last_beat = '9999-11-30 23:59:59.999999'"
            f" WHERE schedule_worker_node_id IN ({WORKERS})",
            "UPDATE schedule_instance SET slot_kept = 1"
            f" WHERE schedule_task_id IN ({VICTIMS}) AND status IN ('failed', 'canceled') AND id % 3 = 0",
            "INSERT INTO schedule_audit (actor, face, action, object_type, object_id)"
            " VALUES ('victim', 'cli', 'x', 'schedule_task', 1)",
            "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime)"
            f" SELECT id, '2026-11-19 02:00:00.000000' FROM ({VICTIMS}) AS v",
            f"INSERT INTO schedule_task_lock (schedule_task_id) {VICTIMS}",
            "INSERT INTO schedule_backfill (schedule_task_id, from_at, to_at, next_fire, plan_inputs, fires)"
            " SELECT id, '2026-11-19 02:00:00.000000', '2026-11-19 02:01:00.000000', '2026-11-19 02:00:00.000000',"
            f" plan_inputs, 61 FROM schedule_task WHERE id IN ({VICTIMS})",
        )

    def statement(self) -> list[str]:
        """The settings of a session, and a wrong statement."""
        table = self._random.choice(self._tables)
        own = OWN.get(table.name, "creator = 'victim'")
        if self._random.random() < 0.08:
            return [*self._session(), f"DELETE FROM {table.name} WHERE {own}"]
        columns = [column for column in table.columns if not column.primary_key and column.computed is None]
        chosen = self._random.sample(columns, self._random.choice((1, 1, 2)))
        sets = ", ".join(f"{column.name} = {self._value(table, column)}" for column in chosen)
        return [*self._session(), f"UPDATE {table.name} SET {sets} WHERE {own}"]

    def run(self, *statements: str) -> list[str]:
        """Run statements one after another in one session; returns what the database said of those that it refused."""
        said = []
        with contextlib.closing(self._connected()) as connection:
            for statement in statements:
                try:
                    connection.cursor().execute(statement)
                except Refused as error:
                    said.append(str(error))
        return said

    def _connected(self) -> Any:
        if is_sqlite(self.url):
            return sqlite3.connect(make_url(self.url).database or "", isolation_level=None, timeout=20)
        return connect(self.url)

    def _session(self) -> Sequence[str]:
        """A session as any client has it; one without strict mode; one that does not check."""
        if is_sqlite(self.url):
            return self._random.choice(([], [], ["PRAGMA ignore_check_constraints = ON"]))
        return self._random.choice(
            ([], [], ["SET sql_mode = ''"], ["SET check_constraint_checks = 0, sql_mode = ''"]),
        )

    def _value(self, table: Table, column: Column[object]) -> str:
        values: Sequence[str] = TEXTS
        if isinstance(column.type, WordType):
            values = [f"'{word}'" for word in (*column.type.enums, "bogus", "")]
        elif isinstance(column.type, DateTime):
            values = [f"'{moment}'" for moment in TIMES]
        elif isinstance(column.type, JSON):
            values = [f"'{text}'" for text in JSONS]
        elif isinstance(column.type, Integer):
            values = NUMBERS
        elif column.name in ("name", "actor") or (table.name, column.name) == ("schedule_task_node_type", "type"):
            values = ("'victim '", f"'victim{'x' * 500}'", "'victimü'")
        return "NULL" if self._random.random() < 0.1 else self._random.choice(values)
