"""The arrows between the packages point one way, and time, SQL and cron have one owner each.

Every rule reads the syntax tree of one module and says what is wrong there. A second set of tests shows each rule a
module that breaks it, so that a rule which has gone blind is noticed.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("rota", "scheduler_service", "worker_service", "shared", "migrations")
SERVICES = ("scheduler_service", "worker_service")
DUTIES = ("materializer", "assigner", "promoter", "reaper", "backfill", "retention")

# The methods and functions that ask what time it is. Measuring a duration (monotonic, boottime) is no such question.
CLOCK_READS = {
    "time": {"time", "time_ns"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
STATEMENTS = {"select", "insert", "update", "delete", "text", "table"}
TABLES = "(?:schedule_(?:task|instance|task_node|task_node_type|worker_node|task_lock)|rota_[a-z_]+)"
SQL_ON_TABLES = re.compile(rf"\b(?:FROM|INTO|UPDATE|JOIN|TABLE|REPLACE|TRUNCATE)\s+[`\"]?{TABLES}\b")


@dataclass(frozen=True)
class Module:
    """One module of ours: its dotted name and its syntax tree."""

    name: str
    tree: ast.Module
    is_package: bool = False

    def within(self, *packages: str) -> bool:
        """Whether it is one of `packages` or lies below one."""
        return any(self.name == package or self.name.startswith(package + ".") for package in packages)


@dataclass(frozen=True)
class Import:
    """One name that a module imports, in full: `from a.b import c` is `a.b.c`."""

    target: str
    line: int
    for_types_only: bool = False

    def reaches(self, *packages: str) -> bool:
        return any(self.target == package or self.target.startswith(package + ".") for package in packages)


@cache
def modules() -> tuple[Module, ...]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return tuple(read(path) for path in paths)


def read(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    return Module(name, ast.parse(path.read_text(), str(path)), is_package)


def imports(module: Module) -> Iterator[Import]:
    """Every import of the module, those inside functions too."""
    typing_only = {
        id(node)
        for branch in ast.walk(module.tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for statement in branch.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in typing_only)
        elif isinstance(node, ast.ImportFrom):
            source = absolute(module, node)
            for alias in node.names:
                yield Import(f"{source}.{alias.name}", node.lineno, id(node) in typing_only)


def absolute(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.name.split(".")
    above = parts[: len(parts) - node.level + (1 if module.is_package else 0)]
    return ".".join([*above, *([node.module] if node.module else [])])


def imports_of(module: Module, *packages: str) -> list[str]:
    return [
        f"{module.name}:{found.line} imports {found.target}" for found in imports(module) if found.reaches(*packages)
    ]


def calls(module: Module) -> Iterator[tuple[str, int]]:
    """What the module calls, as it is written (`datetime.now`), and the line."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def shared_knows_no_service(module: Module) -> list[str]:
    return imports_of(module, *SERVICES, "rota") if module.within("shared", "migrations") else []


def services_know_neither_each_other_nor_the_face(module: Module) -> list[str]:
    return [
        fault
        for service in SERVICES
        if module.within(service)
        for fault in imports_of(module, "rota", *(other for other in SERVICES if other != service))
    ]


def the_domain_knows_no_database(module: Module) -> list[str]:
    return imports_of(module, "shared.store", "sqlalchemy", "pymysql") if module.within("shared.domain") else []


def the_domain_never_asks_the_time(module: Module) -> list[str]:
    if not module.within("shared.domain"):
        return []
    asked = [
        f"{module.name}:{line} calls {name}()"
        for name, line in calls(module)
        if name.rpartition(".")[2] in {"now", "utcnow", "today"}
    ]
    return asked + imports_of(module, "time", "shared.clock")


def only_the_clock_reads_the_time(module: Module) -> list[str]:
    if module.within("shared.clock", "shared.store.dialects"):
        return []
    read_at = [
        f"{module.name}:{line} reads {name}()"
        for name, line in calls(module)
        for owner, reads in CLOCK_READS.items()
        for reading in reads
        if name == f"{owner}.{reading}" or name.endswith(f".{owner}.{reading}")
    ]
    return read_at + imports_of(module, *(f"time.{name}" for name in CLOCK_READS["time"]))


def only_the_cron_module_knows_croniter(module: Module) -> list[str]:
    return [] if module.name.startswith("shared.domain.triggers.cron") else imports_of(module, "croniter")


def executors_never_touch_the_store(module: Module) -> list[str]:
    return imports_of(module, "shared.store") if module.within("worker_service.executors") else []


def duties_never_import_each_other(module: Module) -> list[str]:
    duty = module.name.removeprefix("scheduler_service.").split(".")[0]
    if not module.within("scheduler_service") or duty not in DUTIES:
        return []
    return imports_of(module, *(f"scheduler_service.{other}" for other in DUTIES if other != duty))


