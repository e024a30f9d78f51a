"""The statements of docs/sql.md, as a person copies them."""

import re
from dataclasses import dataclass
from functools import cache

from tests.harness.processes import ROOT

PAGE = ROOT / "docs" / "sql.md"
BLOCK = re.compile(
    r"(?:<!-- (?P<name>[a-z-]+)(?:: (?P<only>mariadb|sqlite) only)? -->\n)?```sql\n(?P<sql>.*?)```", re.S
)
REPLACEMENT = re.compile(r"^\| `(.+?)` \| `(.+?)` \|$", re.M)


@dataclass(frozen=True)
class Block:
    """A statement of the page."""

    name: str
    only: str | None
    sql: str


@cache
def blocks() -> list[Block]:
    """The statements, in the order of the page."""
    return [Block(m["name"], m["only"], m["sql"]) for m in BLOCK.finditer(PAGE.read_text())]


def for_sqlite(sql: str) -> str:
    """A statement with the present time as the page writes it for SQLite."""
    for mariadb, sqlite in sorted(REPLACEMENT.findall(PAGE.read_text()), key=lambda r: -len(r[0])):
        sql = sql.replace(mariadb, sqlite)
    return sql
