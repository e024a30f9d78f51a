"""The app that ``module:app`` names is loaded, or a sentence says what is wrong with it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.shared.domain.errors import ConfigurationError
from rota.worker_service import jobs
from rota.worker_service.loading import load_app


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, whose modules and jobs are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jobs, "_by_name", {})
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_app_is_loaded_by_its_name_and_knows_it(folder: Path) -> None:
    (folder / "jobs_a.py").write_text("from rota import Rota\napp = Rota()\n")
    assert load_app("jobs_a:app").target == "jobs_a:app"


@pytest.mark.parametrize("name", ["my-jobs", "2024_jobs"])
def test_a_module_may_have_any_name_that_python_imports(folder: Path, name: str) -> None:
    (folder / f"{name}.py").write_text("from rota import Rota\napp = Rota()\n")
    assert load_app(f"{name}:app").target == f"{name}:app"


def test_without_a_name_it_is_an_empty_app() -> None:
    app = load_app(None)
    assert (app.nodes, app.target) == ({}, None)


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("", "jobs_b", "write module:app, for example jobs_b:app"),
        ("", ":app", "write module:app, for example jobs:app"),
        ("", "jobs_b:", "write module:app, for example jobs_b:app"),
        ("", "jobs_b.py:app", "write module:app, for example jobs_b:app"),
        ("", "acme/jobs_b.py:tasks", "write module:app, for example acme.jobs_b:tasks"),
        ("", "./jobs_b", "write module:app, for example jobs_b:app"),
        ("", "../jobs_b:app", "write module:app, for example jobs:app"),
        ("", "jobs_b:app:app", "write module:app, for example jobs_b:app"),
        ("", "nowhere:app", "there is no module 'nowhere' in this folder or on PYTHONPATH"),
        ("", "nowhere.jobs:app", "there is no module 'nowhere'"),
        ("", "jobs_b.deeper:app", "there is no module 'jobs_b.deeper'"),
        ("import nowhere", "jobs_b:app", "/jobs_b.py:1: No module named 'nowhere'"),
        ("\n1 / 0", "jobs_b:app", "/jobs_b.py:2: ZeroDivisionError: division by zero"),
        ("import json\njson.loads('')", "jobs_b:app", "/jobs_b.py:2: JSONDecodeError: Expecting value"),
        ("import rota\nrota.Rota().task_type('report')", "jobs_b:app", "/jobs_b.py:2: 'report' is no type name"),
        ("import sys\nsys.exit('bye')", "jobs_b:app", "/jobs_b.py:2: it ends the process (SystemExit: bye)"),
        ("def f(:", "jobs_b:app", "its import failed: SyntaxError: invalid syntax (jobs_b.py, line 1)"),
        ("", "jobs_b:app", "jobs_b holds nothing of that name where a rota.Rota is needed"),
        (
            "import rota\napp = rota.Rota()\nempty = app.task_type('EMPTY')\napp.schedule('nightly', empty)",
            "jobs_b:app",
            'task type EMPTY has no node; declare it with .node("NAME")',
        ),
        ("app = 7", "jobs_b:app", "jobs_b holds a int where a rota.Rota is needed"),
        ("import rota\njobs = rota.Rota()", "jobs_b:app", "where a rota.Rota is needed; write jobs_b:jobs"),
    ],
)
def test_a_path_to_an_app_that_is_wrong_is_refused_with_what_is_wrong(
    folder: Path, source: str, target: str, said: str
) -> None:
    (folder / "jobs_b.py").write_text(source)
    with pytest.raises(ConfigurationError) as refused:
        load_app(target)
    assert said in str(refused.value)
    assert f"app {target!r}" in str(refused.value)


LATER = """
from __future__ import annotations
from pydantic import BaseModel
import rota

app = rota.Rota()

class Param(BaseModel):
    more: More | None = None

@app.task("REPORT", cron="0 3 * * *", param=Param)
def report(ctx: rota.NodeContext[Param]) -> None: ...

class More(BaseModel):
    rows: int
