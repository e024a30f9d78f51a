"""CHECKs in the definition of a column: the only ones that a database adds together with the column at once.

A CHECK of the whole table makes some databases copy the table, and nobody can write meanwhile
(docs/decisions/0031-what-an-upgrade-may-do.md). So a column that a migration adds brings its CHECKs in its definition.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import CheckConstraint, Column
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import conv

Rule = tuple[str, str]
"""The name of a CHECK, and its condition."""


class ColumnChecks(CheckConstraint):
    """The CHECKs of one column, in its definition: those for every database, and those that one dialect needs."""

    def __init__(self, everywhere: Sequence[Rule], by_dialect: Mapping[str, Sequence[Rule]]) -> None:
        name, condition = [*everywhere, *(rule for rules in by_dialect.values() for rule in rules)][0]
        super().__init__(condition, name=conv(name))
        self._everywhere = everywhere
        self._by_dialect = by_dialect

    def needed_by(self, dialect: str) -> list[Rule]:
        """Those that a dialect needs."""
        return [*self._everywhere, *self._by_dialect.get(dialect, ())]


@compiles(ColumnChecks)
def _named(element: ColumnChecks, compiler: Any, **kw: Any) -> str:
    rules = element.needed_by(compiler.dialect.name)
    return " ".join(f"CONSTRAINT {name} CHECK ({condition})" for name, condition in rules)


def is_added(column: Column[Any]) -> bool:
    """Whether the column brings its CHECKs in its definition."""
    return any(isinstance(check, ColumnChecks) for check in column.constraints)
