"""A task as a person or code defines it. Rota checks the definition before it writes it."""

from datetime import UTC, datetime
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from rota.shared.domain.errors import InvalidInput, RotaError
from rota.shared.domain.jsontext import json_text
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.sentences import advice, close_to
from rota.shared.domain.states import Backoff, MisfirePolicy, OverlapPolicy, TaskStatus, TriggerKind, WorkerLostPolicy
from rota.shared.domain.times import is_time, why_no_time
from rota.shared.domain.triggers.base import trigger_of
from rota.shared.domain.triggers.inputs import TriggerInputs
from rota.shared.domain.triggers.zones import load_zone


class TaskFields(TypedDict, total=False):
    """The fields of ``TaskDefinition`` that code gives by keyword as they are, for type checkers."""

    starts_at: datetime | str | None
    ends_at: datetime | str | None
    misfire_policy: Literal["fire_once"]
    misfire_grace_seconds: int
    overlap_policy: Literal["skip", "queue", "replace", "allow"]
    max_instances: int | None
    retries: int
    retry_delay_seconds: int
    retry_backoff: Literal["fixed", "exponential"]
    on_worker_lost: Literal["retry", "fail"]
    timeout_seconds: int | None
    priority: int
    required_labels: dict[str, str] | None


class TaskDefinition(BaseModel):
    """The fields of a task that its owner sets; their names are columns of ``schedule_task``, their times naive UTC.

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
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    misfire_policy: MisfirePolicy = MisfirePolicy.FIRE_ONCE
    misfire_grace_seconds: int = Field(default=10, ge=1, le=31_536_000)
    overlap_policy: OverlapPolicy = OverlapPolicy.SKIP
    max_instances: int | None = Field(default=None, ge=1, le=1000)
    retries: int = Field(default=0, ge=0, le=1000)
    retry_delay_seconds: int = Field(default=10, ge=0, le=86_400)
    retry_backoff: Backoff = Backoff.EXPONENTIAL
    on_worker_lost: WorkerLostPolicy = WorkerLostPolicy.RETRY
    timeout_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    priority: int = Field(default=5, ge=0, le=9)
    required_labels: dict[str, str] | None = None

    @classmethod
    def of(cls, **fields: Any) -> "TaskDefinition":
        """A checked definition.

        Raises InvalidInput with every fault, a line each.
        """
        try:
            return cls(**fields)
        except ValidationError as error:
            raise InvalidInput("\n".join(_fault(f) for f in error.errors(include_url=False))) from None

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

    @field_validator("ends_at")
    @classmethod
    def _after_the_start(cls, value: datetime | None, info: ValidationInfo) -> datetime | None:
        starts_at = info.data.get("starts_at")
        if value and starts_at and value < starts_at:
            raise ValueError(f"ends_at {value} is before starts_at {starts_at}")
        return value

    @field_validator("max_instances")
    @classmethod
    def _only_where_allowed(cls, value: int | None, info: ValidationInfo) -> int | None:
        policy = info.data.get("overlap_policy", OverlapPolicy.ALLOW)
        if value is not None and policy != OverlapPolicy.ALLOW:
            raise ValueError(f"max_instances goes with overlap_policy allow, not {policy}")
        return value

    @field_validator("on_worker_lost")
    @classmethod
    def _at_most_once_means_no_retries(cls, value: WorkerLostPolicy, info: ValidationInfo) -> WorkerLostPolicy:
        retries = info.data.get("retries", 0)
        if value == WorkerLostPolicy.FAIL and retries:
            raise ValueError(f"on_worker_lost fail means at most once: retries must be 0, not {retries}")
        return value

    @property
    def trigger_kind(self) -> TriggerKind:
        """``cron`` if the task has a cron expression, otherwise ``manual``."""
        return TriggerKind.MANUAL if self.cron is None else TriggerKind.CRON

    @property
    def inputs(self) -> PlanInputs:
        """The inputs of the task's plan."""
        return PlanInputs(
            trigger_kind=self.trigger_kind.value,
            cron=self.cron,
            cron_seconds=int(self.cron_seconds),
            timezone=self.timezone,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
        )

    def declared(self) -> dict[str, Any]:
        """The definition as code declares it, as JSON: all but the status, which is the operator's."""
        return self.model_dump(mode="json", exclude={"status"})

    def columns(self) -> dict[str, Any]:
        """The columns of ``schedule_task`` and the values to write into them."""
        values = self.model_dump()
        values["cron_seconds"] = int(self.cron_seconds)
        values["trigger_kind"] = self.trigger_kind
        return {name: getattr(value, "value", value) for name, value in values.items()}


def _as_value_error(check: Any, *args: Any, **kwargs: Any) -> None:
    try:
        check(*args, **kwargs)
    except RotaError as error:
        raise ValueError(str(error)) from None


def _fault(fault: Any) -> str:
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not fault["loc"] or fault["type"] == "value_error":
        return message
    if fault["type"] == "extra_forbidden":
        return no_field_of_a_task(str(fault["loc"][0]))
    return f"{'.'.join(map(str, fault['loc']))} {fault['input']!r}: {message}{advice(fault['input'])}"


def no_field_of_a_task(name: str) -> str:
    """A sentence that refuses a field which a task does not have."""
    known = TaskDefinition.model_fields
    return f"{name} is no field of a task{close_to(name, known)}; there are: {', '.join(known)}"
