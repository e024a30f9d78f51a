"""``rota up`` with the examples, as a process."""

import re
from collections.abc import Callable

from tests.harness.processes import RotaProcess

Start = Callable[..., RotaProcess]
BEAT = r"^\d\d:\d\d:\d\dZ  heartbeat +\S+ \S+  succeed +(\S+)  \+\d+ ms  \d+ ms  \{\"beat\": \"\d\d:\d\d:\d\d\"\}$"
"""What it shows of a fire of the heartbeat example."""


def up(start: Start, url: str, *options: str) -> RotaProcess:
    """Start it, and wait for the first fire."""
    process = start("up", "--app", "examples.jobs:app", *options, database_url=url)
    process.wait_for_log(BEAT, deadline=60)
    return process


def pids(process: RotaProcess) -> dict[str, int]:
    """The children by name, as the banner has them."""
    return {name: int(pid) for name, pid in re.findall(r"^  (\S+(?: \d+)?) +pid (\d+)$", process.log, re.MULTILINE)}
