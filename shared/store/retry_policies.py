"""How a task is retried, as a claim reads it: one value, which is NULL where a task has the defaults, as most have."""

import json
from typing import Any

from sqlalchemy import ColumnElement, String, and_, case, func, literal_column, null, type_coerce

from rota.shared.database.json_fields import fields_named
from rota.shared.domain.jsontext import json_value
from rota.shared.domain.retry import RetryPolicy
from rota.shared.store import params
from rota.shared.store.tables import schedule_task

_task = schedule_task.c
PLAIN = RetryPolicy()

# TRIM makes texts of JSON columns: what SQL has spoiled there concerns its own task, and not the whole batch.
_FIELDS: dict[str, ColumnElement[Any]] = {
    "retries": _task.retries,
    "retry_delay_seconds": _task.retry_delay_seconds,
    "retry_backoff": type_coerce(_task.retry_backoff, String),
    "max_retry_delay_seconds": _task.max_retry_delay_seconds,
    "retry_jitter_percent": _task.retry_jitter_percent,
    "retry_on": func.trim(params.small(_task.retry_on)),
    "never_retry": func.trim(params.small(_task.never_retry)),
    "on_retry": type_coerce(_task.on_retry, String),
}
_is_plain = and_(
    _task.retries == literal_column(str(PLAIN.retries)),
    _task.retry_delay_seconds == literal_column(str(PLAIN.retry_delay_seconds)),
    _task.retry_backoff == literal_column(f"'{PLAIN.retry_backoff}'"),
    _task.max_retry_delay_seconds.is_(None),
    _task.retry_jitter_percent == literal_column(str(PLAIN.retry_jitter_percent)),
    _task.retry_on.is_(None),
    _task.never_retry.is_(None),
    _task.on_retry == literal_column(f"'{PLAIN.on_retry}'"),
)
term: ColumnElement[Any] = case((_is_plain, null()), else_=func.json_array(*_FIELDS.values(), type_=String()))
"""What ``read`` reads."""


def read(given: Any) -> RetryPolicy:
    """The policy of a task from the value of ``term``: a JSON list, or its text."""
    if given is None:
        return PLAIN
    found = fields_named(_FIELDS, json.loads(given) if isinstance(given, str) else given)
    named = {name: _names(found[name]) for name in ("retry_on", "never_retry")}
    jitter = min(max(found["retry_jitter_percent"] or 0, 0), 100)
    return RetryPolicy(**{**found, **named, "retry_jitter_percent": jitter})


def _names(text: str | None) -> tuple[str, ...] | None:
    """The exceptions that a task names; None if it names none, or if SQL has written what is no list."""
    found = None if text is None else json_value(text)
    return tuple(one for one in found if isinstance(one, str)) if isinstance(found, list) else None
