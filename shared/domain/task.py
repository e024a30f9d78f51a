"""A task as a person or code defines it. Rota checks the definition before it writes it."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from rota.shared.domain.calendars.days_asked import days_text
from rota.shared.domain.errors import InvalidInput, RotaError
from rota.shared.domain.groups import MOST_SHARE
from rota.shared.domain.jsontext import json_text, object_in
from rota.shared.domain.overlapping import require_policy
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.retry import Delay, Exceptions, LongestDelay, Percent, not_below
from rota.shared.domain.sentences import advice, close_to
from rota.shared.domain.spreading import MOST_SHARDS, together, with_shards
from rota.shared.domain.states import (
    Backoff,
    MisfirePolicy,
    OnRetry,
    OverlapPolicy,
    Spread,
    TaskStatus,
    TriggerKind,
    WorkerLostPolicy,
)
from rota.shared.domain.task_filter import Tag
from rota.shared.domain.times import is_time, read_time, why_no_time
from rota.shared.domain.triggers.base import trigger_of
from rota.shared.domain.triggers.combined import WRITTEN
from rota.shared.domain.triggers.inputs import MOST_JITTER_SECONDS, TriggerInputs
from rota.shared.domain.triggers.zones import load_zone
from rota.shared.domain.weights import Weight

TRIGGER_FIELDS = {
    "cron": TriggerKind.CRON,
    "every": TriggerKind.INTERVAL,
    "fixed_delay": TriggerKind.FIXED_DELAY,
    "at": TriggerKind.ONCE,
    "any_of": TriggerKind.COMBINED,
    "all_of": TriggerKind.COMBINED,
    "after": TriggerKind.AFTER,
}
"""The fields of which one makes the task's trigger, each with its kind. Without any of them the task is manual."""

TRIGGER_COLUMNS = ("trigger_kind", "cron", "trigger_spec")
"""The columns of ``schedule_task`` that hold the trigger. They are written together."""

IN_SPEC = ("every", "fixed_delay", "at", "any_of", "all_of", "after", "jitter_seconds", "calendar", "calendar_days")
"""The fields that are keys in the column ``trigger_spec``."""


