"""What is right is not refused: handlers of each kind, and params of each kind of model, which a run reads again."""

import asyncio
import functools
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    RootModel,
    SecretStr,
    computed_field,
)
from pydantic.alias_generators import to_camel

from rota import NodeContext, Rota
from rota.shared.clock import HostTimer
from rota.shared.domain.errors import InvalidInput, InvalidParam
from rota.shared.domain.nodes import check_schema
from rota.worker_service.executors.base import Call
from rota.worker_service.executors.event_loop import EventLoopExecutor
from rota.worker_service.executors.threads import ThreadExecutor
from rota.worker_service.values import checked_param
from tests.harness.told import Told

T = TypeVar("T")


def plain(ctx: "NoSuchName") -> int:  # type: ignore[name-defined]  # noqa: F821 - annotations are nobody's business
    return 7


async def coroutine(ctx: NodeContext[Any]) -> int:
    await asyncio.sleep(0)
    return 7


async def with_more(ctx: NodeContext[Any], more: int) -> int:
    return more


class Called:
    def __call__(self, ctx: NodeContext[Any]) -> int:
        return 7


class Awaited:
    async def __call__(self, ctx: NodeContext[Any]) -> int:
        return 7


def giving(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives the second argument itself."""

    @functools.wraps(function)
    async def wrapper(ctx: NodeContext[Any]) -> Any:
        return await function(ctx, 7)

    return wrapper


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that knows nothing of coroutines."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that makes a plain function of a coroutine."""

    @functools.wraps(function)
    def wrapper(ctx: NodeContext[Any]) -> Any:
        return asyncio.run(function(ctx))

    return wrapper


RIGHT = [
    (plain, None, "thread"),
    (functools.partial(plain), None, "thread"),
    (staticmethod(plain), None, "thread"),
    (staticmethod(coroutine), None, "async"),
    (functools.partial(with_more, more=7), None, "async"),
    (Called(), None, "thread"),
    (Awaited(), None, "async"),
    (Awaited(), "async", "async"),
    (functools.partial(Awaited()), None, "async"),
    (Awaited().__call__, None, "async"),
    (giving(with_more), None, "async"),
    (plainly(plain), None, "thread"),
    (plainly(coroutine), "async", "async"),
    (at_once(coroutine), None, "thread"),
    (at_once(coroutine), "thread", "thread"),
]


@pytest.mark.parametrize(("handler", "asked", "execution"), RIGHT)
def test_whatever_can_be_called_or_awaited_runs_where_it_should(handler: Any, asked: Any, execution: str) -> None:
    app, told = Rota(), Told()
    app.task("REPORT", execution=asked)(handler)
    node = app.nodes["REPORT"]
    assert node.execution == execution
    timer = HostTimer()
    executor = EventLoopExecutor(timer) if execution == "async" else ThreadExecutor(1, timer)
    try:
        executor.start(Call(node, NodeContext()), told)
        assert (told.one.failure, told.one.result) == (None, 7)
    finally:
        executor.close()


def test_a_function_of_c_need_not_say_what_it_takes() -> None:
    app = Rota()
    app.task("REPORT")(max)
    assert app.nodes["REPORT"].execution == "thread"


class Yielding:
    def __call__(self, ctx: NodeContext[Any]) -> Iterator[int]:
        yield 7


def test_an_object_whose_call_is_a_generator_is_refused_as_a_generator_is() -> None:
    with pytest.raises(InvalidInput, match="has a yield, so a call would not run it"):
        Rota().task("REPORT")(Yielding())


class Aliased(BaseModel):
    model_config = ConfigDict(extra="forbid")
    region: str = Field(alias="in")


class WrittenOtherwise(BaseModel):
    region: str = Field(validation_alias="in", serialization_alias="out")


class WrittenAs(BaseModel):
    region: str = Field("eu", serialization_alias="out")


class ReadAs(BaseModel):
    region: str = Field("eu", validation_alias="in")


class Choices(BaseModel):
    region: str = Field(validation_alias=AliasChoices(AliasPath("places", 0), "in", "where"))


class Deep(BaseModel):
    region: str = Field(validation_alias=AliasPath("place", "region"))
    city: str = Field(validation_alias=AliasPath("place", "city"))


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")
    first_day: date
    labels: dict[str, str] = {}


class Colour(Enum):
    RED = "r"


class Values(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    amount: Decimal = Decimal("1.50")
    took: timedelta = timedelta(minutes=5)
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    names: frozenset[str] = frozenset({"a", "b"})
    raw: bytes = b"x"
    colour: Colour = Colour.RED
    pair: tuple[int, str] = (1, "a")
    inner: Json[list[int]] = Field(default_factory=lambda: [1])
    even: Annotated[int, AfterValidator(lambda n: n)] = 2
    path: Path = Path("/a")
    cache: dict[str, int] = Field(default_factory=lambda: {"a": 1}, exclude=True)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> Decimal:
        return 2 * self.amount


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date = date(2026, 1, 2)
    pair: tuple[int, ...] = (1, 2)
    colour: Colour = Colour.RED


class Page(BaseModel, Generic[T]):
    first: T


class Nested(BaseModel):
    one: Aliased
    many: list[Aliased]
    named: dict[str, Camel]
    page: Page[int]


class Special(Aliased):
    more: int = 1


class Root(RootModel[dict[str, Aliased]]):
    pass


EU = Aliased(**{"in": "eu"})
CAMEL = Camel(first_day=date(2026, 1, 2))
MODELS = [
    EU,
    WrittenOtherwise(**{"in": "eu"}),
    WrittenAs(region="us"),
    ReadAs(**{"in": "us"}),
    Choices.model_validate({"where": "eu"}),
    Deep.model_validate({"place": {"region": "eu", "city": "b"}}),
    CAMEL,
    Values(),
    Strict(),
    Page[int](first=1),
    Nested(one=EU, many=[EU, EU], named={"a": CAMEL}, page=Page[int](first=1)),
    Special(**{"in": "eu"}, more=2),
    Root({"a": EU}),
]


@pytest.mark.parametrize("given", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("typed", [True, False])
def test_what_a_task_is_given_as_a_model_its_run_reads_as_that_model(given: BaseModel, typed: bool) -> None:
    app, model = Rota(), type(given)
    report = app.task_type("REPORT", param=model)
    report.node("SEND")(plain)
    app.schedule("daily", report if typed else "OTHER", param=given)
    stored = app.schedules[0].param
    assert checked_param("REPORT", model, stored) == given
    check_schema(app.nodes["REPORT_SEND"].declaration().param_schema, stored, "param")


def test_a_generic_model_without_its_argument_is_taken_where_its_value_fits() -> None:
    app = Rota()
    report = app.task_type("REPORT", param=Page[int])
    untyped: Any = Page
    app.schedule("daily", report, param=untyped(first=1))
    with pytest.raises(InvalidParam, match="param of task 'weekly': first: "):
        app.schedule("weekly", report, param=untyped(first="x"))
    assert app.schedules[0].param == {"first": 1}


@pytest.mark.parametrize(
    ("model", "param"),
    [
        (Camel, {"first_day": "2026-01-02"}),
        (Camel, {"firstDay": "2026-01-02"}),
        (Choices, {"where": "eu"}),
        (Choices, {"in": "eu"}),
        (Choices, {"places": ["eu"]}),
        (Deep, {"place": {"region": "eu", "city": "b"}}),
    ],
)
def test_each_name_under_which_a_model_reads_a_field_fits_its_schema(model: type[BaseModel], param: Any) -> None:
    app = Rota()
    app.task("REPORT", cron="0 3 * * *", param=model, param_value=param)(plain)
    schema = app.nodes["REPORT"].declaration().param_schema
    check_schema(schema, param, "param")
    if model is Camel:
        with pytest.raises(InvalidParam):
            check_schema(schema, {}, "param")
        with pytest.raises(InvalidParam):
            check_schema(schema, {**param, "other": 1}, "param")


class Secret(BaseModel):
    token: SecretStr
    key: str = "an0ther"


class Growing(BaseModel):
    rate: Annotated[float, AfterValidator(lambda rate: rate / 100)]


@pytest.mark.parametrize("given", [Secret(token=SecretStr("s3cret")), Growing(rate=5)])
def test_a_model_that_a_run_would_read_otherwise_is_refused(given: BaseModel) -> None:
    kind = type(given).__name__
    with pytest.raises(InvalidInput, match=f"task 'daily': param: a run would read another {kind}") as refused:
        Rota().schedule("daily", "REPORT", param=given)
    assert "s3cret" not in str(refused.value)
    assert "an0ther" not in str(refused.value)
    assert f"give a dict from which {kind} reads what you mean" in str(refused.value)


class Rows(BaseModel):
    rows: int = 1


def test_what_the_model_would_take_and_its_schema_does_not_is_refused_at_import() -> None:
    app = Rota()
    with pytest.raises(InvalidParam, match="param of task 'report': rows: '7' is not of type 'integer'"):
        app.task("REPORT", cron="0 3 * * *", param=Rows, param_value={"rows": "7"})
