"""One more database is one file and one entry: whatever asks for a database by its URL finds it then."""

import pytest
from sqlalchemy import ColumnElement, Engine, create_engine, literal_column, select, update
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.default import DefaultDialect

from rota.shared.database.backend import Backend, Limits
from rota.shared.database.backends import BACKENDS, Entry, all_backends, backend_of
from rota.shared.database.constructs import RowsUpdate, by_index, found_by, read_by, unindexed
from rota.shared.database.servers import Servers
from rota.shared.database.sqlite import SQLite
from rota.shared.database.transactions import Database, normalised
from rota.shared.domain.errors import ConfigurationError
from rota.shared.settings import Settings
from rota.shared.store.tables import schedule_task

THIRD = "postgresql://rota@db/rota"


class Third(SQLite):
    """A database that is new to Rota."""

    def with_driver(self, url: URL) -> URL:
        return url.set(drivername="postgresql+psycopg")

    def engine(self, url: URL, limits: Limits, servers: Servers) -> Engine:
        return create_engine("sqlite://")


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> Backend:
    backend = Third()
    entry = Entry(lambda: backend, "names no database; write postgresql://…", options=frozenset())
    monkeypatch.setitem(BACKENDS, "postgresql", entry)
    return backend


def refusal(url: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        Settings.load(database_url=url)
    return str(refused.value)


def test_a_database_is_found_by_its_entry(third: Backend) -> None:
    assert Settings.load(database_url=THIRD).database_url.get_secret_value() == THIRD
    assert normalised(THIRD).drivername == "postgresql+psycopg"
    assert Database(THIRD).backend is third
    assert third in all_backends()
    assert refusal("postgresql://rota@db") == "ROTA_DATABASE_URL: names no database; write postgresql://…"


def test_a_database_without_an_entry_is_refused_and_those_that_have_one_are_named() -> None:
    sentence = "names the database 'postgresql'; Rota runs on mysql, mariadb and sqlite"
    assert refusal(THIRD) == f"ROTA_DATABASE_URL: {sentence}"
    with pytest.raises(ConfigurationError, match=sentence):
        backend_of(make_url(THIRD))


def test_two_schemes_may_be_one_database() -> None:
    assert backend_of(make_url("mariadb://rota@db/rota")) is backend_of(make_url("mysql+pymysql://rota@db/rota"))
    assert len(all_backends()) == len({type(one) for one in all_backends()}) == 2


def test_a_database_that_cannot_be_told_how_to_read_is_not_told() -> None:
    task = schedule_task.c
    on: ColumnElement[str] = literal_column("'on'")
    plain = select(task.id).where(task.status == on)
    told = by_index(select(task.id).where(unindexed(task.status) == on), schedule_task, "ix_schedule_task_due")
    dialect = DefaultDialect()
    assert str(read_by(told, schedule_task).compile(dialect=dialect)) == str(plain.compile(dialect=dialect))
    change = update(schedule_task).where(task.id == 1).values(priority=2)
    assert str(found_by(change).compile(dialect=dialect)) == str(change.compile(dialect=dialect))


def test_rows_are_updated_by_json_where_a_database_has_no_form_of_its_own() -> None:
    built = []

    def build(rows: object) -> object:
        built.append(rows)
        return update(schedule_task)

    move = RowsUpdate(schedule_task, build, next="time")  # type: ignore[arg-type]
    forms = {dialect: type(move._make(dialect)).__name__ for dialect in ("mysql", "mariadb", "sqlite", "postgresql")}
    assert forms == {"mysql": "ByLists", "mariadb": "ByLists", "sqlite": "_ByJson", "postgresql": "_ByJson"}
    assert len(built) == 4