"""


def test_a_model_may_name_a_class_that_is_defined_later(folder: Path) -> None:
    (folder / "jobs_later.py").write_text(LATER)
    schema = load_app("jobs_later:app").nodes["REPORT"].declaration().param_schema
    assert schema is not None
    assert "More" in schema["$defs"]


def test_a_model_without_a_schema_is_refused_when_the_app_is_loaded(folder: Path) -> None:
    (folder / "jobs_calls.py").write_text(
        "import rota, pydantic, collections.abc\napp = rota.Rota()\n"
        "class Param(pydantic.BaseModel):\n    call: collections.abc.Callable[[], int] | None = None\n"
        "@app.task('REPORT', param=Param)\ndef report(ctx): ...\n"
    )
    with pytest.raises(ConfigurationError, match="app 'jobs_calls:app': REPORT: its param model Param has no JSON sch"):
        load_app("jobs_calls:app")


LISTS = """
import rota
app = rota.Rota()
@app.task("REPORT")
def report(ctx): ...
flow = app.task_type("FLOW")
app.schedule("daily", flow, param={"nodes": ["REPORT"]})
"""


def test_a_type_needs_no_node_where_each_of_its_tasks_lists_its_nodes(folder: Path) -> None:
    (folder / "jobs_listing.py").write_text(LISTS)
    assert load_app("jobs_listing:app").types_without_nodes == []
    (folder / "jobs_listing_some.py").write_text(LISTS + "app.schedule('weekly', flow)")
    with pytest.raises(ConfigurationError, match="task type FLOW has no node"):
        load_app("jobs_listing_some:app")


# All of a package

JOB = "from rota import Job\nclass {}(Job):\n    cron = '0 3 * * *'\n    def run(self, ctx): return 1\n"
APP = "from rota import Rota\napp = Rota()\n@app.task('{0}', cron='0 4 * * *')\ndef {0}(ctx): return 1\n"


def package(folder: Path, **sources: str) -> None:
    """A package ``acme`` of these modules; ``a__b`` is ``b`` in the package ``a`` in it."""
    for name, source in {"__init__": "", **sources}.items():
        path = folder.joinpath("acme", *name.split("__")) if not name.startswith("_") else folder / "acme" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.with_suffix(".py").write_text(source)


def test_all_jobs_and_apps_of_a_package_are_one_app(folder: Path) -> None:
    shared = "from acme.apps import app\n"
    package(
        folder, one=JOB.format("One"), deep__two=JOB.format("Two"), apps=APP.format("THREE"), uses=shared,
        __main__="raise SystemExit('not to be imported')",
    )  # fmt: skip
    app = load_app("acme:*")
    assert (app.target, set(app.nodes)) == ("acme:*", {"ONE", "TWO", "THREE"})
    assert {task.name for task in app.schedules} == {"one", "two", "three"}
    assert {Path(path).name for path in app.sources} == {"__init__.py", "one.py", "two.py", "apps.py", "uses.py"}
    assert set(load_app("acme.deep:*").nodes) == {"TWO"}
    assert set(load_app("acme.one:*").nodes) == {"ONE"}


def test_an_app_that_another_of_the_package_includes_is_there_once(folder: Path) -> None:
    main = "from rota import Rota\nfrom acme import billing\napp = Rota()\napp.include(billing.app)\n"
    listens = "@app.on('failed')\ndef alert(event): ...\n"
    package(folder, billing=APP.format("BILL") + listens, main=main)
    app = load_app("acme:*")
    assert set(app.nodes) == {"BILL"}
    assert [listener.__qualname__ for listener in app.listeners["failed"]] == ["alert"]


@pytest.mark.parametrize(
    ("sources", "target", "said"),
    [
        ({}, "acme:*", "in the module of acme is no rota.Job and no rota.Rota"),
        ({"one": "x = 1", "two": ""}, "acme:*", "in 3 modules of acme is no rota.Job and no rota.Rota"),
        ({"one": JOB.format("One")}, "acme.two:*", "there is no module 'acme.two'"),
        ({"one": "\n1 / 0"}, "acme:*", "/acme/one.py:2: ZeroDivisionError"),
        ({"deep__two": "import nowhere"}, "acme:*", "/acme/deep/two.py:1: No module named 'nowhere'"),
        (
            {"one": JOB.format("One"), "two": JOB.format("One")},
            "acme:*",
            "/acme/two.py:2: job acme.two.One: task 'one' is that of the job acme.one.One, too",
        ),
        ({"one": JOB.format("One"), "two": APP.format("ONE")}, "acme:*", "ONE is declared twice in this app"),
        ({"one": APP.format("ONE"), "two": APP.format("ONE")}, "acme:*", "'ONE' is declared by two apps"),
        ({"one": JOB.format("One")}, "acme.one:app", "write --discover acme.one, for its jobs"),
        (
            {"one": APP.format("TWO") + JOB.format("One")},
            "acme.one:app",
            "job One belongs to no app, so this worker would not run it; write class One(Job, app=app), or start it",
        ),
    ],
)
def test_what_is_wrong_with_a_package_is_said(folder: Path, sources: dict[str, Any], target: str, said: str) -> None:
    package(folder, **sources)
    with pytest.raises(ConfigurationError) as refused:
        load_app(target)
    assert str(refused.value).startswith(f"app '{target}': ")
    assert said in str(refused.value)
