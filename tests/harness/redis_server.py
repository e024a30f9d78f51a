"""A Redis of the test's own, with a password, which the test may stop and start again."""

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from redis import Redis, RedisError

from tests.harness.ports import free_port
from tests.harness.processes import marked_environment, wait_until


class PrivateRedis:
    """A server on a free port of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.password = secrets.token_hex(8)
        self._port = free_port()
        self.url = f"redis://:{self.password}@127.0.0.1:{self._port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {"port": self._port, "bind": "127.0.0.1", "requirepass": self.password, "dir": self._folder}
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            ["redis-server", *words, "--save", "", "--appendonly", "no"],
            env=marked_environment({}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers, 20, "Redis")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def subscribers(self) -> int:
        """How many channels somebody listens at."""
        with Redis.from_url(self.url) as redis:
            return len(redis.pubsub_channels("rota:*"))

    def publish(self, channel: str, times: int = 1) -> None:
        """Publish something on a channel."""
        with Redis.from_url(self.url) as redis:
            for _ in range(times):
                redis.publish(channel, b"x" * 50)

    def _answers(self) -> bool:
        with suppress(RedisError), Redis.from_url(self.url, socket_timeout=1) as redis:
            return bool(redis.ping())
        return False


@contextmanager
def private_redis(folder: Path) -> Iterator[PrivateRedis]:
    """A server that has started; it ends with the block."""
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server here")
    server = PrivateRedis(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
