"""Settings: ``ROTA_*`` environment variables, which options override. All faults are reported together."""

import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from rota.shared.database.backends import entry_of
from rota.shared.database.url_options import check_options
from rota.shared.database.urls import has_several_hosts, parsed
from rota.shared.domain.errors import ConfigurationError
from rota.shared.domain.sentences import close_to
from rota.shared.waking import addresses

DEFAULT_DATABASE_URL = "sqlite:///rota.db"
SECRETS = ("database_url", "wake_redis")
"""The settings whose values hold passwords."""


class Settings(BaseSettings):
    """The settings of every Rota process. Each field is the environment variable ``ROTA_<NAME>``.

    Settings.load(database_url="mysql://rota:…@db/rota").lookahead_seconds
    """

    model_config = SettingsConfigDict(env_prefix="ROTA_", extra="forbid", frozen=True)

    database_url: SecretStr = Field(
        default=SecretStr(DEFAULT_DATABASE_URL),
        description="mysql://user:password@host/database, mariadb://…, with several hosts of a cluster as a,b:3307,c; "
        "or sqlite:///file (for one machine)",
    )
    call_timeout_seconds: float = Field(default=10, gt=0, description="limit for one database call")

    lookahead_seconds: float = Field(default=5, ge=0.1, le=300, description="how far ahead fires are materialized")
    tick_seconds: float = Field(
        default=1,
        gt=0,
        le=60,
        description="between two ticks of a scheduler; halved until four fit into look-ahead and into liveness limit",
    )
    batch: int = Field(default=1000, ge=1, le=10_000, description="rows in one statement")
    lock_lease_seconds: float = Field(default=2, gt=0, description="after this a task lock may be taken over")
    assignment_timeout_seconds: float = Field(
        default=30, gt=0, description="an assignment due for so long and not started is given to another worker"
    )
    start_paused: bool = Field(
        default=False, description="pause all scheduling before this scheduler starts, of other schedulers too"
    )
    forget_days: int = Field(
        default=7,
        ge=1,
        le=3650,
        description="rows of dead workers, and of what else is gone, are removed after so many days",
    )

    app: str | None = Field(
        default=None, description="what the worker runs, as module:app; or package:*, all in a package"
    )
    worker_name: str | None = Field(
        default=None, max_length=255, description="unique among live workers; default host-pid"
    )
    capacity: int = Field(default=50, ge=1, le=10_000, description="instances a worker runs at once")
    prefetch: int = Field(default=10_000, ge=0, le=100_000, description="instances it may be assigned beyond that")
    labels: dict[str, str] = Field(default_factory=dict, description='labels the worker carries, as {"gpu": "a100"}')
    heartbeat_seconds: float = Field(default=3, gt=0, description="between two heartbeats of a worker")
    liveness_seconds: int = Field(
        default=15,
        ge=2,
        le=31_536_000,
        description="after so long without a heartbeat a worker is dead, and stops itself",
    )
    blocked_seconds: float = Field(
        default=60, gt=0, description="a worker that does not answer its guardian for so long is killed"
    )
    poll_seconds: float = Field(
        default=1,
        gt=0,
        le=60,
        description="between two polls of a worker; halved until two fit into the look-ahead and one into a heartbeat",
    )
    grace_seconds: float = Field(default=30, ge=0, description="on SIGTERM, how long running work may go on")
    cancel_grace_seconds: float = Field(
        default=10,
        ge=0,
        description="how long a handler that was canceled or timed out may tidy up, until it is killed",
    )
    abandoned_seconds: float = Field(
        default=300, gt=0, description="a worker whose thread has not returned so long after it was to stop ends itself"
    )
    overdue_seconds: float = Field(
        default=30, gt=0, description="a scheduler ends a run that is over its run_timeout_seconds for so long"
    )
    result_limit_bytes: int = Field(default=262_144, ge=1024, le=4_194_304, description="largest JSON result of a node")
    allow_http: bool = Field(default=True, description="let this worker run HTTP_REQUEST")
    allow_shell: bool = Field(default=False, description="let this worker run SHELL_COMMAND")
    wake_address: str | None = Field(
        default=None,
        description="host:port where a scheduler or worker listens for wake-ups (UDP), so that urgent work starts at "
        "once; :0 is any free port of the address by which it reaches the database; by default it listens nowhere",
    )
    wake_redis: SecretStr | None = Field(
        default=None,
        description="instead of wake_address: a Redis over whose publish/subscribe processes wake each other, as "
        "redis://:password@host:6379/0; every process and program needs it",
    )
    health_file: str | None = Field(
        default=None, description="file that a process writes at each heartbeat, for rota health"
    )

    @property
    def tick_period(self) -> float:
        """Seconds between two ticks: ``tick_seconds``, halved until four ticks fit into each of the limits.

        The look-ahead is one, because workers must poll what a tick finds before it is due. The liveness limit is the
        other, because a scheduler that rested so long would mistake its own rest for an outage.

        Settings(tick_seconds=1, lookahead_seconds=3).tick_period   # 0.5
        """
        return _within(self.tick_seconds, min(self.lookahead_seconds, self.liveness_seconds) / 4)

    @property
    def poll_period(self) -> float:
        """Seconds between two polls: ``poll_seconds``, halved until two polls fit into the look-ahead.

        One poll also fits into a heartbeat, so that a worker sees a request to cancel within two heartbeats.

        Settings(poll_seconds=4, lookahead_seconds=5).poll_period   # 2.0
        """
        return _within(self.poll_seconds, min(self.lookahead_seconds / 2, self.heartbeat_seconds))

    @property
    def call_limit(self) -> float:
        """Seconds that one database call may take: ``call_timeout_seconds``.

        With several hosts at most half of the liveness limit, so that one call to a host that hangs and one round over
        all hosts fit into the limit.

        Settings(database_url="mysql://a,b/rota", liveness_seconds=15).call_limit   # 7.5
        """
        if has_several_hosts(parsed(self.database_url.get_secret_value())):
            return min(self.call_timeout_seconds, self.liveness_seconds / 2)
        return self.call_timeout_seconds

    @field_validator("app", "worker_name", "health_file", "wake_address", mode="before")
    @classmethod
    def _none_where_empty(cls, value: str | None) -> str | None:
        return value or None

    @field_validator("wake_address")
    @classmethod
    def _an_address(cls, value: str | None) -> str | None:
        if value is not None:
            addresses.parsed(value)
        return value

    @field_validator("wake_redis", mode="before")
    @classmethod
    def _a_redis(cls, value: SecretStr | str | None) -> SecretStr | None:
        url = value.get_secret_value() if isinstance(value, SecretStr) else value
        return SecretStr(addresses.checked_redis(url)) if url else None

    @field_validator("database_url")
    @classmethod
    def _usable_url(cls, value: SecretStr) -> SecretStr:
        try:
            url = parsed(value.get_secret_value())
            entry = entry_of(url)
            check_options(url, entry)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        if not url.database:
            raise ValueError(entry.without_database)
        return value

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.heartbeat_seconds * 2 >= self.liveness_seconds:
            raise ValueError(
                f"heartbeat_seconds {self.heartbeat_seconds:g} must be less than half of liveness_seconds "
                f"{self.liveness_seconds}, or one late beat kills a worker"
            )
        if self.wake_address is not None and self.wake_redis is not None:
            raise ValueError("wake_address and wake_redis are two ways to be woken; give one of them")
        for name, what in (
            ("overdue_seconds", "a scheduler ends runs whose handlers still tidy up"),
            ("abandoned_seconds", "a worker ends itself while a handler still tidies up"),
        ):
            if self.cancel_grace_seconds >= (limit := getattr(self, name)):
                raise ValueError(
                    f"cancel_grace_seconds {self.cancel_grace_seconds:g} must be less than {name} {limit:g}, or {what}"
                )
        return self

    @classmethod
    def load(cls, **options: Any) -> "Settings":
        """The settings from the environment and from options; an option that is None counts as not given.

        Raises ConfigurationError with every fault, a line each.
        """
        given = {name: value for name, value in options.items() if value is not None}
        try:
            return cls(**given)
        except ValidationError as error:
            raise ConfigurationError(faults(error)) from None
        except SettingsError:  # only ROTA_LABELS is read as JSON
            raise ConfigurationError('ROTA_LABELS is not JSON; write it as {"gpu": "a100"}') from None


def variables(options: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables by which another process is told these settings; an option that is None is left out.

    variables({"capacity": 20, "app": None})   # {"ROTA_CAPACITY": "20"}
    """
    return {
        f"ROTA_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in options.items()
        if value is not None
    }


def _within(seconds: float, most: float) -> float:
    """A period, halved until it is no longer than ``most`` seconds.

    It is halved, not cut, so that two processes with different limits still meet at the moments of the longer period.
    """
    while seconds > most:
        seconds /= 2
    return seconds


def faults(error: ValidationError) -> str:
    """Every fault of a settings error, a line each, without the values of secrets."""
    lines = []
    for fault in error.errors(include_url=False):
        name = str(fault["loc"][0]) if fault["loc"] else ""
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = f"there is no such setting{close_to(name, Settings.model_fields)}"
        if not name:
            lines.append(message)
            continue
        shown = "" if name in SECRETS else f" {fault['input']!r}"
        lines.append(f"ROTA_{name.upper()}{shown}: {message}")
    return "\n".join(lines)
