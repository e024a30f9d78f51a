"""What the settings of a Django project say: the database, and where its tasks are declared."""

import os
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import connections

from rota.integrations.django.databases import url_of
from rota.shared.domain.errors import ConfigurationError
from rota.shared.domain.sentences import close_to

ASK = "Rota's rows are not written by models; ask for it: from rota.integrations.django import client"
WORKER = "rota.integrations.django.worker:app"
"""Where a worker finds what it runs."""

FIELDS = ("DATABASE", "DATABASE_URL", "TASKS")


def said() -> Mapping[str, Any]:
    """``ROTA`` of the settings. Raises ConfigurationError for a field that does not exist."""
    given: Mapping[str, Any] = getattr(settings, "ROTA", {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"ROTA in the settings is a {type(given).__name__}; write a dict, such as {{'DATABASE': 'default'}}"
        )
    for name in given:
        if name not in FIELDS:
            near = close_to(name, FIELDS) if isinstance(name, str) else ""
            raise ConfigurationError(f"ROTA in the settings has {name!r}{near}; there are: {', '.join(FIELDS)}")
    return given


def alias() -> str | None:
    """The database of ``DATABASES`` that has Rota's tables; None if they are in one that Django does not have.

    Raises ConfigurationError.
    """
    fields = said()
    if "DATABASE_URL" in fields:
        if "DATABASE" in fields:
            raise ConfigurationError("ROTA in the settings has DATABASE and DATABASE_URL; give one of them")
        return None
    name = fields.get("DATABASE", "default")
    if not isinstance(name, str) or "://" in name:  # it may hold a password
        raise ConfigurationError("ROTA['DATABASE'] is no name of an entry of DATABASES; give a URL as DATABASE_URL")
    if name not in connections.settings:
        known = ", ".join(connections.settings)
        raise ConfigurationError(f"ROTA['DATABASE'] is {name!r}, which DATABASES does not have; it has: {known}")
    return name


def database_url() -> str:
    """The database that the project's settings say, as Rota writes it; in a test that of the test.

    Raises ConfigurationError for a kind of database that Rota does not use, and for options that it cannot follow.

        AsyncClient(database_url())
    """
    name = alias()
    if name is None:
        return str(said()["DATABASE_URL"])
    return url_of(name)


def listed_modules() -> list[str]:
    """``ROTA["TASKS"]``: modules that declare what workers run. Raises ConfigurationError for what is no list."""
    listed = said().get("TASKS", ())
    if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
        raise ConfigurationError("ROTA['TASKS'] is no list of modules; write one, such as ['shop.nightly']")
    return list(listed)


def environment() -> dict[str, str]:
    """The environment in which ``rota`` works for this project."""
    module = getattr(settings, "SETTINGS_MODULE", None) or os.environ.get("DJANGO_SETTINGS_MODULE")
    if not module:
        raise ConfigurationError("the settings are of no module that another process could import")
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": module,
        "ROTA_DATABASE_URL": database_url(),
        "ROTA_APP": WORKER,
    }
