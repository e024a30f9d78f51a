"""The peers' databases: the lab's servers, emptied for each case."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from sqlalchemy import make_url

from benchmarks.lab import Lab
from benchmarks.servers import postgresql as postgresql_program
from benchmarks.servers import program
from tests.harness.databases import fresh_database
from tests.harness.distance import far

DATABASE = "peer"


@dataclass(frozen=True, slots=True)
class Store:
    """An empty database for one case, and the process id of its server."""

    url: str
    pid: int


StoreOf = Callable[[Lab], AbstractContextManager[Store]]


@contextmanager
def mariadb(lab: Lab) -> Iterator[Store]:
    """A fresh database of the lab's MariaDB."""
    with fresh_database(lab.mariadb) as url:
        yield Store(url, lab.mariadb.pid)


@contextmanager
def postgresql(lab: Lab) -> Iterator[Store]:
    """A fresh database of the lab's PostgreSQL."""
    drop = f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)"
    server = lab.postgresql
    try:
        for statement in (drop, f"CREATE DATABASE {DATABASE}", "CHECKPOINT"):
            _psql(server.url, statement)
        url = make_url(server.url).set(database=DATABASE).render_as_string(hide_password=False)
        yield Store(url, server.pid)
    finally:
        _psql(server.url, drop)


@contextmanager
def redis(lab: Lab) -> Iterator[Store]:
    """The lab's Redis, emptied."""
    server = lab.redis
    flush = [program("redis-cli"), "-p", str(server.port), "FLUSHALL"]
    subprocess.run(flush, check=True, capture_output=True)
    try:
        yield Store(server.url, server.pid)
    finally:
        subprocess.run(flush, check=True, capture_output=True)


def at_a_distance(store: StoreOf, round_trip_seconds: float) -> StoreOf:
    """The same store, so far away: a proxy delays each packet by half the round trip."""

    @contextmanager
    def distant(lab: Lab) -> Iterator[Store]:
        with store(lab) as near, far(near.url, round_trip_seconds) as url:
            yield Store(url, near.pid)

    return distant


def _psql(url: str, statement: str) -> None:
    run = [postgresql_program("psql"), "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "-c", statement, url]
    subprocess.run(run, check=True, capture_output=True)
