"""A scheduler that meets its fate between two statements, without a word of it in the product.

What one duty says to the database is numbered from 1: each statement and each commit is a point. Each is written to a
journal, a line each, just before it is said; just before the chosen point the process sends itself a signal. SQLAlchemy
tells of every statement, of whatever engine.
"""

import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from rota.scheduler_service.app import serve
from rota.shared.settings import Settings
from tests.harness.staging import send_what_waits

COMMIT = "COMMIT"

LOOKS = {"spreader": "SELECT schedule_instance.id, schedule_instance.attempt, schedule_instance.shard_total"}
"""What a duty says again and again until there is something for it to do. It is no point, nor is its commit."""


def arm(duty: str, at: int, number: signal.Signals, journal: Path) -> None:
    """Number what the thread named `duty` says from now on, and send `number` to this process before point `at`.

    0: before none.
    """
    points = itertools.count(1)
    look = LOOKS.get(duty, "no look")
    lines = journal.open("a", buffering=1)

    looked = False

    def is_look(what: str) -> bool:
        nonlocal looked
        was_look, looked = looked, what.startswith(look)
        return looked or (was_look and what == COMMIT)

    def reached(connection: Any, what: str) -> None:
        if threading.current_thread().name == duty and not is_look(what):
            point = next(points)
            lines.write(" ".join(what.split()) + "\n")
            if point == at:
                send_what_waits(connection)
                signal.pthread_kill(threading.get_ident(), number)  # to this thread, so that it gets no further

    def statement(connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        reached(connection, text)

    def commit(connection: Any) -> None:
        reached(connection, COMMIT)

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "commit", commit)


def scheduler(
    settings: Mapping[str, Any], *, duty: str, at: int, number: signal.Signals, journal: Path, log: Path
) -> None:
    """Run a scheduler to its fate: the main function of a process."""
    with log.open("ab") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    logging.basicConfig(level=logging.INFO, force=True)
    arm(duty, at, number, journal)
    sys.exit(serve(Settings.load(**settings), {}))
