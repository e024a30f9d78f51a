"""Wake-ups by a real Redis: listeners, publishers, and a Redis that goes away."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rota.cli.commands.config import shown_value
from rota.shared.clock import HostTimer
from rota.shared.domain.errors import ConfigurationError
from rota.shared.settings import Settings
from rota.shared.waking import redis as waking
from rota.shared.waking import sending
from rota.shared.waking.listener import listen
from rota.shared.waking.pace import REST_SECONDS
from rota.shared.waking.redis import PREFIX, RedisListener
from tests.harness.processes import wait_until
from tests.harness.redis_server import PrivateRedis, private_redis


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateRedis]:
    """A Redis that this process's settings name."""
    with private_redis(tmp_path) as made:
        monkeypatch.setenv("ROTA_WAKE_REDIS", made.url)
        waking.publisher.cache_clear()
        yield made
        waking.publisher.cache_clear()


@contextmanager
def listening(url: str, look: Callable[[], float]) -> Iterator[RedisListener]:
    listener = RedisListener(url, HostTimer(), look)
    listener.start()
    try:
        yield listener
    finally:
        listener.close()


class Looks:
    """Counts looks."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> float:
        self.number += 1
        return REST_SECONDS


def test_who_listens_is_woken_and_nobody_else(server: PrivateRedis) -> None:
    looks, others = Looks(), Looks()
    with listening(server.url, looks) as woken, listening(server.url, others):
        wait_until(lambda: server.subscribers() == 2, 10, "both to listen")
        sending.send([woken.address])
        wait_until(lambda: looks.number == 1, 10, "the look")
        sending.send([woken.address])
        wait_until(lambda: looks.number == 2, 10, "another")
        assert others.number == 0
    wait_until(lambda: server.subscribers() == 0, 10, "none to listen")


def test_a_flood_is_bounded(server: PrivateRedis) -> None:
    looks = Looks()
    with listening(server.url, looks) as woken:
        wait_until(lambda: server.subscribers() == 1, 10, "it to listen")
        began = time.monotonic()
        server.publish(woken.address.removeprefix(PREFIX), times=5000)
        sent = looks.number
        took = time.monotonic() - began
        assert sent <= took / REST_SECONDS + 1
        wait_until(lambda: looks.number >= 1, 10, "the first look")


class Subscribed:
    """A subscription to which so many messages have come."""

    def __init__(self, left: int, unanswered: int = 0) -> None:
        self.left, self.health_check_response_counter = left, unanswered

    def get_message(self, timeout: float) -> object:
        self.left -= bool(self.left)
        return {"type": "message"} if self.left else None


def test_all_that_has_come_is_one_wake_up() -> None:
    looks = 0

    def look() -> float:
        nonlocal looks
        looks += 1
        listener._stopping.set()
        return 0

    listener = RedisListener("redis://cache", HostTimer(), look)
    subscribed: Any = Subscribed(1000)
    listener._listen(subscribed)
    assert (looks, subscribed.left) == (1, 0)


def test_a_redis_that_does_not_answer_is_left() -> None:
    listener = RedisListener("redis://cache", HostTimer(), Looks())
    silent: Any = Subscribed(0, unanswered=2)
    with pytest.raises(TimeoutError, match="does not answer"):
        listener._listen(silent)


def test_a_redis_that_goes_away_and_comes_back(server: PrivateRedis, caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks()
    with caplog.at_level(logging.INFO), listening(server.url, looks) as woken:
        wait_until(lambda: server.subscribers() == 1, 10, "it to listen")
        server.kill()
        wait_until(lambda: "this process only pulls until it is back" in caplog.text, 10, "the warning")
        began = time.monotonic()
        for _ in range(1000):
            sending.send([woken.address])
        assert time.monotonic() - began < 1, "who sends does not wait for it"
        server.start()
        wait_until(lambda: "Redis is back" in caplog.text, 10, "it to be back")

        def is_woken() -> bool:
            sending.send([woken.address])
            return looks.number > 0

        wait_until(is_woken, 10, "the look")
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1
    assert server.password not in caplog.text


def test_only_a_channel_of_a_listener_is_published_to(server: PrivateRedis) -> None:
    heard: list[str] = []
    publisher = waking.publisher()
    assert publisher is not None
    publisher.publish = heard.append  # type: ignore[assignment,method-assign]
    right = f"{PREFIX}rota:{'a' * 24}"
    strange = ["redis:", "redis:other", f"{right}b", "redis:rota:../../x", f"{PREFIX}rota:{'A' * 24}", right]
    sending.send(strange)
    assert heard == [right.removeprefix(PREFIX)]


def test_a_process_without_a_redis_passes_over_its_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROTA_WAKE_REDIS", raising=False)
    waking.publisher.cache_clear()
    threads = threading.active_count()
    sending.send([f"{PREFIX}rota:{'a' * 24}"])
    assert waking.publisher() is None
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("cache:6379", "write redis://"),
        ("http://:hidden@cache", "write redis://"),
        ("redis://", "write redis://"),
        ("redis://default:hid/hidden@cache:6379/0", "%2F"),
        ("redis://user:hidden#pass@cache", "%23"),
        ("redis://user:6379?hidden@cache", "%3F"),
        ("redis://user:hidden\u2100@cache", "write redis://"),
        ("redis://cache:hidden", "write redis://"),
        ("redis://cache/hidden", "write redis://"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.load(wake_redis=url)
    assert str(refused.value).startswith("ROTA_WAKE_REDIS")
    assert said in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_its_library_may_be_missing_and_there_is_one_way_to_be_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="give one of them"):
        Settings.load(wake_redis="redis://cache", wake_address=":0")
    assert Settings.load(wake_redis="").wake_redis is None
    monkeypatch.setattr("rota.shared.waking.addresses.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install \"rota\[redis\]\""):
        Settings.load(wake_redis="redis://cache")


def test_no_secret_is_shown() -> None:
    settings = Settings.load(wake_redis="redis://:hidden@cache:6379/0")
    assert "hidden" not in repr(settings)
    assert shown_value("wake_redis", settings.wake_redis) == "redis://cache:6379/0"
    made = listen(settings, None, HostTimer(), Looks())  # type: ignore[arg-type]
    assert made is not None
    assert made.address.startswith("redis:rota:")
    assert len(made.address) <= 63


def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    made = waking.Publisher("redis://127.0.0.1:1/0")
    monkeypatch.setattr(made, "_pid", 0)  # as a child finds it
    with made._waiting.mutex:  # which a thread of the parent held at the fork
        made._finish()
