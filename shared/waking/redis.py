"""Wake-ups by the publish/subscribe of a Redis that is there anyway: ``ROTA_WAKE_REDIS``.

A process subscribes to a channel of its own, and its row tells which (``redis:rota:…``). What is published there is
not read. A Redis that is away costs nothing but the wake-ups: pulling goes on.
"""

import atexit
import logging
import os
import queue
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from secrets import token_hex
from typing import TYPE_CHECKING

from rota.shared.clock import Timer
from rota.shared.settings import Settings
from rota.shared.waking.pace import CLOSING_SECONDS

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import PubSub

log = logging.getLogger(__name__)

CONTENT = b"rota"
"""For people who look at Redis. Whoever receives a wake-up does not read it."""

PREFIX = "redis:"
CHANNEL = re.compile(r"rota:[0-9a-f]{24}")
CALL_SECONDS = 1.0
"""How long a call to Redis may take, and how long to rest after one that failed."""

HEALTH_SECONDS = 15
UNANSWERED = 1
"""A listener asks so often whether Redis is still there, and begins anew after more than one question without an
answer: a connection that a firewall has forgotten says nothing."""

DROPPING_SECONDS = 0.2
"""So long at most a listener drops what has come together with a wake-up."""

MOST_WAITING = 100
LAST_SECONDS = 2.0
"""How long a process that ends waits for what it has still to publish."""


def connected(url: str) -> "Redis":
    """A client of Redis that gives up soon. It connects at the first call."""
    from redis import Redis  # noqa: PLC0415 - an extra

    limits: dict[str, float] = {"socket_timeout": CALL_SECONDS, "health_check_interval": HEALTH_SECONDS}
    if not url.startswith("unix:"):
        limits["socket_connect_timeout"] = CALL_SECONDS
    return Redis.from_url(url, **limits)


class RedisListener:
    """Calls ``look_now`` when something is published on its channel, as ``DatagramListener`` does for datagrams.

    listener = RedisListener("redis://cache:6379/0", clock, engine.look_now)
    listener.start(); listener.address   # 'redis:rota:5f2c…'
    """

    def __init__(self, url: str, timer: Timer, look_now: Callable[[], float]) -> None:
        self._url = url
        self._look_now = look_now
        self._timer = timer
        self._stopping = timer.event()
        self._thread = timer.thread("wake-ups", self._run)
        self._channel = f"rota:{token_hex(12)}"
        self.address = f"{PREFIX}{self._channel}"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSING_SECONDS)

    def _run(self) -> None:
        is_away = False
        while not self._stopping.is_set():
            try:
                with connected(self._url) as redis, redis.pubsub(ignore_subscribe_messages=True) as subscribed:
                    subscribed.subscribe(self._channel)
                    if is_away:
                        log.info("wake-ups: Redis is back")
                    is_away = False
                    self._listen(subscribed)
            except Exception as error:  # noqa: BLE001 - whatever it is, wake-ups may be lost, and nothing else
                if not is_away:
                    log.warning("wake-ups: Redis: %s; this process only pulls until it is back", error)
                is_away = True
                self._stopping.wait(CALL_SECONDS)

    def _listen(self, subscribed: "PubSub") -> None:
        while not self._stopping.is_set():
            if subscribed.health_check_response_counter > UNANSWERED:
                raise TimeoutError("it does not answer")
            if subscribed.get_message(timeout=CALL_SECONDS) is None:
                continue
            self._drop(subscribed)
            self._stopping.wait(self._look_now())

    def _drop(self, subscribed: "PubSub") -> None:
        """Several that have come count as one."""
        last = self._timer.monotonic() + DROPPING_SECONDS
        while self._timer.monotonic() < last and subscribed.get_message(timeout=0) is not None:
            pass


class Publisher:
    """Publishes wake-ups on a thread of its own: whoever sends one never waits. What Redis does not take is dropped."""

    def __init__(self, url: str) -> None:
        self._redis = connected(url)  # here, since a thread may import nothing any more when its process ends
        self._pid = os.getpid()
        self._waiting: queue.Queue[str] = queue.Queue(MOST_WAITING)
        threading.Thread(target=self._run, name="wake-ups to Redis", daemon=True).start()
        atexit.register(self._finish)

    def publish(self, channel: str) -> None:
        """Let a wake-up be published."""
        with suppress(queue.Full):
            self._waiting.put_nowait(channel)

    def _run(self) -> None:
        while True:
            channel = self._waiting.get()
            try:
                self._redis.publish(channel, CONTENT)
            except Exception as error:  # noqa: BLE001 - a wake-up may always be lost
                log.debug("wake-ups: Redis: %s", error)
                self._drop()
            self._waiting.task_done()

    def _drop(self) -> None:
        """What waits would be late, and a Redis that is away would hold up each of them."""
        with suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()
                self._waiting.task_done()

    def _finish(self) -> None:
        """A command that ends at once is to wake somebody all the same. A forked process has no such thread."""
        if os.getpid() != self._pid:
            return
        with self._waiting.all_tasks_done:
            self._waiting.all_tasks_done.wait_for(lambda: not self._waiting.unfinished_tasks, LAST_SECONDS)


@cache
def publisher() -> Publisher | None:
    """This process's publisher; None if it has no ``ROTA_WAKE_REDIS``."""
    url = Settings.load().wake_redis
    return None if url is None else Publisher(url.get_secret_value())


os.register_at_fork(after_in_child=publisher.cache_clear)


def publish(address: str) -> None:
    """Publish a wake-up to an address of a row, if it is one. It never raises and never waits."""
    channel = address.removeprefix(PREFIX)
    if CHANNEL.fullmatch(channel):
        with suppress(Exception):  # also that the settings are wrong, which others say
            if (there := publisher()) is not None:
                there.publish(channel)
