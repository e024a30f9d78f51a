"""The facts about a run that its samples do not tell: when and on what it ran, versions, settings. A line for each time
that ``run`` was called, beside the samples."""

import json
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import distributions, version
from pathlib import Path
from types import ModuleType

from benchmarks import workloads
from benchmarks.cases import Scale
from benchmarks.environments import PEERS
from benchmarks.machine import machine
from benchmarks.servers import MARIADB_OPTIONS, POSTGRESQL_SETTINGS, REDIS_OPTIONS, postgresql
from tests.harness.databases import SERVER_OPTIONS
from tests.harness.processes import ROOT

LIBRARIES = ("SQLAlchemy", "PyMySQL", "croniter")
SERVERS = {"MariaDB": "mariadbd", "PostgreSQL": "postgres", "Redis": "redis-server", "Node": "node"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What was so during one call of ``run``; names and values are the report's words."""

    began: str
    ended: str
    commit: str
    scale: dict[str, object]
    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, str]
    seeds: dict[str, int] = field(default_factory=dict)


def beside(results: Path) -> Path:
    """The file of the facts about these samples."""
    return results.with_suffix(".facts.jsonl")


def gather(began: datetime, begun_at: str, scale: Scale, cache: Path) -> Facts:
    """The facts, at the end of a run that began then, at that commit: the peers' environments are there by now."""
    return Facts(
        began=_written(began),
        ended=_written(datetime.now(UTC)),
        commit=begun_at if (ended_at := commit()) == begun_at else f"{begun_at}, at the end {ended_at}",
        scale=asdict(scale),
        machine=machine(),
        versions={**_servers(), "Python": platform.python_version(), **_libraries(), **dict(_peers(cache))},
        settings=settings(),
        seeds={_name(module): module.SEED for module in workloads.ALL if hasattr(module, "SEED")},
    )


def append(path: Path, facts: Facts) -> None:
    """Write a line."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(facts)) + "\n")


def read(path: Path) -> list[Facts]:
    """All lines, in order; none where there is no file."""
    return [Facts(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def commit() -> str:
    """The commit of Rota, with a word about changes that it does not have."""
    head = _said("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    changed = _said("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return f"{head} and uncommitted changes" if changed else head or "unknown"


def settings() -> dict[str, str]:
    """What each server is told, and Rota."""
    return {
        "MariaDB": " ".join(_last_of_each((*SERVER_OPTIONS, *MARIADB_OPTIONS)))
        + "; without a binary log, sync_binlog has nothing to sync",
        "PostgreSQL": ", ".join(f"{name}={value}" for name, value in POSTGRESQL_SETTINGS.items()),
        "Redis": " ".join(option or '""' for option in REDIS_OPTIONS) + " (may lose its last second)",
        "Rota": "its defaults, unless a row says otherwise",
    }


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _last_of_each(options: tuple[str, ...]) -> list[str]:
    return list({option.partition("=")[0]: option for option in options}.values())


def _servers() -> dict[str, str]:
    found = {}
    for name, command in SERVERS.items():
        place = postgresql(command) if name == "PostgreSQL" and Path("/usr/lib/postgresql").exists() else command
        number = re.search(r"\d+(\.\d+)+", _said(place, "--version"))
        found[name] = number[0] if number else "not installed"
    return found


def _libraries() -> dict[str, str]:
    return {name: version(name) for name in LIBRARIES}


def _peers(cache: Path) -> Iterator[tuple[str, str]]:
    """What of its requirements each peer's environment has."""
    for folder in sorted(PEERS.iterdir() if PEERS.exists() else ()):
        place = cache / folder.name
        if (folder / "package.json").exists():
            wanted = json.loads((folder / "package.json").read_text())["dependencies"]
            packages = [place / "node_modules" / name / "package.json" for name in wanted]
            here = {path.parent.name: json.loads(path.read_text())["version"] for path in packages if path.exists()}
        elif (folder / "requirements.txt").exists():
            names = re.findall(r"^[\w.-]+", (folder / "requirements.txt").read_text(), re.MULTILINE)
            places = [str(path) for path in place.glob("lib/python*/site-packages")]
            installed = {one.name.lower(): one.version for one in distributions(path=places)} if places else {}
            here = {name: installed[name.lower()] for name in names if name.lower() in installed}
        else:
            continue
        if here:
            yield folder.name, ", ".join(f"{name} {number}" for name, number in here.items())


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
