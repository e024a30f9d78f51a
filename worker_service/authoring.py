"""The classes that a task author uses: an app, its task types and nodes, and its schedules."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, Generic, Unpack, cast, overload

from pydantic import BaseModel

from rota.shared.domain.errors import InvalidInput, NameTaken
from rota.shared.domain.node_order import After, checked_after
from rota.shared.domain.retry import RetryFields
from rota.shared.domain.states import WorkerLostPolicy
from rota.shared.domain.task import TRIGGER_FIELDS, TaskDefinition, no_field_of_a_task, read_times
from rota.shared.domain.task_fields import TaskFields
from rota.worker_service.built_in_types import refuse_built_in
from rota.worker_service.contents import Contents, Handler, Node, ParamModel
from rota.worker_service.context import NodeContext
from rota.worker_service.handlers import check_always, check_limits, execution_of, own_retry, refuse_unknown_of_type
from rota.worker_service.signatures import Execution, Model, More, NodeDecorator, NoMore, OneNode, P, Returned
from rota.worker_service.values import checked_model, declared_param

TYPE_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")


IN_CODE = {"cron_seconds": "seconds=True", "type": "task_type=…"}
"""What is called otherwise in code than in the table of tasks."""


class TaskType(Generic[P]):
    """A task type: a category of nodes. Each runs after those before it, or after those that its ``after`` names.

    report = app.task_type("REPORT", param=ReportParam)

    @report.node("EXTRACT", timeout=60)
    def extract(ctx: NodeContext[ReportParam]) -> dict[str, int]: ...
    """

    def __init__(self, app: "Rota", category: str, param: ParamModel | None, *, replace: bool = False) -> None:
        self._app = app
        self.category = category
        self.param = param
        self._replace = replace
        self._nodes: list[str] = []

    def node(
        self,
        name: str,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        execution: Execution | None = None,
        always: bool = False,
        after: str | Sequence[str] | None = None,
        **retry: Unpack[RetryFields],
    ) -> NodeDecorator[P]:
        """Declare the next node, of the type CATEGORY_NAME. The function can still be called as before.

        ``timeout`` is in seconds, ``retries`` is how often a failure is retried, and ``retry`` says when and after
        which exceptions (``retry_on=(ConnectionError,)``); what is not given is the task's.
        ``execution``: an ``async def`` runs on the event loop, a ``def`` on a thread; ``"process"`` runs a ``def`` in
        a process of its own, which can be killed at its timeout or when it is canceled.
        ``always``: it also runs when a node before it has failed, was canceled, or ended the run.
        ``after``: the nodes before it for which it waits, by their names; ``[]`` waits for none, and without ``after``
        it waits for all. Nodes that do not wait for each other run beside each other, if the run has several slots
        (``weight``).

        Raises InvalidInput for a bad name, timeout, number of retries or handler, for a node that ``after`` names and
        that is not before it, and for a field that a node does not have; NameTaken for a node declared twice or built
        in.
        """
        node_type = f"{self.category}_{_checked(name)}"
        own = own_retry(node_type, retry)
        refuse_built_in(node_type, replace=self._replace)
        check_always(node_type, always)
        waits = checked_after(node_type, after, self._nodes, f"{self.category}_", always=always)
        return self._register(node_type, timeout, retries, execution, own, always=always, after=waits)

    def _register(
        self,
        node_type: str,
        timeout: float | None,
        retries: int | None,
        execution: Execution | None,
        retry: Mapping[str, Any],
        *,
        always: bool = False,
        after: After = None,
    ) -> NodeDecorator[P]:
        check_limits(node_type, timeout, retries)

        def decorate(
            handler: Callable[Concatenate[NodeContext[P], More], Returned], /
        ) -> Callable[Concatenate[NodeContext[P], More], Returned]:
            self._nodes.append(node_type)
            self._app.add(
                Node(
                    type=node_type,
                    category=self.category,
                    sequence=len(self._nodes),
                    handler=cast("Handler", handler),
                    execution=execution_of(node_type, handler, execution),
                    timeout=timeout,
                    retries=retries,
                    param_model=self.param,
                    retry=retry,
                    always=always,
                    after=after,
                )
            )
            return handler

        return decorate


class Rota(Contents):
    """An app: the nodes that a worker can run, and the tasks that the code declares.

    app = Rota()

    @app.task("CLEANUP_TEMP", cron="0 3 * * *")
    async def cleanup(ctx: NodeContext) -> dict[str, int]:
        return {"removed": 17}
    """

    @overload
    def task_type(
        self, category: str, *, param: None = None, replace: bool = ..., **unknown: Unpack[NoMore]
    ) -> TaskType: ...
    @overload
    def task_type(
        self, category: str, *, param: type[Model], replace: bool = ..., **unknown: Unpack[NoMore]
    ) -> TaskType[Model]: ...
    def task_type(
        self, category: str, *, param: ParamModel | None = None, replace: bool = False, **unknown: Unpack[NoMore]
    ) -> TaskType[Any]:
        """Declare a task type; its nodes follow by ``.node``.

        ``param`` is checked when a task is saved and again when it runs. ``replace``: the type, or a node of it,
        may replace one that comes with Rota. Raises InvalidInput, also for a field that a task type does not have, and
        NameTaken.
        """
        refuse_unknown_of_type(category, unknown)
        if category in self._types:
            raise NameTaken(f"task type {category} is declared twice in this app")
        refuse_built_in(category, replace=replace)
        made: TaskType[Any] = TaskType(self, _checked(category), checked_model(category, param), replace=replace)
        self._types[category] = made
        return made

    @overload
    def task(
        self, type: str, *, param: None = None, param_value: dict[str, Any] | None = None, **fields: Unpack[OneNode]
    ) -> NodeDecorator: ...
    @overload
    def task(
        self,
        type: str,
        *,
        param: type[Model],
        param_value: Model | dict[str, Any] | None = None,
        **fields: Unpack[OneNode],
    ) -> NodeDecorator[Model]: ...
    def task(
        self,
        type: str,  # noqa: A002 - the column's name
        *,
        name: str | None = None,
        cron: str | None = None,
        seconds: bool = False,
        timezone: str = "UTC",
        param: ParamModel | None = None,
        param_value: BaseModel | dict[str, Any] | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        execution: Execution | None = None,
        replace: bool = False,
        **fields: Any,
    ) -> NodeDecorator[Any]:
        """Declare a task type with one node: the function. With a trigger, declare a task of it, too.

        The task's name defaults to the type in lower case with dashes (``cleanup-temp``). ``param`` is the model of the
        param, and ``param_value`` the param of this task. ``timeout``, ``retries``, ``retry_on`` and ``never_retry``
        are the node's. ``fields`` are further fields of the task: ``overlap_policy``, ``priority``, …

        Raises InvalidInput, which names every fault, and NameTaken.

            @app.task("INVOICES", cron="0 5 * * *", param=InvoiceParam, param_value=InvoiceParam(region="eu"))
            def invoices(ctx: NodeContext[InvoiceParam]) -> None: ...
        """
        if retries and fields.get("on_worker_lost") == WorkerLostPolicy.FAIL:
            raise InvalidInput(
                f"task type {type}: on_worker_lost fail means at most once: retries must be 0, not {retries}"
            )
        own = own_retry(type, {name: fields.pop(name) for name in ("retry_on", "never_retry") if name in fields})
        task_type = self.task_type(type, param=param, replace=replace)
        if cron is not None or any(fields.get(trigger) is not None for trigger in TRIGGER_FIELDS):
            task_name = name or type.lower().replace("_", "-")
            given = declared_param(task_name, param, param_value, "param_value")
            self.schedule(task_name, task_type, cron=cron, seconds=seconds, timezone=timezone, param=given, **fields)
        elif name is not None or param_value is not None or fields:
            raise _without_trigger(type, {"name": name, "param_value": param_value, **fields})
        return task_type._register(type, timeout, retries, execution, own)  # noqa: SLF001 - one unit

    def schedule(
        self,
        name: str,
        task_type: TaskType[P] | str,
        *,
        cron: str | None = None,
        seconds: bool = False,
        timezone: str = "UTC",
        param: P | dict[str, Any] | None = None,
        **fields: Unpack[TaskFields],
    ) -> None:
        """Declare a task. A worker inserts or updates it by its name when it starts.

        The worker writes only fields whose declared value has changed since the last declaration, and never ``status``.
        So an operator's edit survives restarts. Give ``cron``, ``every``, ``fixed_delay``, ``at``, ``any_of``,
        ``all_of`` or ``after``; without a trigger the task runs only when asked. ``every`` and ``fixed_delay`` are in
        seconds, a ``timedelta``, or a text such as ``15m``; ``all_of=[{"cron": "0 9 * * fri"}, {"every": "14d"}]``
        combines several. ``after=["extract", "load"]`` follows other tasks. A naive time is local time in ``timezone``.

        Raises InvalidInput, which names every fault, and NameTaken.
        """
        if name in self._schedules:
            raise NameTaken(f"task {name!r} is declared twice in this app")
        named, model = self._type_of(name, task_type)
        given = declared_param(name, model, param, "param")
        if column := next((field for field in fields if field in IN_CODE), None):
            raise InvalidInput(f"task {name!r}: {column} is the name of its column; in code write {IN_CODE[column]}")
        try:
            taken, _ = read_times({field: _as_text(value) for field, value in fields.items()}, timezone)
            self._schedules[name] = TaskDefinition.of(
                name=name, type=named, cron=cron, cron_seconds=seconds, timezone=timezone, param=given, **taken
            )
        except InvalidInput as error:
            faults = [f"task {name!r}: {fault}" for fault in str(error).splitlines()]
            raise InvalidInput("\n".join(faults)) from None

    def _type_of(self, task: str, given: Any) -> tuple[str, ParamModel | None]:
        """The name of a task's type, and its model where this app declares it."""
        if isinstance(given, TaskType):
            return given.category, given.param
        if inspect.isfunction(given):
            said = f"the function {given.__name__}; write the name of its type, such as 'REPORT'"
            raise InvalidInput(f"task {task!r}: type is {said}")
        if not isinstance(given, str):
            raise InvalidInput(f"task {task!r}: type is {given!r}; write a task type of app.task_type, or its name")
        try:
            own = self._types.get(_checked(given))
        except InvalidInput as error:
            raise InvalidInput(f"task {task!r}: type {error}") from None
        return given, None if own is None else own.param


