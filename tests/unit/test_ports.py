"""The ports that tests give to their servers."""

import socket
from contextlib import closing

import pytest

from tests.harness import ports


def test_no_two_calls_give_the_same_port_and_none_gives_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket()) as used:
        used.bind(("127.0.0.1", ports.free_port()))
        taken = used.getsockname()[1]
        ports._claims[-1].close()
        others = {ports.free_port(), ports.free_port()}
        monkeypatch.setattr(ports, "PORTS", sorted({taken, *others}))
        with pytest.raises(RuntimeError, match="taken"):
            ports.free_port()
        for claim in ports._claims[-2:]:
            claim.close()
        assert {ports.free_port(), ports.free_port()} == others
