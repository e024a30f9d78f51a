"""Columns that migrations add to tables, with their CHECKs in their definition."""

from typing import Any

from sqlalchemy import Column

from rota.shared.database.backends import all_backends
from rota.shared.database.column_checks import ColumnChecks, Rule


def added(
    table: str, column: Column[Any], between: tuple[int, int] | None = None, rule: Rule | None = None
) -> Column[Any]:
    """A column that a migration adds to a table, with its CHECKs: those of its type, and the numbers that it may hold.

    ``rule``: what else must be.

        added("schedule_task", Column("misfire_cap", SmallInteger), between=(1, 1000))
    """
    everywhere: list[Rule] = [] if rule is None else [(f"ck_{table}_{rule[0]}", rule[1])]
    by_dialect: dict[str, list[Rule]] = {}
    if between is not None:
        least, most = between
        name = f"ck_{table}_{column.name}_from_{least}_to_{most}"
        everywhere.append((name, f"{column.name} BETWEEN {least} AND {most}"))
    for backend in all_backends():
        for check in backend.column_checks(column):
            only: Any = check._ddl_if  # noqa: SLF001 - nothing else tells which dialect needs it
            by_dialect.setdefault(only.dialect, []).append((f"ck_{table}_{check.name}", str(check.sqltext)))
    if everywhere or by_dialect:
        ColumnChecks(everywhere, by_dialect)._set_parent_with_dispatch(column)  # noqa: SLF001 - as Column(…, check) does
    return column