def _as_text(value: Any) -> Any:
    """A naive time as a text, which is then read as local time of the task's zone. All else as it is."""
    return value.isoformat() if isinstance(value, datetime) and value.tzinfo is None else value


def _without_trigger(task_type: str, given: Mapping[str, object]) -> InvalidInput:
    for unknown in given.keys() - TaskDefinition.model_fields.keys() - {"param_value"}:
        return InvalidInput(f"task type {task_type}: {no_field_of_a_task(unknown)}")
    lone = ", ".join(key for key, value in given.items() if value is not None)
    trigger = f"a trigger ({', '.join(TRIGGER_FIELDS)})"
    told = f"name, param_value and task fields go with {trigger}; given without it: {lone}; or use app.schedule"
    return InvalidInput(f"task type {task_type}: {told}")


def _checked(name: str) -> str:
    if inspect.isfunction(name):  # a decorator without parentheses
        advice = f"give the decorator a name, such as {name.__name__.upper()!r}"
        raise InvalidInput(f"the function {name.__name__} is no type name; {advice}")
    if not isinstance(name, str) or not TYPE_NAME.fullmatch(name) or len(name) > 63:
        raise InvalidInput(
            f"{name!r} is no type name; write capitals, digits and underscores, like REPORT or SEND_MAIL"
        )
    return name
