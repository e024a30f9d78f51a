"""The cycle collector of a process that is composed."""

import subprocess
import sys

from tests.harness.processes import ROOT

SETTLED = """
import gc
from rota.shared import collector
before, frozen = gc.get_threshold(), gc.get_freeze_count()
collector.settle()
assert gc.isenabled()
assert gc.get_freeze_count() > frozen + 1000
assert gc.get_threshold() == (collector.YOUNG, *before[1:])
loop = []
loop.append(loop)
del loop
assert gc.collect() > 0, "what is made since is collected"
"""


def test_what_is_alive_is_left_alone_and_the_young_are_looked_at_less_often() -> None:
    subprocess.run([sys.executable, "-c", SETTLED], cwd=ROOT, check=True, timeout=60)
