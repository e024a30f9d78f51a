"""How an entry of Django's DATABASES becomes a URL of Rota's, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import make_url

from rota.integrations.django import databases, project
from rota.shared.domain.errors import ConfigurationError
from rota.shared.settings import Settings


def url_of(monkeypatch: pytest.MonkeyPatch, vendor: str = "mysql", **fields: Any) -> str:
    connection = SimpleNamespace(vendor=vendor, display_name=vendor.title(), settings_dict={"NAME": "shop", **fields})
    monkeypatch.setattr(databases, "connections", {"default": connection})
    url = databases.url_of("default")
    Settings.load(database_url=url)  # Rota takes it
    return url


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({}, "mysql://localhost/shop"),
        ({"HOST": "db", "PORT": "3307", "USER": "shop"}, "mysql://shop@db:3307/shop"),
        ({"HOST": "db", "PORT": 3307, "USER": "u"}, "mysql://u@db:3307/shop"),
        ({"HOST": "db", "PORT": "", "USER": "u", "PASSWORD": "p@/:?#%"}, "mysql://u:p%40%2F%3A%3F%23%25@db/shop"),
        ({"HOST": "/run/mysqld.sock", "USER": "u"}, "mysql://u@localhost/shop?unix_socket=%2Frun%2Fmysqld.sock"),
        ({"OPTIONS": {"unix_socket": "/run/a"}}, "mysql://localhost/shop?unix_socket=%2Frun%2Fa"),
        ({"OPTIONS": {"charset": "utf8mb4", "init_command": "SET x", "connect_timeout": 3}}, "mysql://localhost/shop"),
        ({"OPTIONS": {"user": "o", "host": "h", "port": 1, "database": "d"}}, "mysql://o@h:1/d"),
    ],
)
def test_a_server(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], url: str) -> None:
    assert url_of(monkeypatch, **fields) == url


def test_a_password_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    for password in ("secret", "ü 😀", "a+b", "%41", "x" * 100):
        assert make_url(url_of(monkeypatch, USER="u", PASSWORD=password)).password == password


def test_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    url = url_of(monkeypatch, HOST="db", OPTIONS={"ssl": {"ca": str(ca)}})
    assert make_url(url).query == {"ssl_ca": str(ca)}


@pytest.mark.parametrize(
    ("vendor", "fields", "said"),
    [
        ("postgresql", {}, r"DATABASES\['default'\] is Postgresql; Rota needs MariaDB or MySQL: name another one"),
        ("mysql", {"OPTIONS": {"read_default_file": "/etc/my.cnf"}}, "'read_default_file', which Rota cannot follow"),
        ("mysql", {"OPTIONS": {"ssl": {"verify": 1}}}, r"\['ssl'\] has 'verify', which Rota cannot follow"),
        ("mysql", {"OPTIONS": {"ssl": True}}, r"\['ssl'\] is no dict"),
        ("sqlite", {"NAME": ":memory:"}, "in-memory database is of one process"),
        ("sqlite", {"NAME": "file:memorydb_default?mode=memory&cache=shared"}, "in-memory database"),
        ("sqlite", {"NAME": "file:shop.db"}, "by its path, not by a URI"),
        ("mysql", {"NAME": None}, r"DATABASES\['default'\] has no NAME"),
    ],
)
def test_what_rota_cannot_use(monkeypatch: pytest.MonkeyPatch, vendor: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        url_of(monkeypatch, vendor, **fields)


def test_no_refusal_says_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"read_default_file": "x"}, {"ssl": {"verify": 1}}):
        with pytest.raises(ConfigurationError) as caught:
            url_of(monkeypatch, USER="u", PASSWORD="hidden", OPTIONS=options)
        assert "hidden" not in str(caught.value)


def test_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert url_of(monkeypatch, "sqlite", NAME=tmp_path / "shop.db") == f"sqlite:///{tmp_path}/shop.db"


def test_a_file_with_a_name_that_a_url_would_read_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    path = tmp_path / "a?b#c%20d" / "shop.db"
    assert make_url(url_of(monkeypatch, "sqlite", NAME=path)).database == str(path)


def test_no_slip_in_the_settings_shows_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "connections", SimpleNamespace(settings={"default": {}}))
    for slip in ("mysql://u:hidden@db/x", {"DATABASE": "mysql://u:hidden@db/x"}, {"TASKS": "hidden"}):
        monkeypatch.setattr(project, "settings", SimpleNamespace(ROTA=slip))
        with pytest.raises(ConfigurationError) as caught:
            _ = project.alias(), project.listed_modules()
        assert "hidden" not in str(caught.value)


def test_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "connections", SimpleNamespace(settings={"default": {}, "rota": {}}))

    def alias(**fields: Any) -> str | None:
        monkeypatch.setattr(project, "settings", SimpleNamespace(ROTA=fields))
        return project.alias()

    assert alias() == "default"
    assert alias(DATABASE="rota") == "rota"
    assert alias(DATABASE_URL="mysql://db/rota") is None
    assert project.database_url() == "mysql://db/rota"
    with pytest.raises(ConfigurationError, match="give one of them"):
        alias(DATABASE="rota", DATABASE_URL="mysql://db/rota")
    with pytest.raises(ConfigurationError, match=r"has 'TASK' \(did you mean TASKS\?\)"):
        alias(TASK=[])
    monkeypatch.setattr(project, "settings", SimpleNamespace())
    assert project.alias() == "default"