class TaskDefinition(BaseModel):
    """The fields of a task that its owner sets; their times are naive UTC.

    Their names are columns of ``schedule_task``, but for those in ``trigger_spec`` (``IN_SPEC``).

    TaskDefinition.of(name="daily-report", type="REPORT", cron="30 16 * * *", timezone="Asia/Shanghai")
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=63, pattern=r"^\S(.*\S)?$")
    type: str = Field(min_length=1, max_length=127)
    status: TaskStatus = TaskStatus.ON
    param: dict[str, Any] | None = None
    cron_seconds: bool = False
    cron: str | None = Field(default=None, max_length=127)
    timezone: str = Field(default="UTC", max_length=63)
    every: int | None = None
    fixed_delay: int | None = None
    at: str | None = None
    jitter_seconds: int = Field(default=0, ge=0, le=MOST_JITTER_SECONDS)
    calendar: str | None = Field(default=None, min_length=1, max_length=63)
    calendar_days: str | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    any_of: list[Any] | None = None
    all_of: list[Any] | None = None
    after: dict[str, str] | None = None
    misfire_policy: MisfirePolicy = MisfirePolicy.FIRE_ONCE
    misfire_grace_seconds: int = Field(default=10, ge=1, le=31_536_000)
    misfire_window_seconds: int = Field(default=86_400, ge=1, le=31_536_000)
    misfire_cap: int = Field(default=100, ge=1, le=1000)
    overlap_policy: OverlapPolicy = OverlapPolicy.SKIP
    max_instances: int | None = Field(default=None, ge=1, le=1000)
    max_waiting: int | None = Field(default=None, ge=1, le=1000)
    retries: int = Field(default=0, ge=0, le=1000)
    retry_delay_seconds: Delay = 10
    retry_backoff: Backoff = Backoff.EXPONENTIAL
    max_retry_delay_seconds: LongestDelay | None = None
    retry_jitter_percent: Percent = 0
    retry_on: Exceptions = None
    never_retry: Exceptions = None
    on_retry: OnRetry = OnRetry.RESUME
    on_worker_lost: WorkerLostPolicy = WorkerLostPolicy.RETRY
    timeout_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    run_timeout_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    priority: int = Field(default=5, ge=0, le=9)
    required_labels: dict[str, str] | None = None
    description: str | None = Field(default=None, min_length=1, max_length=1000)
    owner: str | None = Field(default=None, min_length=1, max_length=127)
    tags: list[Tag] | None = Field(default=None, min_length=1, max_length=20)
    task_group: str | None = Field(default=None, min_length=1, max_length=63)
    group_share: int = Field(default=1, ge=1, le=MOST_SHARE)
    limit_name: str | None = Field(default=None, min_length=1, max_length=63)
    pool: str | None = Field(default=None, min_length=1, max_length=63)
    weight: Weight = 1
    shards: int | None = Field(default=None, ge=1, le=MOST_SHARDS)
    spread: Spread | None = None

    @classmethod
    def of(cls, **fields: Any) -> "TaskDefinition":
        """A checked definition.

        Raises InvalidInput with every fault, a line each.
        """
        try:
            return cls(**together(fields))
        except ValidationError as error:
            raise InvalidInput("\n".join(fault_sentence(f) for f in error.errors(include_url=False))) from None

    @field_validator("param")
    @classmethod
    def _is_json(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        _as_value_error(json_text, value, "param")
        return value

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        _as_value_error(load_zone, value)
        return value

    @field_validator("starts_at", "ends_at")
    @classmethod
    def _naive_utc(cls, value: datetime | None) -> datetime | None:
        if value is None:
            return None
        try:
            moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        except OverflowError:
            raise ValueError(f"{value} is out of range") from None
        if not is_time(moment):
            raise ValueError(why_no_time(moment))
        return moment

    # The checks that compare two fields are field validators too, each on the field that is declared later. Pydantic
    # skips a validator of the whole model if any field is invalid; then one fault would hide another.

    @field_validator("cron")
    @classmethod
    def _valid_cron(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and "cron_seconds" in info.data:
            _as_value_error(trigger_of, TriggerInputs("cron", value, int(info.data["cron_seconds"])))
        return value

    @field_validator("every", "fixed_delay", "at", "any_of", "all_of", "after", mode="before")
    @classmethod
    def _as_json(cls, value: Any, info: ValidationInfo) -> Any:
        return None if value is None else _as_value_error(WRITTEN[str(info.field_name)], value)

    @field_validator("at")
    @classmethod
    def _valid_time(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and "timezone" in info.data:
            _as_value_error(read_time, value, load_zone(info.data["timezone"]))
        return value

    @field_validator("any_of", "all_of")
    @classmethod
    def _valid_members(cls, value: list[Any] | None, info: ValidationInfo) -> list[Any] | None:
        if value is not None and {"cron_seconds", "timezone", "starts_at"} <= info.data.keys():
            seconds, zone, starts_at = (info.data[name] for name in ("cron_seconds", "timezone", "starts_at"))
            spec = {info.field_name: value}
            inputs = TriggerInputs(TriggerKind.COMBINED, None, int(seconds), zone, spec, starts_at)
            _as_value_error(trigger_of, inputs)
        return value

    @field_validator("after")
    @classmethod
    def _follows_others(cls, value: dict[str, str] | None, info: ValidationInfo) -> dict[str, str] | None:
        if value is not None and (name := info.data.get("name")) in value:
            raise ValueError(f"after {name!r}: a task cannot follow itself; RunAgain and fixed_delay run one again")
        if value is not None and info.data.get("jitter_seconds"):
            raise ValueError("jitter_seconds does not go with after: such a task has no times of its own")
        return value

    @field_validator("every", "fixed_delay", "at", "any_of", "all_of", "after")
    @classmethod
    def _is_the_only_trigger(cls, value: Any, info: ValidationInfo) -> Any:
        for other in TRIGGER_FIELDS:
            if value is not None and other != info.field_name and info.data.get(other) is not None:
                raise ValueError(f"a task has one trigger: give {other} or {info.field_name}, and not both")
        return value

    @field_validator("calendar_days", mode="before")
    @classmethod
    def _days_of_the_calendar(cls, value: Any, info: ValidationInfo) -> Any:
        return _as_value_error(days_text, value, has_calendar=info.data.get("calendar", "any") is not None)

    @field_validator("ends_at")
    @classmethod
    def _after_the_start(cls, value: datetime | None, info: ValidationInfo) -> datetime | None:
        starts_at = info.data.get("starts_at")
        if value and starts_at and value < starts_at:
            raise ValueError(f"ends_at {value} is before starts_at {starts_at}")
        return value

    @field_validator("max_instances", "max_waiting")
    @classmethod
    def _only_where_it_counts(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and {"overlap_policy", "max_instances"} - {info.field_name} <= info.data.keys():
            require_policy(str(info.field_name), info.data["overlap_policy"], info.data.get("max_instances"))
        return value

    @field_validator("spread")
    @classmethod
    def _shards_only_if_fixed(cls, value: Spread | None, info: ValidationInfo) -> Spread | None:
        shards = info.data.get("shards", 1 if value == Spread.SHARDS else None)  # a wrong number is a fault of its own
        return with_shards(value, shards)

    @field_validator("tags")
    @classmethod
    def _each_tag_once(cls, value: list[str] | None) -> list[str] | None:
        return None if value is None else sorted(set(value))

    @field_validator("max_retry_delay_seconds")
    @classmethod
    def _not_below_the_delay(cls, value: int | None, info: ValidationInfo) -> int | None:
        return not_below(value, info.data.get("retry_delay_seconds"))

    @field_validator("on_worker_lost")
    @classmethod
    def _at_most_once_means_no_retries(cls, value: WorkerLostPolicy, info: ValidationInfo) -> WorkerLostPolicy:
        retries = info.data.get("retries", 0)
        if value == WorkerLostPolicy.FAIL and retries:
            raise ValueError(f"on_worker_lost fail means at most once: retries must be 0, not {retries}")
        return value

    @property
    def trigger_kind(self) -> TriggerKind:
        """The kind of the trigger; ``manual`` if the task runs only when asked."""
        given = (kind for field, kind in TRIGGER_FIELDS.items() if getattr(self, field) is not None)
        return next(given, TriggerKind.MANUAL)

    @property
    def inputs(self) -> PlanInputs:
        """The inputs of the task's plan."""
        return PlanInputs(
            trigger_kind=self.trigger_kind.value,
            cron=self.cron,
            cron_seconds=int(self.cron_seconds),
            timezone=self.timezone,
            trigger_spec=self._trigger_spec,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
        )

    @property
    def _trigger_spec(self) -> dict[str, Any] | None:
        return {name: value for name in IN_SPEC if (value := getattr(self, name))} or None

    def declared(self) -> dict[str, Any]:
        """The definition as code declares it, as JSON: all but the status, which is the operator's."""
        return self.model_dump(mode="json", exclude={"status"})

    def columns(self) -> dict[str, Any]:
        """The columns of ``schedule_task`` and the values to write into them."""
        values = self.model_dump(exclude=set(IN_SPEC))
        values["cron_seconds"] = int(self.cron_seconds)
        values |= {"trigger_kind": self.trigger_kind, "trigger_spec": self._trigger_spec}
        return {name: getattr(value, "value", value) for name, value in values.items()}

    def columns_of(self, fields: Iterable[str]) -> dict[str, Any]:
        """The columns that hold these fields, and their values. A trigger is written as a whole.

        definition.columns_of(["cron"])   # {"trigger_kind": "cron", "cron": "0 3 * * *", "trigger_spec": None}
        """
        columns = self.columns()
        of_trigger = {*TRIGGER_FIELDS, *IN_SPEC}
        return {name: columns[name] for f in fields for name in (TRIGGER_COLUMNS if f in of_trigger else (f,))}


