"""The task types as this process read them a moment ago: to accept a param they are good enough, to refuse it never."""

from typing import Any

from sqlalchemy import Connection

from rota.shared.database.remembered import Remembered
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import RotaError
from rota.shared.domain.nodes import Catalog
from rota.shared.store import node_types

_types = Remembered[Catalog](seconds=5)
"""A param that a deploy has made wrong within this time is refused where it runs, as one that was accepted before."""


def check(database: Database, connection: Connection, task_type: str, param: Any) -> None:
    """Raise UnknownType, or InvalidParam for a param that does not fit the type in any version that counts.

    check(database, connection, "REPORT", {"region": "eu"})
    """
    known = _types.of(database)
    if known is not None:
        try:
            known.check(task_type, param)
        except RotaError:
            pass
        else:
            return
    catalog = node_types.catalog(connection)
    _types.note(database, catalog)
    catalog.check(task_type, param)
