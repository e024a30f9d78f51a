"""Wake-ups: addresses, sending, and a listener that looks only so often, whatever is sent."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import make_url

from rota.shared.clock import HostTimer
from rota.shared.domain.errors import ConfigurationError
from rota.shared.settings import Settings
from rota.shared.waking import sending
from rota.shared.waking.addresses import WakeAddress, own_address, parsed
from rota.shared.waking.datagrams import DatagramListener, listen_at
from rota.shared.waking.pace import LONGEST_REST_SECONDS, REST_SECONDS, rest_after
from tests.harness.processes import wait_until
from tests.harness.wake_ups import flooded, receiver

HERE = WakeAddress("127.0.0.1", 0)


class Looks:
    """What a listener calls: counts, and says how long the next look has to wait."""

    def __init__(self, took: float = 0) -> None:
        self.number, self.took, self.at = 0, took, list[float]()

    def __call__(self) -> float:
        self.number += 1
        self.at.append(time.monotonic())
        return rest_after(self.took)


@contextmanager
def listening(looks: Looks, address: WakeAddress = HERE) -> Iterator[DatagramListener]:
    listener = DatagramListener(address, HostTimer(), looks)
    listener.start()
    try:
        yield listener
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.5:7788", ("10.0.0.5", 7788)),
        (":0", ("", 0)),
        ("[::1]:7788", ("::1", 7788)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_an_address_is_read_and_written(text: str, address: tuple[str, int]) -> None:
    assert parsed(text) == address
    assert str(parsed(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("7788", "write host:port, as 10.0.0.5:7788"),
        ("10.0.0.5", "write host:port"),
        ("10.0.0.5:", "write host:port"),
        ("10.0.0.5:65536", "write host:port"),
        ("10.0.0.5:-1", "write host:port"),
        ("10.0.0.5:٣", "write host:port"),
        ("::1:7788", "an IPv6 address stands in brackets"),
        ("[10.0.0.5]:7788", "an IPv6 address stands in brackets"),
        ("a b:7788", "write host:port"),
        ("0.0.0.0:7788", "nobody can send to 0.0.0.0; write host:port"),
        ("[::]:7788", "nobody can send to ::"),
    ],
)
def test_what_is_no_address_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.load(wake_address=text)
    assert str(refused.value).startswith(f"ROTA_WAKE_ADDRESS '{text}': ")
    assert said in str(refused.value)


def test_without_a_host_it_is_the_address_by_which_the_database_is_reached() -> None:
    assert own_address(make_url("mysql://rota@127.0.0.1/rota")) == "127.0.0.1"
    assert own_address(make_url("mysql://rota@[::1]:3307/rota")) == "::1"
    assert own_address(make_url("sqlite:///rota.db")) == "127.0.0.1"
    assert own_address(make_url("mysql://rota@nowhere.invalid/rota?unix_socket=/run/mysqld/mysqld.sock")) == "127.0.0.1"


def test_a_process_that_cannot_listen_says_so_and_only_pulls(caplog: pytest.LogCaptureFixture) -> None:
    database = make_url("mysql://rota@nowhere.invalid/rota")
    assert listen_at(None, database, HostTimer(), Looks()) is None
    assert not caplog.records
    with receiver() as taken:
        for wanted in (":0", taken.address, "192.0.2.1:0", "a..b:5", f"{'x' * 64}:5"):
            assert listen_at(wanted, database, HostTimer(), Looks()) is None
            assert f"ROTA_WAKE_ADDRESS {wanted}: " in caplog.messages[-1]
            assert caplog.messages[-1].endswith("; this process only pulls")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_wake_up_that_is_sent_makes_it_look_once(host: str) -> None:
    looks = Looks()
    with listening(looks, WakeAddress(host, 0)) as listener:
        for number in (1, 2, 3):
            sending.send([listener.address])
            wait_until(lambda: looks.number >= number, 5, f"look {number}")  # noqa: B023
    assert looks.number == 3


def test_it_does_not_read_what_it_is_sent_and_looks_only_so_often_under_a_flood() -> None:
    looks = Looks()
    with listening(looks) as listener, flooded(listener.address, 10_000) as sent:
        wait_until(lambda: looks.number >= 20, 30, "20 looks")
        took = looks.at[-1] - looks.at[0]
    assert sent[0] > 5_000 * took, "there was a flood"
    gaps = [after - before for before, after in zip(looks.at, looks.at[1:], strict=False)]
    assert min(gaps) >= REST_SECONDS * 0.99


def test_after_a_flood_few_looks_follow() -> None:
    looks = Looks()
    with listening(looks) as listener:
        with flooded(listener.address, 10_000):
            wait_until(lambda: looks.number >= 3, 10, "three looks")
        wait_until(lambda: time.monotonic() - looks.at[-1] > 10 * REST_SECONDS, 10, "quiet")
        before = looks.number
        sending.send([listener.address])
        wait_until(lambda: looks.number == before + 1, 5, "the next wake-up")


def test_where_a_look_takes_long_it_looks_more_rarely() -> None:
    for took, least in ((0.04, 0.2), (60.0, LONGEST_REST_SECONDS)):
        looks = Looks(took)
        with listening(looks) as listener, flooded(listener.address, 1_000):
            wait_until(lambda: looks.number >= 3, 30, "three looks")  # noqa: B023
        assert looks.at[2] - looks.at[0] >= 2 * least * 0.99


def test_it_ends_at_once_while_it_waits_and_while_it_rests() -> None:
    for sent in (0, 1):
        looks = Looks(60.0)
        listener = DatagramListener(HERE, HostTimer(), looks)
        listener.start()
        sending.send([listener.address] * sent)
        wait_until(lambda: looks.number == sent, 5, "the look")  # noqa: B023
        began = time.monotonic()
        listener.close()
        assert time.monotonic() - began < LONGEST_REST_SECONDS
        assert "wake-ups" not in {thread.name for thread in threading.enumerate()}


def test_one_that_was_never_started_is_closed() -> None:
    DatagramListener(HERE, HostTimer(), Looks()).close()


@pytest.mark.parametrize(
    "written",
    [
        *(None, 5, b"x", "", "127.0.0.1", "127.0.0.1:0", "10.0.0.5:99999", "x" * 10_000 + ":1", "[::1:5", "0.0.0.0:7"),
        *("[::1%a\0]:5", "[::1%\u05d0a]:5", "[::1%ü]:5", "[::1%1]:5", "127.0.0.1\0:5", "٣.0.0.1:5"),
    ],
)
def test_what_sql_wrote_as_an_address_and_is_none_is_passed_over(written: object) -> None:
    with receiver() as other:
        sending.send([written, other.address])
        assert other.taken() == 1


def test_no_name_is_looked_up_since_that_could_take_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_: object) -> None:
        pytest.fail("a name was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with receiver() as other:
        sending.send(["localhost:7788", "rota.invalid:7788", other.address])
        assert other.taken() == 1


def test_a_network_that_refuses_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as other:
        sending.send(["255.255.255.255:7788", "[fe80::1]:7788", other.address])  # neither may be sent to
        assert other.taken() == 1

        def fail(*_: object) -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(socket, "socket", fail)
        sending.send([other.address])
        monkeypatch.undo()
        assert other.taken() == 0
