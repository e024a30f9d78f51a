"""What SQL may write: a CHECK for each column that Rota reads, and for the rules between two columns.

A CHECK's name says what is right, because its name is all that a refused statement tells a person:
``ck_schedule_worker_node_capacity_from_1_to_10000``. The limits of numbers are those of ``TaskDefinition`` and
``Settings``. Each database adds what its types do not hold by themselves (``Backend.column_checks``).

The checks are for what people write. Rota checks its own values before it writes them, and must be able to end a row
that was written past the checks (docs/decisions/0025-what-sql-may-write.md).
"""

from collections.abc import Iterator

from sqlalchemy import CheckConstraint, Table

from rota.shared.database.backends import all_backends
from rota.shared.database.column_checks import is_added

YEAR_SECONDS = 31_536_000
MANY = 1_000_000_000
"""For numbers that Rota counts up: one more of each still fits into its column."""

RANGES: dict[str, dict[str, tuple[int, int]]] = {
    "schedule_task": {
        "cron_seconds": (0, 1),
        "misfire_grace_seconds": (1, YEAR_SECONDS),
        "max_instances": (1, 1000),
        "retries": (0, 1000),
        "retry_delay_seconds": (0, 86_400),
        "timeout_seconds": (1, YEAR_SECONDS),
        "priority": (0, 9),
    },
    "schedule_instance": {
        "run_number": (0, MANY),
        "priority": (0, 9),
        "attempt": (0, MANY),
        "failures": (0, 30_000),
        "worker_losses": (0, 30_000),
    },
    "schedule_worker_node": {
        "capacity": (1, 10_000),
        "prefetch": (0, 100_000),
    },
    "schedule_worker_beat": {"liveness_seconds": (1, YEAR_SECONDS)},
    "schedule_scheduler_node": {"liveness_seconds": (1, YEAR_SECONDS)},
    "schedule_task_lock": {"is_locked": (0, 1)},
    "schedule_backfill": {
        "newest_first": (0, 1),
        "only_missing": (0, 1),
        "concurrency": (1, 1000),
        "priority": (0, 9),
        "fires": (0, MANY),
        "written": (0, MANY),
        "not_missing": (0, MANY),
        "succeeded": (0, MANY),
        "failed": (0, MANY),
        "canceled": (0, MANY),
        "in_flight": (0, 1000),
        "revision": (0, MANY),
        "ended_before": (0, MANY),
    },
    "schedule_limit": {"max_running": (0, 1000), "starts_per_minute": (0, 60_000)},
    "schedule_business_key": {"revision": (0, MANY)},
    "schedule_calendar": {"first_year": (1970, 2199), "last_year": (1970, 2199)},
}
"""The numbers that a column may hold: the least and the greatest."""

RULES: dict[str, dict[str, str]] = {
    "schedule_task": {"name_is_not_empty": "name <> ''", "type_is_not_empty": "type <> ''"},
    "schedule_instance": {
        "pending_has_no_worker": "status <> 'pending' OR schedule_worker_node_id IS NULL",
        "assigned_has_a_worker": "status <> 'assigned' OR schedule_worker_node_id IS NOT NULL",
        "running_has_a_worker": "status <> 'running' OR schedule_worker_node_id IS NOT NULL",
        "gmt_completed_only_when_ended": "gmt_completed IS NULL OR status IN ('failed', 'canceled', 'succeed')",
        "assigned_has_due_at_and_run_number": "status NOT IN ('assigned', 'running')"
        " OR (due_at IS NOT NULL AND run_number IS NOT NULL)",
        "slot_kept_only_after_a_failure": "slot_kept = 0 OR status IN ('running', 'failed', 'canceled')",
    },
    "schedule_task_lock": {"a_lock_has_locked_at": "is_locked = 0 OR locked_at IS NOT NULL"},
    "schedule_limit": {
        "name_is_not_empty": "name <> ''",
        "it_limits_something": "max_running IS NOT NULL OR starts_per_minute IS NOT NULL",
    },
    "schedule_request": {"what_is_once_or_cancel": "what IN ('once', 'cancel')"},
    "schedule_business_key": {"type_is_not_empty": "type <> ''", "number_is_not_empty": "number <> ''"},
    "schedule_calendar": {
        "name_is_not_empty": "name <> ''",
        "dates_are_no_more_than_60000_characters": " AND ".join(
            f"COALESCE(LENGTH({column}), 0) <= 60000" for column in ("holidays", "makeup_days", "days_off", "days_on")
        ),
    },
}
"""Further conditions of a table, on one column or between two, by their names."""


def checks(table: Table) -> Iterator[CheckConstraint]:
    """The CHECKs of a table: its ranges, its rules, and what each database adds for the types of its columns."""
    for column, (least, most) in RANGES.get(table.name, {}).items():
        yield CheckConstraint(f"{column} BETWEEN {least} AND {most}", name=f"{column}_from_{least}_to_{most}")
    for name, condition in RULES.get(table.name, {}).items():
        yield CheckConstraint(condition, name=name)
    for each in table.columns:
        if each.computed is None and not is_added(each):
            for backend in all_backends():
                yield from backend.column_checks(each)
