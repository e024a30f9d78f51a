"""The client for plain code."""

from typing import Self

from rota.client.backfills import Backfills
from rota.client.calendars import Calendars
from rota.client.instances import Instances
from rota.client.keys import Keys
from rota.client.limits import Limits
from rota.client.schedulers import Schedulers
from rota.client.session import Session
from rota.client.tasks import Tasks
from rota.client.workers import Workers
from rota.shared.settings import Settings


class Client:
    """Asks Rota for work, from any program that reaches its database. Threads may share one.

        with Client("mysql://shop:…@db/rota") as client:
            run = client.tasks.run("nightly")
            print(client.instances.wait(run["id"], timeout=60)["status"])

    It opens connections at the first call. Close it at the end, or use it in a ``with`` block. A process that is forked
    later opens its own.
    """

    def __init__(self, database_url: str | None = None, *, name: str | None = None) -> None:
        """``database_url`` is by default that of ``ROTA_DATABASE_URL``; ``name`` says in ``rota audit`` who asked.

        The name is by default that of the process's user. Raises ConfigurationError for a bad URL, and InvalidInput for
        a name of more than 127 characters.
        """
        self._use(Session(Settings.load(database_url=database_url), name))

    def _use(self, session: Session) -> None:
        self._session = session
        self.tasks = Tasks(self._session)
        self.instances = Instances(self._session)
        self.backfills = Backfills(self._session)
        self.workers = Workers(self._session)
        self.keys = Keys(self._session)
        self.limits = Limits(self._session)
        self.calendars = Calendars(self._session)
        self.schedulers = Schedulers(self._session)
        self.once = self.keys.once
        self.once_many = self.keys.once_many

    def wake(self) -> None:
        """Wake the schedulers that listen (``ROTA_WAKE_ADDRESS``), after the commit of a transaction of your own.

        A session of SQLAlchemy and Django's connection tell their commits, so after these you need not call it. It
        raises nothing. Without it a scheduler finds the work at its next tick.

            client.once("REPORT", key="order-7", connection=connection)
            connection.commit()
            client.wake()
        """
        self._session.wake()

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def __enter__(self) -> Self:
        """Use the client in a ``with`` block, which closes it at its end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()