def read_times(fields: Mapping[str, Any], zone: str) -> tuple[dict[str, Any], list[str]]:
    """The fields, with the texts of the window as naive UTC; and remarks. Local times are in the zone.

    Raises InvalidInput for a text that is no time, InvalidTimezone.
    """
    taken, remarks = dict(fields), []
    for name in ("starts_at", "ends_at", "at"):
        if isinstance(text := taken.get(name), str):
            moment, remark = read_time(text, load_zone(zone))
            if name not in IN_SPEC:  # the trigger reads its text by itself
                taken[name] = moment
            remarks += [remark] if remark else []
    return taken, remarks


@cache
def defaults() -> dict[str, Any]:
    """The fields that a task need not be given, with their defaults, as JSON."""
    declared = TaskDefinition(name="any", type="ANY").declared()
    return {name: value for name, value in declared.items() if not TaskDefinition.model_fields[name].is_required()}


def edited(row: Any, changes: Mapping[str, Any]) -> TaskDefinition:
    """A task's row, which SQL may have written, with changes of fields. A new trigger takes the place of the old one.

    Raises InvalidInput with every fault of the whole task, a line each.
    """
    spec = object_in(row.trigger_spec)
    fields = {name: getattr(row, name) for name in TaskDefinition.model_fields if name not in IN_SPEC}
    fields |= {name: spec[name] for name in IN_SPEC if name in spec}
    is_new = any(changes.get(field) is not None for field in TRIGGER_FIELDS)
    gone = [field for field, kind in TRIGGER_FIELDS.items() if is_new or kind != row.trigger_kind]
    if "calendar" in changes and changes["calendar"] is None:
        gone.append("calendar_days")
    return TaskDefinition.of(**{**fields, **dict.fromkeys(gone), **changes})


def _as_value_error(check: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return check(*args, **kwargs)
    except RotaError as error:
        raise ValueError(str(error)) from None


def fault_sentence(fault: Any) -> str:
    """A fault that pydantic has found in a field, as a sentence."""
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not fault["loc"] or fault["type"] == "value_error":
        return message
    if fault["type"] == "extra_forbidden":
        return no_field_of_a_task(str(fault["loc"][0]))
    if fault["type"] == "string_pattern_mismatch":
        message = "a name or a tag is one line, with no blank at its beginning or end"
    where = [str(part) for part in fault["loc"] if part != "[key]"]
    if "[key]" in fault["loc"]:
        return f"{'.'.join(where)}: a key of a JSON object is a text, not {fault['input']!r}"
    return f"{'.'.join(where)} {fault['input']!r}: {message}{advice(fault['input'])}"


def no_field_of_a_task(name: str) -> str:
    """A sentence that refuses a field which a task does not have."""
    known = TaskDefinition.model_fields
    return f"{name} is no field of a task{close_to(name, known)}; there are: {', '.join(known)}"
