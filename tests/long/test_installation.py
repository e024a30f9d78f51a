"""What is installed is ``rota`` and nothing else, so a user's packages of any other name are the user's.

Type checkers understand what is installed, in a user's own folder.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.harness.processes import ROOT, RotaProcess, marked_environment

BUILD_SECONDS = 300
FOLDERS = ("shared", "migrations", "scheduler_service", "worker_service")

OWN_APP = """
import migrations, scheduler_service, shared, worker_service
from rota import NodeContext, Rota

app = Rota()
OWNERS = [package.OWNER for package in (migrations, scheduler_service, shared, worker_service)]

@app.task("OWN_THREAD", cron="* * * * * *", seconds=True)
def thread(ctx: NodeContext) -> list[str]:
    return OWNERS

@app.task("OWN_PROCESS", cron="* * * * * *", seconds=True, execution="process")
def process(ctx: NodeContext) -> list[str]:
    return OWNERS
"""

TYPES_KEPT = """
from typing import Any, assert_type

from pydantic import BaseModel

from rota import NodeContext, Rota, TaskType

class Param(BaseModel):
    region: str = "eu"

app = Rota()
report = app.task_type("REPORT", param=Param)
assert_type(report, TaskType[Param])

@report.node("EXTRACT")
def extract(ctx: NodeContext[Param], rows: int = 42) -> dict[str, int]:
    assert_type(ctx.param, Param)
    return {"rows": rows}

@app.task("CLEANUP", cron="0 3 * * *", overlap_policy="queue")
async def cleanup(ctx: NodeContext) -> list[str]:
    assert_type(ctx.param, dict[str, Any])
    return []

@app.task("FLEXIBLE", cron="0 3 * * *", param=Param, param_value=Param(region="us"))
def flexible(ctx: NodeContext[Any]) -> None: ...

assert_type(extract(NodeContext(param=Param())), dict[str, int])
assert_type(extract(NodeContext(param=Param()), rows=7), dict[str, int])
async def clean() -> None:
    assert_type(await cleanup(NodeContext()), list[str])

app.schedule("daily", report, cron="0 3 * * *", param=Param(region="us"), retries=2)
app.schedule("hourly", report, cron="0 * * * *", param={"region": "us"})
app.schedule("ping", "HTTP_REQUEST", param={"url": "https://example.org"})
"""

MISTAKES = """
from pydantic import BaseModel

from rota import AsyncClient, Client, Job, NodeContext, Once, Rota
from rota import Worker  # wrong

class Param(BaseModel):
    region: str = "eu"

class Other(BaseModel):
    colour: str = "red"

app = Rota()
report = app.task_type("REPORT", param=Param)

@report.node("EXTRACT")  # wrong
def extract(ctx: NodeContext[Other]) -> None: ...

@app.task("CLEANUP", param=Param)  # wrong
async def cleanup(ctx: NodeContext) -> None: ...

@report.node("SEND")
def send(ctx: NodeContext[Param]) -> str:
    return ctx.param.colour  # wrong

send(1)  # wrong
send(NodeContext(param=Param())) + 1  # wrong
app.task_type("SHORT", param=dict)  # wrong
app.schedule("daily", report, param=Other())  # wrong
client = Client()
client.tasks.add("daily", report, param=Other())  # wrong
client.tasks.set("daily", crom="0 3 * * *")  # wrong
client.tasks.run("daily", parm={})  # wrong
client.once(report, key="a", param=Param())
client.once(report, key="a", param=Other())  # wrong

class Cleaner(Job[Param], app=app):
    param = Param

    async def run(self, ctx: NodeContext[Param]) -> str:
        return ctx.param.colour  # wrong

client.once(Cleaner, key="a", param=Param())
client.once(Cleaner, key="a", param=Other())  # wrong
client.once_many(report, [Once("a"), Once("b", param=Param())])
client.once_many(report, [Once("a", param=Other())])  # wrong

async def ask(client: AsyncClient) -> None:
    await client.tasks.set("daily", crom="0 3 * * *")  # wrong
    await client.instances.wait("17")  # wrong
    await client.tasks.add("daily", report, param=Other())  # wrong
    await client.tasks.add("daily", report, param=Param())
    await client.once(report, key="a", param=Param())
    await client.once(report, key="a", param=Other())  # wrong
app.task("NIGHT", cron="0 3 * * *", param=Param, param_value=7)  # wrong
app.schedule("daily", report, overlap_policy="skp")  # wrong
app.schedule("daily", report, colour="red")  # wrong
app.schedule("daily", report, priority="high")  # wrong
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=marked_environment({name: value for name, value in os.environ.items() if name != "PYTHONPATH"}),
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution as a package index would be given it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder)  # the wheel is built from the sdist
    [built] = folder.glob("rota-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    return folder / "bin" / "python"


def test_the_wheel_holds_rota_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"rota"}
    installed = {name for name in names if name.endswith((".py", ".mako", "py.typed"))}
    ours = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert installed >= {f"rota/{path.relative_to(ROOT)}" for path in ours}
    assert {"rota/py.typed", "rota/migrations/script.py.mako"} <= installed


