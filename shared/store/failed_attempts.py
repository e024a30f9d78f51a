"""How attempts failed: the instance keeps the end of each, because a later attempt overwrites what its nodes have.

The newest ``MOST`` are kept, as a JSON list with the oldest first, and the long texts of each are cut.
"""

from typing import Any

from sqlalchemy import ColumnElement, case, literal_column

from rota.shared.database.json_lists import Appended
from rota.shared.domain.jsontext import json_text, json_value, object_in

MOST = 10
ERROR_CHARACTERS, TRACEBACK_CHARACTERS, OUTPUT_CHARACTERS = 1_000, 4_000, 500
KEPT_BYTES = 20_000
"""About how many bytes an attempt takes in a statement, at most."""

_BEGINNINGS = {"error": ERROR_CHARACTERS, "type": 127}
_ENDS = {"stdout": OUTPUT_CHARACTERS, "stderr": OUTPUT_CHARACTERS, "traceback": TRACEBACK_CHARACTERS}


def one_more(attempts: ColumnElement[Any], end: ColumnElement[Any]) -> ColumnElement[Any]:
    """The value of the column ``failed_attempts`` with one more ``attempt_end``; as it is, if that is NULL."""
    return case((end.is_(None), attempts), else_=Appended(attempts, end, literal_column(str(MOST))))


def workers_in(attempts: Any) -> list[int]:
    """The ids of the workers in the column ``failed_attempts``, into which SQL may have written anything."""
    found = [one.get("worker_id") for one in attempts if isinstance(one, dict)] if isinstance(attempts, list) else []
    return [worker for worker in found if isinstance(worker, int) and 0 < worker < 2**63]


def attempt_end(result: str | None, **facts: Any) -> str:
    """The end of an attempt as JSON text: the facts, and of ``result``, JSON text too, what tells the failure.

    attempt_end('{"error":"ValueError: no"}', attempt=1)   # '{"attempt":1,"error":"ValueError: no"}'
    """
    found = object_in(json_value(result)) if result is not None else {}
    end = facts | {name: str(found[name])[:limit] for name, limit in _BEGINNINGS.items() if name in found}
    if isinstance(found.get("exit_code"), int):
        end["exit_code"] = found["exit_code"]
    return json_text(end | {name: str(found[name])[-limit:] for name, limit in _ENDS.items() if name in found})
