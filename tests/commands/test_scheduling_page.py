"""The commands of docs/scheduling.md print what the page shows."""

import re
import shlex
import textwrap

import pytest

from tests.harness.command_line import invoke
from tests.harness.processes import ROOT

PAGE = (ROOT / "docs" / "scheduling.md").read_text()
SHOWN = re.compile(r"^(?P<indent> +)\$ rota (?P<arguments>.+)\n(?P<output>(?:(?P=indent).*\n)+)", re.M)
BLOCKS = [(match["arguments"], textwrap.dedent(match["output"])) for match in SHOWN.finditer(PAGE)]


def test_the_page_shows_commands() -> None:
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize(("arguments", "output"), BLOCKS, ids=[arguments for arguments, _ in BLOCKS])
def test_a_command_prints_what_the_page_shows(arguments: str, output: str) -> None:
    assert invoke(*shlex.split(arguments)).output == output
