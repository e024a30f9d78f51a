"""What a task may be, and how it is refused."""

from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any, get_args, get_type_hints
from zoneinfo import ZoneInfo

import pytest

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.task import TaskDefinition, TaskFields
from rota.shared.store.tables import schedule_task

NOON = datetime.fromisoformat("2026-11-19T12:00:00")
GOOD: dict[str, Any] = {"name": "nightly", "type": "NIGHT", "cron": "0 3 * * *"}


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidInput) as refused:
        TaskDefinition.of(**{**GOOD, **fields})
    return str(refused.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, "name ''"),
        ({"name": " nightly"}, "name ' nightly'"),
        ({"name": "n" * 64}, "at most 63"),
        ({"type": ""}, "type ''"),
        ({"status": "paused"}, "'on' or 'off'"),
        ({"param": [1]}, "param [1]"),
        ({"cron": "61 * * * *"}, "61"),
        ({"cron": "0 15 10 * * *"}, "seconds"),
        ({"cron": "0 3 * * *", "cron_seconds": True}, "five fields"),
        ({"timezone": "Mars/Base"}, "Mars/Base"),
        ({"misfire_policy": "skip"}, "misfire_policy 'skip'"),
        ({"misfire_grace_seconds": 0}, "misfire_grace_seconds 0"),
        ({"overlap_policy": "stop"}, "overlap_policy 'stop'"),
        ({"overlap_policy": "allow", "max_instances": 0}, "max_instances 0"),
        ({"max_instances": 2}, "overlap_policy allow, not skip"),
        ({"retries": -1}, "retries -1"),
        ({"retries": 3, "on_worker_lost": "fail"}, "on_worker_lost fail means at most once: retries must be 0, not 3"),
        ({"retry_backoff": "linear"}, "retry_backoff 'linear'"),
        ({"timeout_seconds": 0}, "timeout_seconds 0"),
        ({"priority": 10}, "priority 10"),
        ({"required_labels": {"gpu": 1}}, "required_labels.gpu 1"),
        ({"param": {"a": [float("nan")]}}, "param.a[0] is nan, a number that JSON does not have"),
        ({"param": {"day": NOON.date()}}, "param.day is a date"),
        ({"timezone": ZoneInfo("Europe/Berlin")}, "write 'Europe/Berlin'"),
        ({"timeout_seconds": timedelta(minutes=5)}, "; write 300"),
        ({"retry_delay_seconds": timedelta(seconds=1.5)}, "; write 2"),
        ({"max_retries": 3}, "max_retries is no field of a task (did you mean retries?); there are: name, type"),
        ({"colour": "red"}, "colour is no field of a task; there are: name, type"),
        ({"starts_at": NOON, "ends_at": NOON - timedelta(seconds=1)}, "before starts_at"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_cannot_be_is_refused_with_what_is_wrong(fields: dict[str, Any], said: str) -> None:
    assert said in refusal(**fields)


def test_every_fault_is_told_at_once() -> None:
    said = refusal(
        name="",
        cron="61 * * * *",
        timezone="Mars/Base",
        starts_at=NOON,
        ends_at=NOON - timedelta(days=1),
        max_instances=2,
        priority=11,
        colour="red",
    )
    assert len(said.splitlines()) == 7
    for name in ("name", "61", "Mars/Base", "before starts_at", "max_instances", "priority", "colour"):
        assert name in said


def test_times_with_a_zone_become_utc() -> None:
    tokyo = timezone(timedelta(hours=9))
    definition = TaskDefinition.of(**GOOD, starts_at=NOON.replace(tzinfo=tokyo), ends_at=NOON.replace(tzinfo=UTC))
    assert (definition.starts_at, definition.ends_at) == (NOON - timedelta(hours=9), NOON)


def test_a_window_may_be_one_instant_whatever_zone_its_ends_are_written_in() -> None:
    TaskDefinition.of(**GOOD, starts_at=NOON.replace(tzinfo=UTC), ends_at=NOON)


@pytest.mark.parametrize(("cron", "kind"), [(None, "manual"), ("0 3 * * *", "cron")])
def test_a_task_without_cron_is_manual(cron: str | None, kind: str) -> None:
    definition = TaskDefinition.of(**{**GOOD, "cron": cron})
    assert definition.columns()["trigger_kind"] == definition.inputs.trigger_kind == kind


def test_type_checkers_know_the_fields_that_code_gives_by_keyword() -> None:
    named_by_app_schedule = {"name", "type", "param", "cron", "cron_seconds", "timezone"}
    operators = {"status"}
    assert set(TaskFields.__annotations__) == set(TaskDefinition.model_fields) - named_by_app_schedule - operators
    fields = get_type_hints(TaskFields)
    for name, kind in get_type_hints(TaskDefinition).items():
        if isinstance(kind, type) and issubclass(kind, StrEnum) and name in fields:
            assert set(get_args(fields[name])) == {word.value for word in kind}, name


def test_its_fields_are_columns_of_the_table_and_hold_plain_values() -> None:
    columns = TaskDefinition.of(**GOOD, cron_seconds=False).columns()
    assert set(columns) <= set(schedule_task.c.keys())
    assert {type(value) for value in columns.values()} <= {str, int, type(None)}
