"""How large JSON is asked about, and read in order: databases have it as a text, or in a form of their own.

One that has a form of its own takes 10 ms to write 300 KB of it as a text, and sorts rows with all their JSON. It
compiles these constructs in its own file.
"""

from typing import Any

from sqlalchemy import Boolean, Integer, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

WHERE_SORTED = "where sorted: "
"""Before the name of an index in a hint for those databases alone that would sort instead of reading by it."""


class JsonBytes(FunctionElement[int | None]):
    """``JsonBytes(value)``: how many bytes a JSON value takes in the form in which the database has it; NULL for NULL.

    On SQLite it counts characters.
    """

    inherit_cache = True
    type: Any = Integer()
    name = "length"


class MayListNodes(FunctionElement[bool]):
    """``MayListNodes(value)``: whether a JSON value may be an object with the key ``nodes``; it may be no JSON.

    A text has "nodes" in it then, or letters that are written as escapes. To shorten it is the fastest search.
    """

    inherit_cache = True
    type = Boolean()
    name = "may_list_nodes"


def in_order_of(statement: Any, table: Any, index: str) -> Any:
    """A SELECT in the order of this index, so that no database sorts rows with all their JSON to take some of them."""
    return statement.with_hint(table, f"{WHERE_SORTED}{index}")


@compiles(JsonBytes)
def bytes_of_text(element: Any, compiler: Any, **kw: Any) -> str:
    """The length of the text."""
    return f"length{compiler.process(element.clause_expr, **kw)}"


@compiles(MayListNodes)
def search_of_text(element: Any, compiler: Any, **kw: Any) -> str:
    """A search of the text, which is not parsed."""
    (value,) = element.clauses
    shortened = func.replace(func.replace(value, '"nodes"', ""), "\\u00", "")
    return str(compiler.process(func.length(shortened) < func.length(value), **kw))
