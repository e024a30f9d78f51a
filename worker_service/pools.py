"""The pools of threads that an app declares."""

from collections.abc import Mapping

from rota.shared.domain.errors import NameTaken
from rota.shared.domain.pools import checked_name, checked_size


class Pools:
    """The part of an app that declares pools of threads."""

    def __init__(self) -> None:
        super().__init__()
        self._pools: dict[str, int] = {}

    @property
    def pools(self) -> Mapping[str, int]:
        """The pools that the code declares, each with its size."""
        return self._pools

    def pool(self, name: str, size: int) -> None:
        """Declare a pool: so many threads of each worker of this app, for the tasks that name it.

        A worker runs at most ``size`` instances of these tasks at once, and they take none of its slots. Raises
        InvalidInput, and NameTaken.

            app.pool("images", size=2)
            app.schedule("thumbnails", thumbnails, cron="*/5 * * * *", pool="images")
        """
        if checked_name(name) in self._pools:
            raise NameTaken(f"pool {name!r} is declared twice in this app")
        self._pools[name] = checked_size(name, size)
