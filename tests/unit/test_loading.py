"""The app that ``module:app`` names is loaded, or a sentence says what is wrong with it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.shared.domain.errors import ConfigurationError
from rota.worker_service.loading import load_app


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, whose modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
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
