"""What a migration does on SQLite otherwise than elsewhere."""

from collections.abc import Sequence

SCRIPT_HEAD = ".bail on\n.dbconfig defensive off\n"
"""For ``sqlite3``: stop at the first error, and so commit nothing; and let a migration write into ``sqlite_master``."""


def words_added(table: str, column: str, words: tuple[Sequence[str], Sequence[str]], rest: str) -> Sequence[str]:
    """The statements that let a column hold more words: its CHECK, and the length of its type, which means nothing.

    SQLite has no statement that changes a CHECK. Its own manual says how to write another one into the schema
    (lang_altertable.html, part 7). The table that comes and goes changes the version of the schema, by which other
    connections know that they must read it again. Its CHECK fails if the words are not there then, because the column
    was defined otherwise than expected. ``rest`` stays as it is.
    """
    lists = (", ".join(f"'{word}'" for word in some) for some in words)
    old, new = (f"({column} IN ({one}))".replace("'", "''") for one in lists)
    short, long = (f"{column} VARCHAR({max(map(len, some))})" for some in words)
    changed = f"replace(replace(sql, '{old}', '{new}'), '{short}', '{long}')"
    begun = new.removesuffix(")")  # a later migration may have added more words
    is_changed = f"coalesce((SELECT instr(sql, '{begun}') FROM sqlite_master WHERE name = '{table}'), 0) > 0"
    fault = f"{table}.{column} is not defined as a migration of Rota expects"
    return [
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET sql = {changed} WHERE name = '{table}'",
        "PRAGMA writable_schema = RESET",
        f'CREATE TABLE rota_words (done INTEGER, CONSTRAINT "{fault}" CHECK (done = 1))',
        f"INSERT INTO rota_words SELECT {is_changed}",
        "DROP TABLE rota_words",
    ]
