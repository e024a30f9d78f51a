"""The limits that an app declares."""

from rota.shared.domain.errors import InvalidInput, NameTaken
from rota.shared.domain.limits import LimitDefinition


class Limits:
    """The part of an app that declares limits which tasks share."""

    def __init__(self) -> None:
        super().__init__()
        self._limits: dict[str, LimitDefinition] = {}

    @property
    def limits(self) -> list[LimitDefinition]:
        """The limits that the code declares."""
        return list(self._limits.values())

    def limit(self, name: str, max_running: int | None = None, *, starts_per_minute: int | None = None) -> None:
        """Declare a limit that tasks share. A worker writes it when it starts.

        It writes only what has changed since the last declaration: an operator's edit survives restarts. Raises
        InvalidInput, which names every fault, and NameTaken.

            app.limit("warehouse", 4)
            app.schedule("stock", stock, cron="*/5 * * * *", limit_name="warehouse")
        """
        if name in self._limits:
            raise NameTaken(f"limit {name!r} is declared twice in this app")
        try:
            given = {"max_running": max_running, "starts_per_minute": starts_per_minute}
            self._limits[name] = LimitDefinition.of(name=name, **given)
        except InvalidInput as error:
            faults = [f"limit {name!r}: {fault}" for fault in str(error).splitlines()]
            raise InvalidInput("\n".join(faults)) from None
