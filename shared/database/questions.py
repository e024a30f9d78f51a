"""Questions that a transaction asks before it writes: the statements that follow go by the answer.

A server keeps the answer in a variable of the session, so question and writes travel in one packet. An UPDATE that asks
by itself takes longer: the server plans its subqueries as parts of the UPDATE. SQLite has no variables, and no round
trips: there the answer is read, and given to the writes.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Boolean

from rota.shared.database.later import execute_later

KEEPS_ANSWERS = "rota_keeps_answers"
"""The execution option of an engine whose server keeps the answer in its session."""


class IntoAnswer(FunctionElement[Any]):
    """Behind the SELECT of a question: the session keeps the answer, and the SELECT has no rows."""

    inherit_cache = True
    name = "into_answer"


class Answer(FunctionElement[bool]):
    """The answer to the ``Question`` that was asked last in the transaction."""

    inherit_cache = True
    type = Boolean()
    name = "answer"


class Question:
    """A condition that is asked by itself, for example whether another table has a certain row.

    is_free = Question(not_(exists(select(slot.id).where(slot.task == bindparam("task")))))
    answer = is_free.ask(connection, {"task": 3})
    execute_later(connection, update(run).where(run.c.id == bindparam("run"), is_free.answer), {"run": 7, **answer})

    The next question's answer takes the place of this one's.
    """

    answer = Answer(bindparam("answer"))

    def __init__(self, condition: ColumnElement[bool]) -> None:
        self._asked = select(condition)
        self._asked_there = self._asked.suffix_with(IntoAnswer())

    def ask(self, connection: Connection, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask; returns what each statement that goes by the answer must be given."""
        if not connection.get_execution_options().get(KEEPS_ANSWERS):
            return {"answer": bool(connection.scalar(self._asked, values))}
        execute_later(connection, self._asked_there, values)
        return {}


@compiles(Answer)
def _given(element: Any, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))
