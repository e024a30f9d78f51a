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
FOLDERS = ("shared", "migrations", "scheduler_service", "worker_service")
"""The folders at the top level that are installed as parts of ``rota``, by the links in it."""
SERVICES = ("rota.scheduler_service", "rota.worker_service")

# The methods and functions that ask what time it is. Measuring a duration (monotonic, boottime) is no such question.
CLOCK_READS = {
    "time": {"time", "time_ns"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
STATEMENTS = {"select", "insert", "update", "delete", "text", "table"}
TABLES = (
    "(?:schedule_(?:task|instance|kept_slot|task_node|task_node_type|worker_node|worker_beat|task_lock|scheduler_node|audit"
    "|skip|catch_up|backfill|calendar|calendar_use)"
    "|rota_[a-z_]+)"
)
SQL_ON_TABLES = re.compile(rf"\b(?:FROM|INTO|UPDATE|JOIN|TABLE|REPLACE|TRUNCATE)\s+[`\"]?{TABLES}\b")


DATABASE = re.compile(r"mysql|mariadb|sqlite|postgres", re.IGNORECASE)
IN_TEXT = re.compile(rf"(?:{DATABASE.pattern})(?!\w*\+?\w*://)", re.IGNORECASE)
"""The name of a database in a text, but for the scheme of a URL, which people are shown how to write."""

OWN_FILES = re.compile(
    rf"rota\.shared\.database\.(?:backends$|{DATABASE.pattern})|rota\.migrations\.(versions\.|steps$)"
    r"|rota\.integrations\.django\.databases$"
)
"""Where databases are told apart: each one's own files, and the one way to them; migrations, which are frozen; and
where Django's databases are read."""

ASKS_THE_DIALECT = {
    "rota.migrations.steps": "a migration asks on which database it runs; it must not change as the backends do",
}


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
    paths = [path for folder in ("rota", *FOLDERS) for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(read(path) for path in paths)


def read(path: Path) -> Module:
    """A module by its file; ``rglob`` follows no links, so each file is read once, under the name it is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "rota" else ("rota", *parts)
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


def imports_of_the_face(module: Module) -> list[str]:
    """What a module imports of ``rota`` that is none of the linked folders: the public names and the command."""
    linked = tuple(f"rota.{folder}" for folder in FOLDERS)
    return [
        f"{module.name}:{found.line} imports {found.target}"
        for found in imports(module)
        if found.reaches("rota") and not found.reaches(*linked)
    ]


def calls(module: Module) -> Iterator[tuple[str, int]]:
    """What the module calls, as it is written (`datetime.now`), and the line."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def texts(module: Module) -> Iterator[tuple[str, int]]:
    """The strings of the module that are no docstrings, and their lines."""
    docstrings = {
        id(node.value)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value, node.lineno


def identifiers(module: Module) -> Iterator[tuple[str, int]]:
    """The names that the module defines, uses, imports and passes by, and their lines."""
    for node in ast.walk(module.tree):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(name := getattr(node, field, None), str):
                yield name, getattr(node, "lineno", 0)


def shared_knows_no_service(module: Module) -> list[str]:
    if not module.within("rota.shared", "rota.migrations"):
        return []
    return imports_of(module, *SERVICES) + imports_of_the_face(module)


def everything_has_one_name(module: Module) -> list[str]:
    """``import shared`` would take a user's package of that name, or load ours a second time."""
    return imports_of(module, *FOLDERS)


def the_domain_knows_nothing_but_itself(module: Module) -> list[str]:
    if not module.within("rota.shared.domain"):
        return []
    return [
        f"{module.name}:{found.line} imports {found.target}"
        for found in imports(module)
        if found.reaches("rota") and not found.reaches("rota.shared.domain")
    ]


def the_store_knows_no_control(module: Module) -> list[str]:
    return (
        imports_of(module, "rota.shared.control") if module.within("rota.shared.store", "rota.shared.database") else []
    )


def control_knows_no_face_and_no_service(module: Module) -> list[str]:
    """The command line, and every other face, is made of it."""
    if not module.within("rota.shared.control"):
        return []
    below = ("control", "domain", "store", "database", "waking", "clock")
    return imports_of(module, "click") + [
        f"{module.name}:{found.line} imports {found.target}"
        for found in imports(module)
        if found.reaches("rota") and not found.reaches(*(f"rota.shared.{name}" for name in below))
    ]


def the_faces_ask_control(module: Module) -> list[str]:
    return imports_of(module, "rota.shared.store") if module.within("rota.cli", "rota.client") else []


def pulling_and_running_know_no_executor_of_their_own(module: Module) -> list[str]:
    """The worker's composition root chooses the executors; what runs knows only their protocol."""
    if not module.within("rota.worker_service.pulling", "rota.worker_service.running"):
        return []
    concrete = ("event_loop", "process", "process_child", "child_process", "threads")
    return imports_of(
        module, *(f"rota.worker_service.executors.{name}" for name in concrete), "rota.worker_service.engine"
    )


def services_know_neither_each_other_nor_the_face(module: Module) -> list[str]:
    return [
        fault
        for service in SERVICES
        if module.within(service)
        for fault in imports_of(module, *(other for other in SERVICES if other != service))
        + imports_of_the_face(module)
    ]


def the_domain_knows_no_database(module: Module) -> list[str]:
    return (
        imports_of(module, "rota.shared.store", "sqlalchemy", "pymysql") if module.within("rota.shared.domain") else []
    )


def the_domain_never_asks_the_time(module: Module) -> list[str]:
    if not module.within("rota.shared.domain"):
        return []
    asked = [
        f"{module.name}:{line} calls {name}()"
        for name, line in calls(module)
        if name.rpartition(".")[2] in {"now", "utcnow", "today"}
    ]
    return asked + imports_of(module, "time", "rota.shared.clock")


def only_the_clock_reads_the_time(module: Module) -> list[str]:
    if module.within("rota.shared.clock", "rota.shared.database.constructs"):
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
    return [] if module.name.startswith("rota.shared.domain.triggers.cron") else imports_of(module, "croniter")


def executors_never_touch_the_store(module: Module) -> list[str]:
    return imports_of(module, "rota.shared.store") if module.within("rota.worker_service.executors") else []


def duties_never_import_each_other(module: Module) -> list[str]:
    if not module.within("rota.scheduler_service.duties"):
        return []
    others = imports_of(module, "rota.scheduler_service.duties", "rota.scheduler_service.app")
    return [fault for fault in others if f" {module.name}." not in fault]


def what_is_in_the_database_is_never_code(module: Module) -> list[str]:
    run = [f"{module.name}:{line} calls {name}()" for name, line in calls(module) if name in {"eval", "exec"}]
    return run + imports_of(module, "pickle", "marshal", "shelve", "dill", "cloudpickle")


def sql_on_our_tables_is_in_the_store(module: Module) -> list[str]:
    if module.within("rota.shared.store", "rota.shared.database", "rota.migrations"):
        return []
    written = [
        f"{module.name}:{line} writes SQL: {text[:60]!r}" for text, line in texts(module) if SQL_ON_TABLES.search(text)
    ]
    return written + imports_of(module, "rota.shared.store.tables")


def statements_are_built_in_the_store(module: Module) -> list[str]:
    """The SQL_STATEMENT node runs its author's text, on its author's database."""
    if module.within("rota.shared.store", "rota.shared.database", "rota.migrations", "rota.worker_service.builtin"):
        return []
    return imports_of(module, *(f"sqlalchemy.{name}" for name in STATEMENTS))


def only_a_databases_own_file_names_it(module: Module) -> list[str]:
    """A third database is then a file of its own and an entry in ``backends``."""
    if OWN_FILES.match(module.name):
        return []
    named = [f"{module.name}:{line} names {name}" for name, line in identifiers(module) if DATABASE.search(name)]
    return named + [f"{module.name}:{line} says {text[:60]!r}" for text, line in texts(module) if IN_TEXT.search(text)]


def only_a_databases_own_file_asks_for_the_dialect(module: Module) -> list[str]:
    """Other code asks the backend for what it needs, or says it by a construct."""
    if OWN_FILES.match(module.name) or module.name in ASKS_THE_DIALECT:
        return []
    conditions = [
        node if isinstance(node, ast.Compare) else node.subject
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Compare | ast.Match)
    ]
    return [
        f"{module.name}:{condition.lineno} asks {ast.unparse(condition)}"
        for condition in conditions
        if re.search(r"\bdialect|get_backend_name|drivername", ast.unparse(condition))
    ]


def instances_and_nodes_are_updated_by_their_moves_alone(module: Module) -> list[str]:
    """A move of an instance is one guarded update, nodes included; one written elsewhere would forget something."""
    if module.within("rota.shared.store.transitions"):
        return []
    updated = {"schedule_instance", "schedule_task_node"}
    return [
        f"{module.name}:{node.lineno} updates {table}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        for owner, _, function in [ast.unparse(node.func).rpartition(".")]
        for table in {name.rpartition(".")[2] for name in (owner, *map(ast.unparse, node.args[:1]))} & updated
        if function in {"update", "RowsUpdate"}
    ]


def what_is_deleted_is_found_by_an_index(module: Module) -> list[str]:
    """MariaDB scans a small table for a list of keys, and a DELETE waits for each locked row that it scans."""
    found = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    hinted = {id(one) for node in found if ast.unparse(node.func) == "found_by" for one in ast.walk(node)}
    return [
        f"{module.name}:{node.lineno} deletes what it may scan for"
        for node in found
        if ast.unparse(node.func).startswith("delete(") and id(node) not in hinted
        if re.search(r"\bamong\(|\bin_\(", ast.unparse(node))
    ]


Rule = Callable[[Module], list[str]]

# Each rule, and a module that breaks it.
RULES: dict[Rule, tuple[str, str]] = {
    shared_knows_no_service: ("rota.shared.loop", "def f():\n    from rota.scheduler_service import app"),
    everything_has_one_name: ("rota.shared.loop", "from shared.clock import boottime"),
    the_domain_knows_nothing_but_itself: ("rota.shared.domain.nodes", "from rota.shared import settings"),
    the_store_knows_no_control: ("rota.shared.store.tasks", "from rota.shared.control import tasks"),
    control_knows_no_face_and_no_service: ("rota.shared.control.tasks", "from rota.shared.settings import Settings"),
    the_faces_ask_control: ("rota.client.instances", "from rota.shared.store import instances"),
    pulling_and_running_know_no_executor_of_their_own: (
        "rota.worker_service.running.runner",
        "from rota.worker_service.executors.threads import ThreadExecutor",
    ),
    services_know_neither_each_other_nor_the_face: ("rota.worker_service.app", "import rota.scheduler_service.app"),
    the_domain_knows_no_database: ("rota.shared.domain.states", "from ..store import tables"),
    the_domain_never_asks_the_time: ("rota.shared.domain.retry", "def f(clock):\n    return clock.now()"),
    only_the_clock_reads_the_time: ("rota.worker_service.pulling.claimer", "import datetime\ndatetime.datetime.now()"),
    only_the_cron_module_knows_croniter: ("rota.shared.domain.task", "from croniter import croniter"),
    executors_never_touch_the_store: ("rota.worker_service.executors.shell", "from rota.shared.store import tasks"),
    duties_never_import_each_other: (
        "rota.scheduler_service.duties.reaper",
        "from rota.scheduler_service.duties.assigner import x",
    ),
    what_is_in_the_database_is_never_code: ("rota.worker_service.running.runner", "import pickle"),
    sql_on_our_tables_is_in_the_store: ("rota.client", "q = f'SELECT 1 FROM schedule_task WHERE id = {1}'"),
    only_a_databases_own_file_names_it: (
        "rota.shared.store.runs",
        "claim = update(t).with_hint('FORCE INDEX (PRIMARY)', dialect_name='mysql')",
    ),
    only_a_databases_own_file_asks_for_the_dialect: (
        "rota.shared.store.runs",
        "def f(connection):\n    return 1 if connection.dialect.name == NAME else 2",
    ),
    statements_are_built_in_the_store: ("rota.scheduler_service.duties.reaper", "from sqlalchemy import select"),
    instances_and_nodes_are_updated_by_their_moves_alone: (
        "rota.shared.store.overlap",
        "cancel = update(schedule_instance).where(_instance.id == 1).values(status='canceled')",
    ),
    what_is_deleted_is_found_by_an_index: (
        "rota.shared.store.deadlines",
        "_forget = delete(schedule_deadline).where(among(_deadline.schedule_instance_id))",
    ),
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
        assert only_the_clock_reads_the_time(Module("rota.worker_service.pulling.claimer", ast.parse(source))), source
    assert not only_the_clock_reads_the_time(
        Module("rota.worker_service.pulling.claimer", ast.parse("clock.now(); time.monotonic(); moment.time()"))
    )


def test_a_database_is_seen_however_it_is_named() -> None:
    for source in (
        "import pymysql",
        "from sqlalchemy.dialects import mysql",
        "from rota.shared.database.sqlite import SQLITE",
        "database.is_sqlite",
        "options = {'mysql_engine': 'InnoDB'}",
        "def f(sqlite): ...",
        "Table(sqlite_autoincrement=True)",
        "reason = f'{moment} is no date: MariaDB took it'",
    ):
        assert only_a_databases_own_file_names_it(Module("rota.shared.store.runs", ast.parse(source))), source
    for source in ("'On MySQL it is so'", "example = 'mysql://rota@db/rota'", "url = 'mysql+pymysql://rota@db'"):
        assert not only_a_databases_own_file_names_it(Module("rota.cli.shell", ast.parse(source))), source


def test_what_may_ask_for_the_dialect_does() -> None:
    """An exception that is no longer needed is to be taken from the list."""
    for module in modules():
        if module.name in ASKS_THE_DIALECT:
            assert only_a_databases_own_file_asks_for_the_dialect(Module("rota.other", module.tree))


def test_an_update_of_instances_or_nodes_is_seen_however_it_is_written() -> None:
    for source in (
        "update(schedule_task_node)",
        "tables.schedule_instance.update()",
        "RowsUpdate(schedule_instance, f)",
    ):
        module = Module("rota.shared.store.runs", ast.parse(source))
        assert instances_and_nodes_are_updated_by_their_moves_alone(module), source


def test_no_test_module_imports_another() -> None:
    """What tests share is in tests/harness, so that a test can be moved or deleted by itself."""
    tests = [read(path) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    assert [fault for module in tests for fault in imports_of_tests(module)] == []
    assert imports_of_tests(Module("tests.unit.test_a", ast.parse("from tests.unit.test_cli import invoke")))


def imports_of_tests(module: Module) -> list[str]:
    return [
        f"{module.name}:{found.line} imports {found.target}"
        for found in imports(module)
        if found.reaches("tests") and any(part.startswith("test_") for part in found.target.split(".")[:-1])
    ]


def test_files_and_functions_are_short() -> None:
    """A file of 350 lines and a function of 40 are the most, but for the tables and the migrations."""
    long = [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for folder in ("rota", "benchmarks", *FOLDERS)
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 350 and not is_schema(path)
    ]
    long += [
        f"{module.name}:{node.lineno} {node.name}: {lines} lines"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > 40 and ".versions." not in module.name
    ]
    assert long == []


def is_schema(path: Path) -> bool:
    return path == ROOT / "shared" / "store" / "tables.py" or path.is_relative_to(ROOT / "migrations" / "versions")


def test_every_package_is_read() -> None:
    seen = {module.name.split(".")[1] for module in modules() if "." in module.name}
    assert seen > {"cli", *FOLDERS}
    files = [module.name for module in modules()]
    assert len(files) == len(set(files))


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
