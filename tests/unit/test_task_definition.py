"""What a task may be, and how it is refused."""

from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from json import JSONDecodeError
from typing import Any, get_args, get_type_hints
from zoneinfo import ZoneInfo

import pytest

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.states import TriggerKind
from rota.shared.domain.task import TRIGGER_FIELDS, TaskDefinition
from rota.shared.domain.task_fields import TaskFields
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
        ({"misfire_policy": "never"}, "misfire_policy 'never'"),
        ({"misfire_window_seconds": 0}, "misfire_window_seconds 0"),
        ({"misfire_cap": 1001}, "misfire_cap 1001"),
        ({"misfire_grace_seconds": 0}, "misfire_grace_seconds 0"),
        ({"overlap_policy": "stop"}, "overlap_policy 'stop'"),
        ({"overlap_policy": "allow", "max_instances": 0}, "max_instances 0"),
        ({"max_instances": 2}, "overlap_policy allow, not skip"),
        ({"max_waiting": 2}, "overlap_policy queue, or allow with max_instances, not skip"),
        ({"max_waiting": 2, "overlap_policy": "allow"}, "overlap_policy queue, or allow with max_instances, not allow"),
        ({"max_waiting": 0, "overlap_policy": "queue"}, "max_waiting 0"),
        ({"retries": -1}, "retries -1"),
        ({"retries": 3, "on_worker_lost": "fail"}, "on_worker_lost fail means at most once: retries must be 0, not 3"),
        ({"retry_backoff": "linear"}, "retry_backoff 'linear'"),
        ({"max_retry_delay_seconds": 0}, "max_retry_delay_seconds 0"),
        (
            {"max_retry_delay_seconds": 5, "retry_delay_seconds": 6},
            "max_retry_delay_seconds 5 is less than retry_delay_seconds 6",
        ),
        ({"retry_jitter_percent": 101}, "retry_jitter_percent 101"),
        ({"retry_on": ConnectionError}, "retry_on <class 'ConnectionError'>: write a list of exceptions"),
        ({"retry_on": "ConnectionError"}, "retry_on 'ConnectionError': write a list of exceptions"),
        ({"retry_on": ["Timeout"]}, "retry_on 'Timeout': no built-in exception has that name; write its module, too"),
        ({"never_retry": ["print"]}, "never_retry 'print': no built-in exception has that name"),
        ({"never_retry": [5]}, "never_retry 5: that is no exception; give its class or its name"),
        ({"never_retry": [int]}, "never_retry <class 'int'>: that is no exception"),
        ({"retry_on": ["requests..Timeout"]}, "retry_on 'requests..Timeout': that is no exception"),
        ({"on_retry": "again"}, "on_retry 'again'"),
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
        ({"cron": None, "every": 0}, "every 0: an interval is from 1s to 3650d"),
        ({"cron": None, "every": "soon"}, "every 'soon': an interval"),
        ({"every": "15m"}, "a task has one trigger: give cron or every, and not both"),
        ({"at": "2027-01-04"}, "a task has one trigger: give cron or at, and not both"),
        ({"cron": None, "at": "noon"}, "'noon' is not a time"),
        ({"cron": None, "at": 5}, "at 5: write a time"),
        ({"jitter_seconds": 86_401}, "jitter_seconds 86401"),
        ({"jitter_seconds": -1}, "jitter_seconds -1"),
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


def test_a_bound_is_not_refused_for_the_fault_of_another_field() -> None:
    assert len(refusal(overlap_policy="allow", max_instances=0, max_waiting=3).splitlines()) == 1


def test_times_with_a_zone_become_utc() -> None:
    tokyo = timezone(timedelta(hours=9))
    definition = TaskDefinition.of(**GOOD, starts_at=NOON.replace(tzinfo=tokyo), ends_at=NOON.replace(tzinfo=UTC))
    assert (definition.starts_at, definition.ends_at) == (NOON - timedelta(hours=9), NOON)


def test_a_window_may_be_one_instant_whatever_zone_its_ends_are_written_in() -> None:
    TaskDefinition.of(**GOOD, starts_at=NOON.replace(tzinfo=UTC), ends_at=NOON)


@pytest.mark.parametrize(
    ("fields", "kind", "spec"),
    [
        ({"cron": None}, "manual", None),
        ({"cron": "0 3 * * *"}, "cron", None),
        ({"cron": None, "every": timedelta(minutes=15)}, "interval", {"every": 900}),
        ({"cron": None, "at": NOON.replace(tzinfo=UTC)}, "once", {"at": "2026-11-19T12:00:00+00:00"}),
    ],
)
def test_the_field_of_its_trigger_says_its_kind(fields: dict[str, Any], kind: str, spec: Any) -> None:
    definition = TaskDefinition.of(**GOOD | fields)
    columns = definition.columns_of(["cron"])
    assert columns == {"trigger_kind": kind, "cron": fields.get("cron"), "trigger_spec": spec}
    assert definition.columns().items() >= columns.items()
    assert (definition.inputs.trigger_kind, definition.inputs.trigger_spec) == (kind, spec)


def test_each_kind_but_manual_has_its_field() -> None:
    assert set(TRIGGER_FIELDS.values()) == set(TriggerKind) - {TriggerKind.MANUAL}


def test_type_checkers_know_the_fields_that_code_gives_by_keyword() -> None:
    named_by_app_schedule = {"name", "type", "param", "cron", "cron_seconds", "timezone"}
    operators = {"status"}
    assert set(TaskFields.__annotations__) == set(TaskDefinition.model_fields) - named_by_app_schedule - operators
    fields = get_type_hints(TaskFields)
    for name, kind in get_type_hints(TaskDefinition).items():
        if isinstance(kind, type) and issubclass(kind, StrEnum) and name in fields:
            assert set(get_args(fields[name])) == {word.value for word in kind}, name


def test_exceptions_are_kept_by_their_names_each_once() -> None:
    given = (ConnectionError, JSONDecodeError, "OSError", "requests.exceptions.Timeout", ConnectionError)
    definition = TaskDefinition.of(**GOOD, retry_on=given, never_retry=[])
    names = ["ConnectionError", "json.decoder.JSONDecodeError", "OSError", "requests.exceptions.Timeout"]
    assert (definition.retry_on, definition.never_retry) == (names, [])
    assert definition.declared()["retry_on"] == names


def test_its_fields_are_columns_of_the_table_and_hold_plain_values() -> None:
    columns = TaskDefinition.of(**GOOD, cron_seconds=False).columns()
    assert set(columns) <= set(schedule_task.c.keys())
    assert {type(value) for value in columns.values()} <= {str, int, type(None)}
    assert TaskDefinition.of(**GOOD | {"cron": None, "every": 5}).columns()["trigger_spec"] == {"every": 5}
