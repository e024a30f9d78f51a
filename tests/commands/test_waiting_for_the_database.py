"""A service that waits for its database ends on SIGTERM, even if the exception of the signal's handler is lost."""

import os
import signal
from contextlib import suppress

import pytest

from rota.cli.shell import Shell
from rota.shared.database import checks
from rota.shared.database.transactions import Database


def test_sigterm_ends_the_wait_though_the_exception_of_its_handler_is_swallowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Database] = []

    def look(database: Database) -> str:
        """As code in C does that clears errors, such as the finalizer of a file."""
        looks.append(database)
        assert len(looks) < 3, "the service goes on to wait"
        with suppress(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
        return ""

    monkeypatch.setattr(checks, "_closed", look)
    monkeypatch.setattr(checks, "WAIT_SECONDS", 0)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        Shell("mysql://rota@127.0.0.1:1/rota").await_database()
    assert end.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
