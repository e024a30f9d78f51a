"""The findings of ``rota doctor --data``: rows that contradict each other."""

from functools import partial

from rota.shared.control.documents import Document
from rota.shared.database.transactions import Database
from rota.shared.store.invariants import INVARIANTS
from rota.shared.store.invariants import breaches as rows_that_break


def breaches(database: Database) -> list[Document]:
    """Check each invariant; returns it with the ids of the first few rows that break it. Reads all instances and nodes.

    [finding for finding in breaches(database) if finding["ids"]]   # [] where all is well
    """
    found = {one: database.read(partial(rows_that_break, invariant=one)) for one in INVARIANTS}
    return [{"name": one.name, "rule": one.rule, "table": one.table, "ids": ids} for one, ids in found.items()]