def the_console_runs_no_duty(module: Module) -> list[str]:
    if not module.within("scheduler_service.console"):
        return []
    return imports_of(module, *(f"scheduler_service.{duty}" for duty in DUTIES), "scheduler_service.app")


def the_scheduler_has_no_web(module: Module) -> list[str]:
    if not module.within("scheduler_service") or module.within("scheduler_service.console"):
        return []
    return imports_of(module, "scheduler_service.console")


def what_is_in_the_database_is_never_code(module: Module) -> list[str]:
    run = [f"{module.name}:{line} calls {name}()" for name, line in calls(module) if name in {"eval", "exec"}]
    return run + imports_of(module, "pickle", "marshal", "shelve", "dill", "cloudpickle")


def sql_on_our_tables_is_in_the_store(module: Module) -> list[str]:
    if module.within("shared.store", "migrations"):
        return []
    docstrings = {
        id(node.value)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    written = [
        f"{module.name}:{node.lineno} writes SQL: {node.value[:60]!r}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        if SQL_ON_TABLES.search(node.value)
    ]
    return written + imports_of(module, "shared.store.tables")


def statements_are_built_in_the_store(module: Module) -> list[str]:
    """The SQL_STATEMENT node runs its author's text, on its author's database."""
    if module.within("shared.store", "migrations", "worker_service.builtin"):
        return []
    return imports_of(module, *(f"sqlalchemy.{name}" for name in STATEMENTS))


Rule = Callable[[Module], list[str]]

# Each rule, and a module that breaks it.
RULES: dict[Rule, tuple[str, str]] = {
    shared_knows_no_service: ("shared.loop", "def f():\n    from scheduler_service import app"),
    services_know_neither_each_other_nor_the_face: ("worker_service.app", "import scheduler_service.app"),
    the_domain_knows_no_database: ("shared.domain.states", "from ..store import tables"),
    the_domain_never_asks_the_time: ("shared.domain.retry", "def f(clock):\n    return clock.now()"),
    only_the_clock_reads_the_time: ("worker_service.poller", "import datetime\ndatetime.datetime.now()"),
    only_the_cron_module_knows_croniter: ("shared.domain.task", "from croniter import croniter"),
    executors_never_touch_the_store: ("worker_service.executors.shell", "from shared.store import tasks"),
    duties_never_import_each_other: ("scheduler_service.reaper", "from scheduler_service.assigner import x"),
    the_console_runs_no_duty: ("scheduler_service.console.api", "from scheduler_service import reaper"),
    the_scheduler_has_no_web: ("scheduler_service.app", "from scheduler_service import console"),
    what_is_in_the_database_is_never_code: ("worker_service.runner", "import pickle"),
    sql_on_our_tables_is_in_the_store: ("rota.client", "q = f'SELECT 1 FROM schedule_task WHERE id = {1}'"),
    statements_are_built_in_the_store: ("scheduler_service.reaper", "from sqlalchemy import select"),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    assert [fault for module in modules() for fault in rule(module)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_sees_its_breach(rule: Rule) -> None:
    name, source = RULES[rule]
    assert rule(Module(name, ast.parse(source)))


def test_reading_the_time_is_seen_however_it_is_written() -> None:
    for source in ("import time\ntime.time()", "from time import time", "datetime.now(UTC)", "date.today()"):
        assert only_the_clock_reads_the_time(Module("worker_service.poller", ast.parse(source))), source
    assert not only_the_clock_reads_the_time(
        Module("worker_service.poller", ast.parse("clock.now(); time.monotonic(); moment.time()"))
    )


def test_every_package_is_read() -> None:
    seen = {module.name.split(".")[0] for module in modules()}
    assert seen == set(PACKAGES)


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {module.name for module in modules()}
    arrows = {module.name: arrows_from(module, names) for module in modules()}
    assert circle(arrows) is None


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def arrows_from(module: Module, names: set[str]) -> set[str]:
    """The modules of ours that this one imports: `from a import b` means a.b if that is a module, else a."""
    found = set()
    for reached in imports(module):
        if reached.for_types_only:
            continue
        owner = reached.target.rpartition(".")[0]
        found |= {reached.target} if reached.target in names else {owner} & names
    return found - {module.name}


def circle(arrows: dict[str, set[str]]) -> list[str] | None:
    """A way from a module back to itself along `arrows`, if there is one."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for target in sorted(arrows.get(name, ())):
            if found := walk(target, [*path, name]):
                return found
        done.add(name)
        return None

    for name in sorted(arrows):
        if found := walk(name, []):
            return found
    return None
