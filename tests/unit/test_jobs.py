"""Jobs as classes: what they declare, what the class statement refuses, and how each run gets an object of its own."""

import asyncio
import inspect
from abc import abstractmethod
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from rota import Job, NodeContext, Rota
from rota.client.session import type_name
from rota.shared.domain.errors import InvalidInput, NameTaken
from rota.worker_service import jobs
from rota.worker_service.jobs import FIELDS, declare, jobs_of


class ReportParam(BaseModel):
    region: str


class OtherParam(BaseModel):
    colour: str


@pytest.fixture(autouse=True)
def _no_other_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_by_name", {})


def app_of(job: type[Job[Any]]) -> Rota:
    app = Rota()
    declare(job, app)
    return app


def run(app: Rota, node: str, ctx: Any = None) -> Any:
    done = app.nodes[node].handler(ctx)
    return asyncio.run(done) if inspect.isawaitable(done) else done  # type: ignore[arg-type]


def test_a_job_declares_what_app_task_declares() -> None:
    class CleanupTemp(Job):
        cron = "0 3 * * *"
        timezone = "Europe/Berlin"
        retries = 2
        timeout = 60
        overlap_policy = "queue"
        tags: ClassVar = ["night"]

        async def run(self, ctx: NodeContext) -> dict[str, int]:
            return {"removed": 17}

    app = Rota()

    @app.task(
        "CLEANUP_TEMP", cron="0 3 * * *", timezone="Europe/Berlin", retries=2, timeout=60, overlap_policy="queue",
        tags=["night"],
    )  # fmt: skip
    async def cleanup(ctx: NodeContext) -> dict[str, int]:
        return {"removed": 17}

    own = app_of(CleanupTemp)
    assert own.schedules == app.schedules
    assert [n.declaration() for n in own.nodes.values()] == [n.declaration() for n in app.nodes.values()]
    assert CleanupTemp.category == "CLEANUP_TEMP"
    assert run(own, "CLEANUP_TEMP") == {"removed": 17}


def test_its_param_has_a_model() -> None:
    class Report(Job[ReportParam]):
        type = "MONTHLY_REPORT"
        name = "report"
        every = "1h"
        param = ReportParam
        param_value = ReportParam(region="eu")
        execution = "process"

        def run(self, ctx: NodeContext[ReportParam]) -> str:
            return ctx.param.region

    app = app_of(Report)
    [task] = app.schedules
    assert (task.name, task.type, task.param) == ("report", "MONTHLY_REPORT", {"region": "eu"})
    assert app.nodes["MONTHLY_REPORT"].execution == "process"
    assert run(app, "MONTHLY_REPORT", SimpleNamespace(param=ReportParam(region="us"))) == "us"


def test_its_model_is_that_of_its_class() -> None:
    class Base(Job[ReportParam], abstract=True):
        async def run(self, ctx: NodeContext[ReportParam]) -> str:
            return ctx.param.region

    class Report(Base):
        every = "1h"
        param_value = ReportParam(region="eu")

    assert app_of(Report).nodes["REPORT"].param_model is ReportParam
    with pytest.raises(InvalidInput, match=r"and the class is a Job\[ReportParam\]; write the same model"):

        class Other(Job[ReportParam]):
            param = OtherParam

            def run(self, ctx: NodeContext[ReportParam]) -> None: ...


def test_each_run_has_an_object_of_its_own() -> None:
    class Counts(Job):
        def __init__(self) -> None:
            self.number = 0

        def run(self, ctx: NodeContext) -> int:
            self.number += 1
            return self.number

    app = app_of(Counts)
    assert [run(app, "COUNTS"), run(app, "COUNTS")] == [1, 1]


def test_jobs_share_the_fields_of_a_base_which_is_no_job() -> None:
    class Ours(Job, abstract=True):
        timezone = "Asia/Shanghai"
        retries = 5

        def run(self, ctx: NodeContext) -> str:
            return type(self).__name__

    class First(Ours):
        cron = "0 1 * * *"

    class Second(Ours):
        cron = "0 2 * * *"
        retries = 0

    assert jobs_of({__name__}) == [First, Second]
    tasks = [app_of(job).schedules[0] for job in (First, Second)]
    assert [(one.name, one.timezone) for one in tasks] == [("first", "Asia/Shanghai"), ("second", "Asia/Shanghai")]
    assert [app_of(one).nodes[one.category].retries for one in (First, Second)] == [5, 0]
    assert run(app_of(Second), "SECOND") == "Second"


