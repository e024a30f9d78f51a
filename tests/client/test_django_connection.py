"""Work that is asked for on Django's connection: inside ``atomic`` exactly if that is committed, and at once then."""

import json
import subprocess
import sys
from dataclasses import replace

from sqlalchemy import make_url

from rota.scheduler_service.app import declaration
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import schedulers
from tests.harness.processes import ROOT
from tests.harness.scenario import Scenario
from tests.harness.wake_ups import receiver

PROGRAM = """
import json, sys

import pymysql

pymysql.version_info = (2, 2, 7, "final", 0)  # as Django wants it of mysqlclient, for which PyMySQL stands here
pymysql.install_as_MySQLdb()

from django.conf import settings

url, database = sys.argv[1], json.loads(sys.argv[2])
settings.configure(DATABASES={"default": database}, USE_TZ=True)

import django

django.setup()

from django.db import connection, transaction

from rota import Client

AT = "2099-12-24T20:00Z"


class Undone(Exception):
    pass


with Client(url, name="shop") as client:
    with transaction.atomic():
        client.keys.cancel("REPORT", "first", connection=connection)
        told = client.once("REPORT", key="kept", at=AT, param={"region": "100 %s"}, connection=connection)
        assert (told["done"], told["instance_id"]) == ("asked", None)
        try:
            with transaction.atomic():
                client.once("REPORT", key="undone-with-its-savepoint", at=AT, connection=connection)
                raise Undone
        except Undone:
            pass
    try:
        with transaction.atomic():
            client.once("REPORT", key="undone", at=AT, connection=connection)
            raise Undone
    except Undone:
        pass
    client.keys.cancel("REPORT", "alone", connection=connection)  # no transaction: committed at once
    transaction.set_autocommit(False)  # Django then knows no commit to wait for
    client.keys.cancel("REPORT", "by hand", connection=connection)
    transaction.commit()
"""


def as_django_has_it(url: str) -> dict[str, object]:
    """The same database in Django's settings."""
    parts = make_url(url)
    if parts.get_backend_name() == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parts.database}
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": parts.database,
        "HOST": parts.host,
        "PORT": parts.port,
        "USER": parts.username,
        "PASSWORD": parts.password,
    }


def test_it_is_asked_for_exactly_if_atomic_is_committed(database: Database, migrated_url: str) -> None:
    rows = Scenario(database)
    with receiver() as woken:
        declared = replace(declaration(Settings.load()), wake_address=woken.address)
        database.write(lambda c: schedulers.register(c, declared))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, migrated_url, json.dumps(as_django_has_it(migrated_url))],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = rows.sql("SELECT what, number, param FROM schedule_request ORDER BY id")
        asked = [(row.what, row.number, row.param and json.loads(row.param)) for row in found]
        canceled = [("cancel", key, None) for key in ("first", "alone", "by hand")]
        assert asked == [canceled[0], ("once", "kept", {"region": "100 %s"}), *canceled[1:]]
        assert woken.taken() == 2, "once for each commit, and for none that was undone"
