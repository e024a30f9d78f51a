"""docs/client.md: its programs, run one after the other as a person would, print what the page shows."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.harness.processes import ROOT, RotaProcess

PAGE = ROOT / "docs" / "client.md"
PROGRAM = re.compile(r"```python\n# (\w+\.py)\n(.*?)```\n(?:\n((?: {4}[^\n]*\n)+))?", re.S)


def test_the_programs_print_what_the_page_shows(
    migrated_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]
) -> None:
    programs = PROGRAM.findall(PAGE.read_text())
    for name, text, _ in programs:
        (tmp_path / name).write_text(text)
    up = rota("up", "--app", "jobs:app", database_url=migrated_url, cwd=tmp_path)
    up.wait_for_log("Rota is up")
    shown = [(name, output) for name, _, output in programs if output]
    assert [name for name, _ in shown] == [
        "ask.py",
        "ask_async.py",
        "promotion.py",
        "order.py",
        "at_once.py",
        "steer.py",
        "refused.py",
    ]
    for name, output in shown:
        done = subprocess.run(
            [sys.executable, name],
            cwd=tmp_path,
            env={**os.environ, "ROTA_DATABASE_URL": migrated_url, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "".join(line[4:] for line in output.splitlines(keepends=True)), name
