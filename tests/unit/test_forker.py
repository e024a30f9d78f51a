"""The fork server's own process, as far as no process is needed."""

import socket

from rota.worker_service.executors.forker import Forker


def test_a_worker_that_is_killed_before_it_has_read_all_has_hung_up() -> None:
    """Its log had a traceback then."""
    worker, control = socket.socketpair()
    with control:
        control.sendall(b"unread")
        worker.close()
        assert Forker(control).load() is False