def test_a_job_of_an_app_is_declared_there_and_nowhere_else() -> None:
    app = Rota()

    class Cleanup(Job, app=app):
        cron = "0 3 * * *"

        def run(self, ctx: NodeContext) -> None: ...

    assert (list(app.nodes), [task.name for task in app.schedules]) == (["CLEANUP"], ["cleanup"])
    assert jobs_of({__name__}) == []
    with pytest.raises(NameTaken, match=r"node type 'CLEANUP' is declared by two apps"):

        class Again(Job, app=app):
            type = "CLEANUP"

            def run(self, ctx: NodeContext) -> None: ...


@pytest.mark.parametrize(
    ("name", "task_type"),
    [
        ("Cleanup", "CLEANUP"),
        ("CleanupTemp", "CLEANUP_TEMP"),
        ("HTTPFetch", "HTTP_FETCH"),
        ("S3Copy", "S3_COPY"),
        ("ReportV2", "REPORT_V2"),
        ("sync_orders", "SYNC_ORDERS"),
    ],
)
def test_the_type_is_named_after_the_class(name: str, task_type: str) -> None:
    made = type(name, (Job,), {"run": lambda self, ctx: None})
    assert made.category == task_type  # type: ignore[attr-defined]


def fine(self: object, ctx: NodeContext) -> None: ...


async def awaited(self: object, ctx: NodeContext) -> None: ...


def without_context(self: object) -> None: ...


def yielding(self: object, ctx: NodeContext) -> Any:
    yield 1


def needs_more(self: object, given: int) -> None: ...


@abstractmethod  # type: ignore[misc]
def unwritten(self: object) -> None: ...


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({}, "it has no method run; write: async def run(self, ctx: NodeContext)"),
        ({"run": 5}, "it has no method run"),
        ({"run": without_context}, "without_context must take one argument, the NodeContext"),
        ({"run": yielding}, "has a yield"),
        ({"run": awaited, "execution": "process"}, 'is an async def, which cannot run with execution="process"'),
        ({"run": fine, "__init__": needs_more}, "its __init__ must take no argument"),
        ({"run": fine, "cron": "61 * * * *"}, "the minute field has 61"),
        ({"run": fine, "corn": "0 3 * * *"}, "corn is no field of a job (did you mean cron?)"),
        ({"run": fine, "retriess": 3}, "did you mean retries?"),
        ({"run": fine, "name": "nightly"}, "go with a trigger"),
        ({"run": fine, "type": "lower"}, "'lower' is no type name"),
        ({"run": fine, "type": ""}, "'' is no type name"),
        ({"run": fine, "helper": unwritten}, "its method helper is abstract; write it"),
        ({"run": fine, "type": "HTTP_REQUEST"}, "HTTP_REQUEST"),
        ({"run": fine, "retries": -1}, "retries -1 must be a whole number"),
    ],
)
def test_what_is_wrong_is_refused_by_the_class_statement(attributes: dict[str, Any], said: str) -> None:
    with pytest.raises((InvalidInput, NameTaken)) as refused:
        type("Wrong", (Job,), attributes)
    assert said in str(refused.value)
    assert f"job {__name__}.Wrong: " in str(refused.value)
    assert jobs_of({__name__}) == []


def test_every_fault_is_named_each_with_the_job() -> None:
    with pytest.raises(InvalidInput) as refused:
        type("Wrong", (Job,), {"run": fine, "cron": "0 3 * * *", "priority": 99, "max_instances": 0})
    lines = str(refused.value).splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"job {__name__}.Wrong: task 'wrong': ") for line in lines)


def test_two_of_one_type_or_of_one_task_are_refused() -> None:
    type("Cleanup", (Job,), {"run": fine})
    with pytest.raises(NameTaken, match=r"\.Cleanup: task type CLEANUP is that of the job .*\.Cleanup, too"):
        type("Cleanup", (Job,), {"run": fine})
    type("Nightly", (Job,), {"run": fine, "cron": "0 3 * * *"})
    with pytest.raises(NameTaken, match=r"\.Other: task 'nightly' is that of the job .*\.Nightly, too"):
        type("Other", (Job,), {"run": fine, "cron": "0 3 * * *", "name": "nightly"})


def test_what_else_a_job_holds_is_its_own() -> None:
    made = type("Own", (Job,), {"run": fine, "endpoint": "https://example.org", "LIMIT": 5, "helper": fine})
    assert app_of(made).nodes


def test_a_job_takes_all_that_app_task_takes() -> None:
    named = {name for name in inspect.signature(Rota.task).parameters if name not in ("self", "fields")}
    assert named <= {*FIELDS}


def test_a_job_is_a_type_for_the_client() -> None:
    assert type_name(type("Cleanup", (Job,), {"run": fine})) == "CLEANUP"


def test_a_base_has_no_type() -> None:
    with pytest.raises(InvalidInput, match="type is the name of one job; a base of jobs has none"):

        class Ours(Job, abstract=True):
            type = "OURS"
