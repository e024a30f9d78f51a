"""What the documents say exists: commands and options, settings, links; and their Python is Python."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import click
import pytest

from rota import NodeContext
from rota.cli import cli
from rota.cli.commands.backfills import START, StartingGroup
from rota.shared.settings import Settings
from tests.harness.processes import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)((?:(?: {4}.*)?\n)+)")
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.M)
COMMAND = re.compile(
    r"^\s*(?:\$ )?(?:\w+=\S+ )*(?:docker compose (?:exec|run) (?:-\S+ )*\w+ )?(?:\.venv/bin/)?rota (?P<arguments>.+)$"
)
PLACEHOLDER = re.compile(r"[A-Z_]+…?|…|\.\.\.")
VARIABLE = re.compile(r"\bROTA_[A-Z_]*[A-Z]\b")
ROW = re.compile(r"^\| (.+) \|$", re.M)


@dataclass(frozen=True)
class Code:
    """Code of a page: a block with its language, or a span in the text (language ``inline``)."""

    page: Path
    language: str
    text: str


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def code_of(page: Path) -> tuple[Code, ...]:
    text = page.read_text()
    fenced = [Code(page, match[2], match[3]) for match in FENCE.finditer(text)]
    rest = FENCE.sub("", text)
    indented = [Code(page, "", match[1]) for match in INDENTED.finditer(rest) if match[1].strip()]
    inline = [Code(page, "inline", match[1]) for match in INLINE.finditer(rest)]
    return (*fenced, *indented, *inline)


def commands(page: Path) -> Iterator[str]:
    """What follows ``rota`` wherever the page types it at a prompt."""
    for code in code_of(page):
        if code.language not in ("python", "sql", "dockerfile", "yaml"):
            lines = code.text.replace("\\\n", " ").splitlines()
            yield from (match["arguments"] for line in lines if (match := COMMAND.match(line)))


def fault_of(arguments: str) -> str | None:
    """What of a command line the CLI does not know; None if it knows all."""
    command: click.Command = cli
    context = click.Context(cli)
    options = options_of(cli)
    for word in shlex.split(arguments.partition(" #")[0].rstrip("|;&")):
        if word.startswith("-") and word.strip("-"):
            if word.partition("=")[0] not in options:
                return f"there is no option {word}"
        elif isinstance(command, click.Group):
            below = command.get_command(context, word)
            if below is None and isinstance(command, StartingGroup):  # the name of a task
                below = command.get_command(context, START)
            if below is None and is_value(arguments, word):
                continue
            if below is None:
                return None if PLACEHOLDER.fullmatch(word) else f"there is no command {word}"
            command = below
            options |= options_of(command)
    return None


def options_of(command: click.Command) -> set[str]:
    given = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    return given | {"--help", "-h"}


def is_value(arguments: str, word: str) -> bool:
    """Whether a word is the value of the option before it, as in ``rota -d URL task list``."""
    return re.search(rf"(?:^| )-\S+ {re.escape(word)}", arguments) is not None


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_and_option_exists(page: Path) -> None:
    faults = {f"rota {arguments}": fault for arguments in commands(page) if (fault := fault_of(arguments))}
    assert faults == {}


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        ("worker --app jobs:app", True),
        ("worker --ap jobs:app", False),
        ("task list", True),
        ("task lists", False),
        ("task set NAME --cron '0 3 * * *'", True),
        ("task set NAME --crom '0 3 * * *'", False),
        ("-d mysql://rota:secret@db/rota task list", True),
        ("-d mysql://rota:secret@db/rota task lists", False),
        ("nothing", False),
        ("--debug …", True),
        ("migrate  # once", True),
    ],
)
def test_a_command_that_does_not_exist_would_be_noticed(arguments: str, known: bool) -> None:
    assert (fault_of(arguments) is None) is known


def test_commands_are_found_where_pages_type_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Type `rota one` or\n\n    rota two --a  # why\n    X=1 rota three\n    from rota import Rota\n\n"
        "```sh\n$ rota four\ndocker compose exec -T worker rota five \\\n  --b\nmariadb -u rota rota\n```\n"
        "```python\nrota six\n```\nrota seven is prose.\n"
    )
    found = [" ".join(arguments.split()) for arguments in commands(page)]
    assert sorted(found) == ["five --b", "four", "one", "three", "two --a # why"]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_variable_is_a_setting_or_is_known_to_what_reads_it(page: Path) -> None:
    others = [ROOT / "docker-compose.yml", *ROOT.glob("tests/harness/*.py"), *ROOT.glob("worker_service/builtin/*.py")]
    known = {f"ROTA_{field.upper()}" for field in Settings.model_fields}
    known.update(*(VARIABLE.findall(path.read_text()) for path in others))
    text = page.read_text()
    for line in text.splitlines():
        if "no such setting" in line:  # shows what a misspelt one is answered
            known.update(VARIABLE.findall(line))
    assert set(VARIABLE.findall(text)) - known == set()


python_blocks = [code for page in PAGES for code in code_of(page) if code.language == "python"]


@pytest.mark.parametrize("block", python_blocks, ids=lambda code: name(code.page))
def test_python_compiles_and_what_declares_an_app_can_be_declared(block: Code) -> None:
    compiled = compile(block.text, name(block.page), "exec")
    if "app = Rota()" in block.text:
        exec(compiled, {"__name__": "jobs"})


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    links = [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not leads_somewhere(page, link)] == []


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not anchor or anchor in {slug(heading) for heading in HEADING.findall(target.read_text())}


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize(
    ("link", "leads"),
    [("docs/sql.md", True), ("docs/sql.md#tasks", True), ("docs/sql.md#task", False), ("docs/no.md", False)],
)
def test_a_link_that_leads_nowhere_would_be_noticed(link: str, leads: bool) -> None:
    assert leads_somewhere(ROOT / "README.md", link) is leads


@dataclass(frozen=True)
class Home:
    """Where a kind of change belongs: a row of CONTRIBUTING's table."""

    what: str
    code: tuple[str, ...]

    @property
    def paths(self) -> list[Path]:
        return [ROOT / code for code in self.code if "/" in code]

    def faults(self) -> list[str]:
        """The paths that do not exist, and the names that none of the row's files has."""
        missing = [str(path.relative_to(ROOT)) for path in self.paths if not path.exists()]
        text = "".join(path.read_text() for path in self.paths if path.is_file())
        names = [code for code in self.code if "/" not in code]
        return missing + [name for name in names if not re.search(rf"^(?:class |def )?{name}\b", text, re.M)]


