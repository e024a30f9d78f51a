"""What a person gets who asks while the database is away: a sentence within seconds, exit code 3, and no traceback."""

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import make_url

from tests.harness.databases import PrivateMariaDB, run_sql
from tests.harness.processes import RotaProcess

Start = Callable[..., RotaProcess]

COMMANDS = (("task", "list"), ("task", "run", "x", "--json"), ("worker", "drain", "w"), ("doctor",), ("migrate",))
PATIENCE_SECONDS = 20
"""They take 3 to 10 s; the rest is for the start of a process on a small machine."""


@contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that takes no connection and refuses none: its queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        try:
            yield address
        finally:
            for filler in fillers:
                filler.close()


@pytest.fixture(params=["stopped", "frozen", "unreachable", "silent"])
def url(request: pytest.FixtureRequest, own_mariadb: PrivateMariaDB, mariadb_template: list[str]) -> Iterator[str]:
    """The URL of a database whose server is away, in one way of several."""
    url = own_mariadb.create_database()
    run_sql(url, *mariadb_template)
    if request.param == "stopped":
        own_mariadb.kill()
        yield url
    elif request.param == "frozen":
        own_mariadb.stop_signal(signal.SIGSTOP)
        yield url
        own_mariadb.stop_signal(signal.SIGCONT)
    elif request.param == "unreachable":
        with black_hole() as (host, port):
            yield make_url(url).set(host=host, port=port).render_as_string(hide_password=False)
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:  # it takes connections, and says nothing
            address = listener.getsockname()
            yield make_url(url).set(host=address[0], port=address[1]).render_as_string(hide_password=False)


def test_each_command_ends_in_seconds_with_a_sentence_and_exit_code_3(rota: Start, url: str) -> None:
    ended: dict[tuple[str, ...], float] = {}

    def run(arguments: tuple[str, ...]) -> None:
        since = time.monotonic()
        process = rota(*arguments, database_url=url)
        code = process.wait_exit(60)
        ended[arguments] = time.monotonic() - since
        assert code == 3, (arguments, process.log)
        assert "Traceback" not in process.log
        assert "error: mysql" in process.log or "wrong  reachable" in process.log, process.log

    for arguments in COMMANDS:
        run(arguments)
    print({" ".join(arguments): round(seconds, 1) for arguments, seconds in ended.items()})
    assert max(ended.values()) < PATIENCE_SECONDS
