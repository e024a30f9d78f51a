"""The guard of a move: the instance must be in a state that the move expects."""

from typing import Any

from sqlalchemy import ColumnElement

from rota.shared.domain.states import Move
from rota.shared.store.tables import schedule_instance


def leaves(move: Move, status: Any = schedule_instance.c.status) -> ColumnElement[bool]:
    """The condition that an instance is in one of the states that the move leaves.

    ``status`` is the expression to compare: the column, or ``unindexed`` of it.
    """
    sources = [source.value for source in move.sources]
    guard: ColumnElement[bool] = status == sources[0] if len(sources) == 1 else status.in_(sources)
    return guard
