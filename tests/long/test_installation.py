"""What is installed is ``rota`` and nothing else, so a user's packages of any other name are the user's."""

import json
import os
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
