"""The command on terminals: columns align whatever they hold, and NO_COLOR is heeded."""

import os
import pty
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

SHOW = """
import sys
from rota.cli.show.table import show_table
rows = [(str(at), name, "succeed", "2026-11-21 10:00:00+08:00", name * 9) for at, name in enumerate(sys.argv[1:])]
show_table(("id", "task", "status", "schedule time", "result"), rows, empty="", least=("result", "schedule time"))
"""
NAMES = ("daily", "日报汇总", "🚀 launch", "été")


def shown(program: str, places: int | None, **environment: str) -> list[str]:
    """What a program shows on a terminal so wide; None: in a pipe."""
    command = [sys.executable, "-c", program, *NAMES]
    own = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    if places is None:
        return subprocess.run(command, capture_output=True, text=True, check=True, env=own).stdout.splitlines()
    person, terminal = pty.openpty()
    own |= {"COLUMNS": str(places), "TERM": "xterm-256color", **environment}
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=own) as process:
        process.wait(30)
    os.close(terminal)
    text = os.read(person, 65536).decode()
    os.close(person)
    return text.splitlines()


@pytest.mark.parametrize("places", [None, 80, 40])
def test_columns_align_whatever_the_width_of_the_characters(places: int | None) -> None:
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in shown(SHOW, places)]
    at = {cell_len(line[: line.index("succeed")]) for line in lines if "succeed" in line}
    assert len(at) == 1
    assert sum("succeed" in line for line in lines) == len(NAMES), "each row is one line"
    assert all(any(name in line for line in lines) for name in NAMES)
    assert places is None or all(cell_len(line) <= places for line in lines if "too narrow" not in line)


@pytest.mark.parametrize("places", [80, 40])
def test_a_long_name_is_cut_with_an_ellipsis_and_stays_on_its_line(places: int) -> None:
    program = SHOW.replace("(str(at), name,", '(str(at), "日报汇总表" * 6,')
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in shown(program, places)]
    rows = [line for line in lines if "日" in line]
    assert len(rows) == sum("succeed" in line for line in rows) == len(NAMES)
    assert all(re.search("日[日报汇总表]+ ?…", line) for line in rows)
    assert all(cell_len(line) <= places for line in rows)


def test_no_color_is_heeded_by_tables() -> None:
    assert any("\x1b" in line for line in shown(SHOW, 80))
    assert not any("\x1b" in line for line in shown(SHOW, 80, NO_COLOR="1"))


@pytest.mark.parametrize(
    "arguments", [["--help"], ["task", "list", "--help"], ["task", "list"], ["tsak"], ["config"], ["cron", "@daily"]]
)
def test_no_color_is_heeded_by_help_errors_and_all_else(arguments: list[str]) -> None:
    command = f"import sys; sys.argv[1:] = {arguments}; from rota.cli import main; main()"
    lines = shown(command, 80, NO_COLOR="1", ROTA_DATABASE_URL="sqlite:////nowhere/rota.db")
    assert lines
    assert not any("\x1b" in line for line in lines)


LISTED = """
import sys
from rota.cli.commands.{module} import COLUMNS, LEAST
from rota.cli.show.table import show_table
texts = {{
    "state": "draining", "load": "12", "capacity": "50", "pools": "images 2/2", "labels": "region=eu, gpu=a100",
    "last heartbeat": "just now", "last tick": "2 min 3 s ago", "started": "2 d 4 h ago", "host": "vm.example.org",
    "pid": "26388", "version": "0.1.0", "remark": "blocked by REPORT #7", "when (UTC)": "2026-11-22 15:51:28Z",
    "who": "root", "by": "cli", "what": "instance.cancel", "id": "17", "changed": "status pending → canceled",
    "why": "the source is down since this morning, says 日报",
}}
rows = [[name * 3 if column == "name" else texts[column] for column in COLUMNS] for name in sys.argv[1:]]
show_table(COLUMNS, rows, empty="", least=LEAST)
"""


@pytest.mark.parametrize(
    ("module", "places", "columns"),
    [
        ("workers", 80, ["name", "state", "load", "labels", "last heartbeat", "remark"]),
        ("workers", 40, ["name", "state", "remark"]),
        ("schedulers", 80, ["name", "state", "last tick", "started", "version", "remark"]),
        ("schedulers", 40, ["name", "state", "remark"]),
        ("audit", 80, ["when (UTC)", "who", "what", "name", "changed"]),
        ("audit", 40, ["who", "what", "name", "id"]),
    ],
)
def test_each_row_of_a_list_is_one_line_however_narrow_the_terminal_is(
    module: str, places: int, columns: list[str]
) -> None:
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in shown(LISTED.format(module=module), places)]
    rows = [line for line in lines if any(name in line for name in NAMES)]
    assert len(rows) == len(NAMES)
    assert all(cell_len(line) <= places for line in lines if "too narrow" not in line)
    kept = {"audit": "instance.cancel"}.get(module, "draining")
    assert len({cell_len(line[: line.index(kept)]) for line in rows}) == 1
    assert [heading for heading in re.split(r" {2,}", lines[0].strip()) if heading] == columns
    assert "too narrow for: " in lines[-1] or "too narrow for: " in lines[0]
