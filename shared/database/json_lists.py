"""Constructs for columns that hold a JSON list or object. Each database's file says how they are compiled for it."""

from typing import Any

from sqlalchemy import Boolean, String
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class Appended(FunctionElement[Any]):
    """``Appended(list, item, most)``: a JSON list (if it is NULL or no JSON, an empty one), and one more item, JSON
    text. Of ``most`` the first goes."""

    inherit_cache = True
    name = "appended"


class HasText(FunctionElement[bool]):
    """``HasText(list, text)``: whether a JSON list has this text. A value that is no JSON has none."""

    inherit_cache = True
    type = Boolean()
    name = "has_text"


@compiles(HasText)
def _in_json_each(element: Any, compiler: Any, **kw: Any) -> str:
    listed, wanted = (compiler.process(clause, **kw) for clause in element.clauses)
    valid = f"CASE WHEN json_valid({listed}) THEN {listed} ELSE '[]' END"
    return f"{wanted} IN (SELECT value FROM json_each({valid}))"


class TextAt(FunctionElement[str | None]):
    """``TextAt(object, "$.calendar")``: the text under a key of a JSON object; NULL if there is none, or no JSON."""

    inherit_cache = True
    type: Any = String()
    name = "text_at"


@compiles(TextAt)
def _extracted(element: Any, compiler: Any, **kw: Any) -> str:
    value, path = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"CASE WHEN json_valid({value}) THEN json_extract({value}, {path}) END"
