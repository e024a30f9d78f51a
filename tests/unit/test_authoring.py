"""What a task author declares, and how it is refused."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from rota import NodeContext, Rota
from rota.shared.domain.errors import InvalidInput, InvalidParam, NameTaken


class Param(BaseModel):
    region: str
    rows: int = 42


class Holder(BaseModel):
    anything: Any


@pytest.fixture
def app() -> Rota:
    return Rota()


def plain(ctx: NodeContext[Any]) -> int:
    return 1


async def coroutine(ctx: NodeContext[Any]) -> int:
    return 1


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e10])
def test_a_timeout_is_a_number_of_seconds_that_can_be_waited_for(timeout: float) -> None:
    with pytest.raises(InvalidInput, match=r"CLEAN: timeout .* must be more than 0 and at most 31,536,000 seconds"):
        Rota().task("CLEAN", timeout=timeout)


@pytest.mark.parametrize(("timeout", "told"), [(timedelta(minutes=5), " seconds; write 300"), ("60", "'60' must be")])
def test_a_timeout_that_is_no_number_is_refused_with_what_to_write(timeout: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        Rota().task("CLEAN", timeout=timeout)


def test_one_function_is_a_type_with_one_node_and_with_cron_a_task(app: Rota) -> None:
    app.task("CLEANUP_TEMP", cron="0 3 * * *", timezone="Europe/Berlin", overlap_policy="queue")(plain)
    assert [(n.type, n.category, n.sequence) for n in app.nodes.values()] == [("CLEANUP_TEMP", "CLEANUP_TEMP", 1)]
    (task,) = app.schedules
    assert (task.name, task.type, task.timezone) == ("cleanup-temp", "CLEANUP_TEMP", "Europe/Berlin")
    assert task.overlap_policy == "queue"


def test_without_cron_a_task_type_declares_no_task(app: Rota) -> None:
    app.task("CLEANUP_TEMP")(plain)
    assert app.schedules == []


@pytest.mark.parametrize("fields", [{"name": "nightly"}, {"priority": 3}])
def test_fields_of_a_task_without_cron_are_refused_not_dropped(app: Rota, fields: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidInput,
        match=r"task type CLEANUP_TEMP: name, param_value and task fields go with a trigger \(cron, every",
    ) as refused:
        app.task("CLEANUP_TEMP", **fields)
    assert f"given without it: {next(iter(fields))}" in str(refused.value)


def test_a_decorator_without_parentheses_is_told_how_to_write_it(app: Rota) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.task(plain)  # type: ignore[call-overload]
    assert str(refused.value) == "the function plain is no type name; give the decorator a name, such as 'PLAIN'"


def test_the_nodes_of_a_type_are_in_the_order_of_their_declaration(app: Rota) -> None:
    report = app.task_type("REPORT")
    report.node("SEND", timeout=60, retries=3)(plain)
    report.node("EXTRACT")(coroutine)
    declared = [node.declaration() for node in app.nodes.values()]
    assert [(d.type, d.category, d.sequence) for d in declared] == [
        ("REPORT_SEND", "REPORT", 1),
        ("REPORT_EXTRACT", "REPORT", 2),
    ]
    assert declared[0].defaults == {"execution": "thread", "timeout": 60, "retries": 3}
    assert declared[1].defaults == {"execution": "async"}


def test_a_node_may_say_how_it_is_retried(app: Rota) -> None:
    report = app.task_type("REPORT")
    report.node("SEND", retries=0, retry_on=(ConnectionError,), retry_backoff="fixed", retry_jitter_percent=None)(plain)  # type: ignore[arg-type]
    own = {"retries": 0, "retry_on": ["ConnectionError"], "retry_backoff": "fixed"}
    assert app.nodes["REPORT_SEND"].own_retry == own
    assert app.nodes["REPORT_SEND"].declaration().defaults == {"execution": "thread", **own}


@pytest.mark.parametrize("cron", [{}, {"cron": "0 3 * * *"}])
def test_a_task_of_one_node_chooses_its_exceptions_with_and_without_cron(app: Rota, cron: Any) -> None:
    app.task("REPORT", retries=2, retry_on=[OSError], never_retry=[TimeoutError], **cron)(plain)
    own = {"retries": 2, "retry_on": ["OSError"], "never_retry": ["TimeoutError"]}
    assert app.nodes["REPORT"].own_retry == own
    assert [task.retry_on for task in app.schedules] == [None] * len(cron)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"retry_on": ["Timeout"]}, "REPORT_SEND: retry_on 'Timeout': no built-in exception has that name"),
        ({"retry_jitter_percent": 101}, "REPORT_SEND: retry_jitter_percent 101: Input should be less than or equal"),
        ({"max_retry_delay_seconds": 5, "retry_delay_seconds": 6}, "REPORT_SEND: max_retry_delay_seconds 5 is less"),
        ({"retry_backoff": "linear"}, "REPORT_SEND: retry_backoff 'linear'"),
    ],
)
def test_a_node_that_cannot_be_retried_so_is_refused(app: Rota, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.task_type("REPORT").node("SEND", **fields)
    assert str(refused.value).startswith(said)
    assert app.nodes == {}


def test_a_declared_param_is_registered_as_a_schema(app: Rota) -> None:
    app.task_type("REPORT", param=Param).node("SEND")(plain)
    schema = app.nodes["REPORT_SEND"].declaration().param_schema
    assert schema is not None
    assert schema["required"] == ["region"]


def test_functions_stay_plainly_callable(app: Rota) -> None:
    assert app.task("A")(plain) is plain
    assert app.task_type("B").node("C")(plain)(NodeContext()) == 1


@pytest.mark.parametrize(
    "name", [5, "", "report", "Report", "REPORT-SEND", "_REPORT", "REPORT_", "A__B", "1A", "A B", "É", "A" * 64, "A\n"]
)
def test_names_that_are_no_type_names_are_refused(app: Rota, name: Any) -> None:
    for declare in (app.task_type, app.task, app.task_type("REPORT").node):
        with pytest.raises(InvalidInput, match="is no type name; write capitals"):
            declare(name)
    assert app.nodes == {}


@pytest.mark.parametrize("name", ["A", "A1", "A_1B", "HTTP_HOOK", "A" * 63])
def test_capitals_digits_and_underscores_are_type_names(app: Rota, name: str) -> None:
    app.task(name)(plain)
    assert name in app.nodes


def test_a_type_a_node_or_a_task_declared_twice_is_refused(app: Rota) -> None:
    report = app.task_type("REPORT")
    report.node("SEND")(plain)
    with pytest.raises(NameTaken, match="REPORT_SEND is declared twice"):
        report.node("SEND")(plain)
    with pytest.raises(NameTaken, match="task type REPORT is declared twice"):
        app.task("REPORT")
    with pytest.raises(NameTaken, match="REPORT_SEND is declared twice"):
        app.task("REPORT_SEND")(plain)
    app.schedule("daily", report, cron="0 3 * * *")
    with pytest.raises(NameTaken, match="task 'daily' is declared twice"):
        app.schedule("daily", "OTHER")


def no_argument() -> None: ...


def two_arguments(ctx: NodeContext[Any], other: int) -> None: ...


def by_keyword(*, ctx: NodeContext[Any]) -> None: ...


@pytest.mark.parametrize("handler", [no_argument, two_arguments, by_keyword, partial(no_argument)])
def test_a_handler_that_cannot_take_the_context_is_refused(app: Rota, handler: Any) -> None:
    with pytest.raises(InvalidInput, match=r"REPORT: .* must take one argument, the NodeContext"):
        app.task("REPORT")(handler)
    assert app.nodes == {}


def generator(ctx: NodeContext[Any]) -> Iterator[int]:
    yield 1


async def async_generator(ctx: NodeContext[Any]) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("handler", [generator, async_generator, partial(generator)])
@pytest.mark.parametrize("execution", [None, "thread", "process", "async"])
def test_a_generator_is_refused_because_a_call_would_not_run_it(app: Rota, handler: Any, execution: Any) -> None:
    with pytest.raises(InvalidInput, match=r"REPORT_SEND: .* has a yield, so a call would not run it"):
        app.task_type("REPORT").node("SEND", execution=execution)(handler)
    assert app.nodes == {}


def test_a_field_that_a_node_does_not_have_is_refused_with_those_that_it_has(app: Rota) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.task_type("REPORT").node("SEND", max_retries=3)  # type: ignore[call-arg]
    told = (
        "REPORT_SEND: max_retries is no field of a node (did you mean retries?); there are: timeout, retries, execution"
    )
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("retries", '; give it to its nodes, .node("NAME", retries=…) or to the task, app.schedule'),
        ("timeout", '; give it to its nodes, .node("NAME", timeout=…)'),
        ("cron", "; give it to the task, app.schedule"),
        ("parm", " (did you mean param?); there are: param, replace"),
    ],
)
def test_a_field_that_a_task_type_does_not_have_is_refused_with_where_it_belongs(
    app: Rota, field: str, told: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.task_type("REPORT", **{field: 3})  # type: ignore[call-overload]
    assert str(refused.value) == f"task type REPORT: {field} is no field of a task type{told}"


@pytest.mark.parametrize("cron", [{}, {"cron": "0 3 * * *"}])
def test_a_field_that_a_task_does_not_have_is_refused_with_and_without_cron(app: Rota, cron: dict[str, str]) -> None:
    with pytest.raises(
        InvalidInput, match=r"max_retries is no field of a task \(did you mean retries\?\); there are: "
    ):
        app.task("REPORT", max_retries=3, **cron)  # type: ignore[call-overload]


@pytest.mark.parametrize(("column", "told"), [("cron_seconds", "seconds=True"), ("type", "task_type=…")])
def test_a_column_that_has_another_name_in_code_is_refused_with_that_name(app: Rota, column: str, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.schedule("nightly", "REPORT", cron="0 3 * * * *", **{column: 1})  # type: ignore[arg-type]
    assert str(refused.value) == f"task 'nightly': {column} is the name of its column; in code write {told}"


def test_what_is_no_function_is_refused(app: Rota) -> None:
    with pytest.raises(InvalidInput, match="'x' is not a function"):
        app.task("REPORT")("x")  # type: ignore[arg-type]


def with_more(ctx: NodeContext[Any], other: int = 1, *rest: int, **named: int) -> None: ...


class Handler:
    def method(self, ctx: NodeContext[Any]) -> None: ...


@pytest.mark.parametrize("handler", [with_more, Handler().method, partial(two_arguments, other=1), lambda ctx: None])
def test_whatever_can_be_called_with_the_context_is_a_handler(app: Rota, handler: Any) -> None:
    app.task("REPORT")(handler)
    assert app.nodes["REPORT"].execution == "thread"


@pytest.mark.parametrize(
    ("handler", "asked", "execution"),
    [
        (coroutine, None, "async"),
        (coroutine, "async", "async"),
        (partial(coroutine), None, "async"),
        (plain, None, "thread"),
        (plain, "thread", "thread"),
        (plain, "process", "process"),
    ],
)
def test_a_handler_runs_where_its_kind_runs_or_as_asked(app: Rota, handler: Any, asked: Any, execution: str) -> None:
    app.task("REPORT", execution=asked)(handler)
    assert app.nodes["REPORT"].execution == execution


@pytest.mark.parametrize(
    ("handler", "asked", "said"),
    [
        (coroutine, "thread", "is an async def, which cannot run"),
        (coroutine, "process", "is an async def, which cannot run"),
        (plain, "greenlet", "'greenlet' is none of async, thread, process"),
        (plain, "async", 'is a def, which cannot run with execution="async"'),
    ],
)
def test_a_handler_that_cannot_run_as_asked_is_refused(app: Rota, handler: Any, asked: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        app.task("REPORT", execution=asked)(handler)


@pytest.mark.parametrize(
    ("param", "held"), [(Param(region="us"), {"region": "us", "rows": 42}), ({"region": "us"}, {"region": "us"})]
)
def test_a_schedule_holds_its_param_as_json(app: Rota, param: Any, held: dict[str, Any]) -> None:
    report = app.task_type("REPORT", param=Param)
    app.schedule("daily", report, cron="*/5 * * * * *", seconds=True, param=param, retries=2)
    (task,) = app.schedules
    assert (task.param, task.cron_seconds, task.retries, task.trigger_kind) == (held, True, 2, "cron")


def test_a_naive_time_is_local_time_of_the_tasks_zone(app: Rota) -> None:
    app.task_type("REPORT")
    nine = datetime(2030, 1, 1, 9)  # noqa: DTZ001 - as people write it
    given: list[tuple[datetime | str, int]] = [(nine, 1), ("2030-01-01T09:00", 1), (nine.replace(tzinfo=UTC), 9)]
    for number, (starts_at, hour) in enumerate(given):
        app.schedule(f"daily-{number}", "REPORT", every="1d", timezone="Asia/Shanghai", starts_at=starts_at)
        assert app.schedules[-1].starts_at == nine.replace(hour=hour)
    app.schedule("once", "REPORT", at=nine, timezone="Asia/Shanghai")
    assert app.schedules[-1].inputs.next_after(nine - timedelta(days=9)) == nine.replace(hour=1)
    with pytest.raises(InvalidInput, match="task 'odd': 'soon' is not a time"):
        app.schedule("odd", "REPORT", ends_at="soon")


def test_one_function_may_have_any_trigger(app: Rota) -> None:
    app.task("POLL", every=timedelta(minutes=15))(plain)
    app.task("LAUNCH", name="the-launch", at="2030-01-01")(plain)
    assert [(task.name, task.trigger_kind) for task in app.schedules] == [("poll", "interval"), ("the-launch", "once")]


@pytest.mark.parametrize("param", [{"region": 7}, {}, {"region": "eu", "rows": "many"}])
def test_a_schedules_param_that_does_not_fit_is_refused_in_a_sentence(app: Rota, param: dict[str, Any]) -> None:
    report = app.task_type("REPORT", param=Param)
    with pytest.raises(InvalidParam, match=r"param of task 'daily': (region|rows): "):
        app.schedule("daily", report, param=param)
    assert app.schedules == []


def test_a_task_whose_model_requires_a_field_needs_a_param(app: Rota) -> None:
    said = r"param of task 'report': region: Field required; give a param_value, for example Param\(region=…\)"
    with pytest.raises(InvalidParam, match=said):
        app.task("REPORT", cron="0 3 * * *", param=Param)
    said = r"param of task 'daily': region: Field required; give a param, for example Param\(region=…\)"
    for app_type in (app.task_type("OTHER", param=Param), "OTHER"):
        with pytest.raises(InvalidParam, match=said):
            app.schedule("daily", app_type)
    assert app.schedules == []


@pytest.mark.parametrize("value", [Param(region="us", rows=7), {"region": "us", "rows": 7}])
def test_the_one_node_form_takes_the_param_of_its_task(app: Rota, value: Any) -> None:
    app.task("REPORT", cron="0 3 * * *", param=Param, param_value=value)(plain)
    assert [task.param for task in app.schedules] == [{"region": "us", "rows": 7}]


def test_a_param_value_that_does_not_fit_or_has_no_task_is_refused(app: Rota) -> None:
    with pytest.raises(InvalidParam, match=r"param of task 'report': region: Input should be a valid string"):
        app.task("REPORT", cron="0 3 * * *", param=Param, param_value={"region": 7})
    with pytest.raises(
        InvalidInput,
        match=r"task type OTHER: name, param_value and task fields go with a trigger \(cron, every",
    ):
        app.task("OTHER", param=Param, param_value=Param(region="eu"))


def test_a_param_without_a_model_may_be_given_to_the_one_node_form(app: Rota) -> None:
    app.task("REPORT", cron="0 3 * * *", param_value={"region": "us"})(plain)
    assert app.schedules[0].param == {"region": "us"}


def test_a_param_of_another_model_is_refused(app: Rota) -> None:
    with pytest.raises(InvalidParam, match="task 'report': param_value is a Number, where its type takes a Param"):
        app.task("REPORT", cron="0 3 * * *", param=Param, param_value=Number())
    with pytest.raises(InvalidParam, match="task 'daily': param is a Number, where its type takes a Param"):
        app.schedule("daily", "REPORT", param=Number())


def test_a_task_that_lists_nodes_is_checked_when_all_nodes_are_known(app: Rota) -> None:
    nodes = {"nodes": [{"type": "REPORT_SEND", "param": {"region": "eu"}}]}
    app.schedule("daily", app.task_type("REPORT", param=Param), param=nodes)
    assert app.schedules[0].param == nodes


class Number(BaseModel):
    rate: float = 1.0


@pytest.mark.parametrize(
    ("param", "said"),
    [
        (
            {"a": [float("nan")]},
            "task 'daily': param.a[0] is nan, a number that JSON does not have; write None or a text",
        ),
        ({"day": date(2026, 1, 2)}, "task 'daily': param.day is a date, which JSON does not have; write a text"),
        (Number(rate=float("inf")), "task 'daily': param.rate is inf"),
        (Number, "task 'daily': param is the class Number; give a value, Number(…)"),
        ([1], "task 'daily': param [1]: Input should be a valid dictionary"),
        (Holder(anything=object()), "task 'daily': param: Unable to serialize unknown type: <class 'object'>"),
    ],
    ids=["nan", "date", "inf in a model", "class", "list", "object in a model"],
)
def test_a_param_that_is_not_json_is_refused_by_its_task_and_key(app: Rota, param: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.schedule("daily", "REPORT", cron="0 3 * * *", param=param)
    assert said in str(refused.value)
    assert app.schedules == []


@pytest.mark.parametrize(
    ("task_type", "said"),
    [
        (plain, "the function plain; write the name of its type, such as 'REPORT'"),
        (None, "None; write a task type of app.task_type, or its name"),
        (7, "7; write a task type of app.task_type, or its name"),
        ("report", "'report' is no type name; write capitals"),
    ],
)
def test_what_is_no_task_type_is_refused_by_its_task(app: Rota, task_type: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.schedule("daily", task_type)
    assert str(refused.value).startswith("task 'daily': type ")
    assert said in str(refused.value)


@pytest.mark.parametrize(("given", "said"), [(dict, "dict"), (Param(region="eu"), "Param(region='eu', rows=42)")])
def test_the_param_of_a_type_is_a_model(app: Rota, given: Any, said: str) -> None:
    for declare in (app.task_type, app.task):
        with pytest.raises(InvalidInput) as refused:
            declare("REPORT", param=given)
        assert "task type REPORT: param must be a pydantic model, a subclass of BaseModel, not " in str(refused.value)
        assert said in str(refused.value)


class Unschematic(BaseModel):
    call: Callable[[], int] | None = None


def test_a_model_that_has_no_json_schema_is_refused_by_its_type(app: Rota) -> None:
    app.task("REPORT", param=Unschematic)(plain)
    with pytest.raises(InvalidInput, match="REPORT: its param model Unschematic has no JSON schema: "):
        app.nodes["REPORT"].declaration()


@pytest.mark.parametrize("retries", [-1, 1001, 1.5, "3"])
def test_the_retries_of_a_node_are_a_number_up_to_a_thousand(app: Rota, retries: Any) -> None:
    with pytest.raises(InvalidInput, match=f"REPORT: retries {retries!r} must be a whole number from 0 to 1,000"):
        app.task("REPORT", retries=retries)


def test_at_most_once_excludes_retries_of_the_task_and_of_its_one_node(app: Rota) -> None:
    with pytest.raises(InvalidInput, match="retries must be 0, not 2"):
        app.schedule("daily", "REPORT", retries=2, on_worker_lost="fail")
    with pytest.raises(InvalidInput, match="task type PAY: on_worker_lost fail means at most once"):
        app.task("PAY", cron="0 3 * * *", retries=2, on_worker_lost="fail")
    assert (app.schedules, app.nodes) == ([], {})


def test_a_schedule_may_name_a_type_that_another_app_declares_and_be_manual(app: Rota) -> None:
    app.schedule("ping", "HTTP_REQUEST", param={"url": "https://example.org"})
    assert (app.schedules[0].type, app.schedules[0].trigger_kind) == ("HTTP_REQUEST", "manual")


def test_a_schedule_is_refused_with_every_fault(app: Rota) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.schedule("daily", "REPORT", cron="61 * * * *", timezone="Mars/Base", colour="red")  # type: ignore[call-arg]
    lines = str(refused.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("task 'daily': ") for line in lines)


def test_a_node_that_runs_always_is_registered_so_and_no_other_nodes_version_changes() -> None:
    plain, marked = (Rota().task_type("REPORT") for _ in range(2))
    plain.node("CLEANUP")(lambda ctx: None)
    marked.node("CLEANUP", always=True)(lambda ctx: None)
    of_plain, of_marked = (one._app.nodes["REPORT_CLEANUP"].declaration() for one in (plain, marked))
    assert of_plain.defaults == {"execution": "thread"}
    assert of_marked.defaults == {"execution": "thread", "always": True}


def test_the_nodes_for_which_a_node_waits_are_registered_by_their_types() -> None:
    report = Rota().task_type("REPORT")
    app = report._app
    for name, after in (("EU", []), ("US", ()), ("SEND", "EU"), ("MERGE", ["REPORT_EU", "US", "EU"]), ("LOG", None)):
        report.node(name, after=after)(lambda ctx: None)
    declared = {name: node.declaration().defaults or {} for name, node in app.nodes.items()}
    assert {name.removeprefix("REPORT_"): defaults.get("after", "all") for name, defaults in declared.items()} == {
        "EU": [], "US": [], "SEND": ["REPORT_EU"], "MERGE": ["REPORT_EU", "REPORT_US"], "LOG": "all",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (
            {"after": ["LATER"]},
            "REPORT_MERGE: after names 'LATER', which is not declared before it; declared before it: REPORT_EU.",
        ),
        ({"after": "MERGE"}, "REPORT_MERGE: after names 'MERGE', which is not declared before it"),
        ({"after": 7}, r"REPORT_MERGE: after 7 must be a list of names of nodes before it; \[\] is for none"),
        (
            {"after": [], "always": True},
            "REPORT_MERGE: a node that runs always waits for all nodes before it: leave out after",
        ),
    ],
)
def test_a_node_that_cannot_wait_so_is_refused_and_nothing_is_declared(fields: dict[str, Any], fault: str) -> None:
    report = Rota().task_type("REPORT")
    report.node("EU")(lambda ctx: None)
    with pytest.raises(InvalidInput, match=fault):
        report.node("MERGE", **fields)
    assert list(report._app.nodes) == ["REPORT_EU"]


@pytest.mark.parametrize("always", [1, "yes", None])
def test_what_says_neither_that_a_node_runs_always_nor_that_it_does_not_is_refused(always: Any) -> None:
    with pytest.raises(InvalidInput, match=r"REPORT_CLEANUP: always .* must be True or False"):
        Rota().task_type("REPORT").node("CLEANUP", always=always)