def test_site_packages_get_rota_and_nothing_else(python: Path) -> None:
    files = run(python, "-m", "pip", "show", "--files", "--disable-pip-version-check", "rota")
    listed = [line.strip() for line in files.split("Files:")[1].splitlines() if line.strip()]
    assert {name.split("/")[0].partition("-")[0] for name in listed if not name.startswith("../")} == {"rota"}
    for folder in FOLDERS:
        taken = run(
            python, "-c", f"import importlib.util; print(importlib.util.find_spec({folder!r}))", cwd=python.parent
        )
        assert taken.strip() == "None", folder


def test_a_project_with_packages_of_our_folders_names_runs(python: Path, tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("OWNER = 'the user'\n")
    (tmp_path / "jobs.py").write_text(OWN_APP)
    with RotaProcess(
        "up",
        "--app",
        "jobs:app",
        database_url=f"sqlite:///{tmp_path / 'rota.db'}",
        environment={"PYTHONPATH": str(tmp_path)},  # as in the image, where it is /app
        cwd=tmp_path,
        command=(str(python), "-m", "rota"),
    ) as up:
        own = r'succeed .*\["the user", "the user", "the user", "the user"\]'
        up.wait_for_log(f"own-thread .*{own}", deadline=60)
        up.wait_for_log(f"own-process .*{own}", deadline=60)


def checked_types(checker: str, python: Path, folder: Path) -> str:
    """What a type checker says of the folder's files, for the environment of that interpreter."""
    options = {
        "mypy": ["--strict", "--config-file=", "--no-error-summary", f"--python-executable={python}", "."],
        "pyright": ["--pythonpath", str(python)],
    }
    command = [sys.executable, "-m", checker, *options[checker]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode in (0, 1), f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def named_in(block: str) -> str | None:
    """The file of a package that a block says it is, in its first line."""
    named = re.match(r"# (\w+/\w+\.py)\n", block)
    return named[1] if named else None


def written_by_users(folder: Path) -> list[str]:
    """Write the examples, and each block of the pages that uses Rota, as files of their own; returns their names."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for at, block in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)):
            if "from rota import" in block:
                file = folder / (named_in(block) or f"{page.stem.lower().replace('-', '_')}_{at}.py")
                file.parent.mkdir(exist_ok=True)
                if file.parent != folder:
                    (file.parent / "__init__.py").touch()
                file.write_text(block)
    for path in (ROOT / "examples").glob("[a-z]*.py"):  # no __init__.py: the folder is the user's own, and no package
        shutil.copy(path, folder)
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_examples_of_the_pages_have_no_type_errors(python: Path, tmp_path: Path, checker: str) -> None:
    assert {"jobs.py", "readme_0.py", "authoring_0.py"} <= set(written_by_users(tmp_path))
    said = checked_types(checker, python, tmp_path)
    assert "error: " not in said, said


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_handlers_and_params_keep_their_types(python: Path, tmp_path: Path, checker: str) -> None:
    (tmp_path / "kept.py").write_text(TYPES_KEPT)
    said = checked_types(checker, python, tmp_path)
    assert "error: " not in said, said


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_mistakes_of_type_are_seen(python: Path, tmp_path: Path, checker: str) -> None:
    (tmp_path / "wrong.py").write_text(MISTAKES)
    said = checked_types(checker, python, tmp_path)
    found = {int(line) for line in re.findall(r"wrong\.py:(\d+):(?:\d+ -)? error", said)}
    assert found == {at for at, line in enumerate(MISTAKES.splitlines(), 1) if line.endswith("# wrong")}, said


def test_ruff_sees_each_file_once() -> None:
    shown = [Path(line) for line in run(sys.executable, "-m", "ruff", "check", "--show-files").splitlines()]
    assert len({path.resolve() for path in shown}) == len(shown)
    assert ROOT / "shared" / "clock.py" in shown


def test_coverage_sees_each_file_once(tmp_path: Path) -> None:
    data = f"--data-file={tmp_path / 'data'}"
    run(sys.executable, "-m", "coverage", "run", data, "-m", "rota", "cron", "0 3 * * *")
    run(sys.executable, "-m", "coverage", "json", data, "-o", tmp_path / "report.json", "--quiet")
    measured = [Path(name) for name in json.loads((tmp_path / "report.json").read_text())["files"]]
    assert Path("shared/domain/triggers/cron/cron.py") in measured
    assert len({(ROOT / path).resolve() for path in measured}) == len(measured)
