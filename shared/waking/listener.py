"""Where a process listens for wake-ups, as its settings say."""

from collections.abc import Callable
from typing import Protocol

from sqlalchemy.engine import URL

from rota.shared.clock import Timer
from rota.shared.settings import Settings
from rota.shared.waking.datagrams import listen_at
from rota.shared.waking.redis import RedisListener


class WakeListener(Protocol):
    """Somebody who listens for wake-ups, and where."""

    address: str

    def start(self) -> None:
        """Start the thread."""

    def close(self) -> None:
        """End the thread."""


def listen(settings: Settings, database: URL, timer: Timer, look_now: Callable[[], float]) -> WakeListener | None:
    """Listen as the settings say. None: they say nothing, or it cannot be done, and the process only pulls."""
    if settings.wake_redis is not None:
        return RedisListener(settings.wake_redis.get_secret_value(), timer, look_now)
    return listen_at(settings.wake_address, database, timer, look_now)