def homes(text: str) -> list[Home]:
    section = text.partition("\n## Where does it belong?\n")[2].partition("\n## ")[0]
    _, _, *rows = ROW.findall(section)
    return [Home(row.partition(" | ")[0], tuple(INLINE.findall(row))) for row in rows]


HOMES = homes((ROOT / "CONTRIBUTING.md").read_text())


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.what)
def test_every_kind_of_change_has_a_home_that_exists(home: Home) -> None:
    assert home.paths
    assert home.faults() == []


def test_the_table_of_homes_has_what_people_add_most() -> None:
    assert {home.what for home in HOMES} >= {
        "a trigger",
        "a built-in node",
        "a rule for when a worker polls or claims",
        "a REST resource",
        "a database",
        "a duty",
        "a move of an instance",
        "a column or a table",
        "a command",
        "a setting",
        "an invariant",
    }


def test_a_home_that_does_not_exist_would_be_noticed() -> None:
    text = (
        "## Other\n\n| a | `no/where/` |\n\n## Where does it belong?\n\n| you add | write it in |\n| --- | --- |\n"
        "| a thing | `SPACE` and `Settings` in `shared/settings.py` |\n| more | `shared/no.py` |\n"
        "\n## Next\n\n| b | `c/` |\n"
    )
    assert [(home.what, home.faults()) for home in homes(text)] == [("a thing", ["SPACE"]), ("more", ["shared/no.py"])]


def test_all_fields_of_a_context_are_told() -> None:
    section = (
        (ROOT / "docs" / "authoring.md").read_text().partition("\n## What a handler gets\n")[2].partition("\n## ")[0]
    )
    properties = {name for name, value in vars(NodeContext).items() if isinstance(value, property)}
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == {f.name for f in fields(NodeContext)} | properties


def test_the_tests_that_hold_mended_faults_are_there() -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 30
    missing = [
        f"{path}::{test}"
        for path, test in named
        if not (ROOT / path).is_file() or (test and f"def {test}(" not in (ROOT / path).read_text())
    ]
    assert not missing


def links_of(page: Path) -> set[Path]:
    """The files to which a page links."""
    links = (link.partition("#")[0] for link in LINK.findall(page.read_text()))
    return {(page.parent / link).resolve() for link in links if link and not re.match(r"[a-z]+:", link)}


@pytest.mark.parametrize("folder", [ROOT / "docs", ROOT / "docs" / "decisions"], ids=name)
def test_the_list_of_a_folder_names_each_of_its_pages(folder: Path) -> None:
    assert {page for page in folder.glob("*.md") if page.name != "README.md"} <= links_of(folder / "README.md")


def test_the_changelog_says_nothing_twice() -> None:
    lines = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.strip() and line[0] != "#"]
    assert [line for line in lines if lines.count(line) > 1] == []
