"""A password in a database URL is shown nowhere, whatever is wrong with the URL, and wherever the password stands."""

import logging
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import make_url

from rota.cli import cli
from rota.shared.domain.errors import RotaError
from tests.harness.databases import MariaDBServer
from tests.harness.examples import examples
from tests.harness.processes import RotaProcess

PART = "s3cret"
"""Stands on both sides of each special character of a password, so that each part of one shows."""

PASSWORDS = st.lists(st.sampled_from("@:/?#%&=+, []'\"\\;!é日"), max_size=3).map(
    lambda between: PART + "".join(f"{one}{PART}" for one in between)
)
NOWHERE = ("127.0.0.1:1", "127.0.0.1:1,127.0.0.2:1", "[::1]:1")
WRONG_HOSTS = ("127.0.0.1:99999", "127.0.0.1:x", "127.0.0.1:1,,", "127.0.0.1:1,127.0.0.1:1", "", "[::1", "a b,c")
SCHEMES = ("mysql", "mariadb", "mysql+pymysql", "sqlite", "oracle", "postgresql", "MySQL", "mysql:")
COMMANDS = (
    ("config",), ("config", "--json"), ("task", "list"), ("doctor",), ("doctor", "--json"), ("migrate",),
    ("migrate", "--sql"), ("up", "--workers", "0"), ("scheduler", "-vv"), ("instance", "show", "1"), ("health",),
)  # fmt: skip


@st.composite
def urls(draw: st.DrawFn) -> str:
    """A URL with a password somewhere."""
    password, is_quoted = draw(PASSWORDS), draw(st.booleans())
    written = quote(password, safe="") if is_quoted else password
    scheme = draw(st.sampled_from(SCHEMES))
    hosts = draw(st.sampled_from(NOWHERE + WRONG_HOSTS))
    place = draw(
        st.sampled_from(["user", "one text", "password", "passwd", "pasword", "ssl_key_password", "x", "port"])
    )
    if place == "user":
        return f"{scheme}://rota:{written}@{hosts}/rota"
    if place == "one text":
        return f"{scheme}://{quote(f'rota:{password}', safe='')}@{hosts}/rota"
    if place == "port":
        written = written.replace("@", "%40")  # what stands behind an @ is a host, which is no secret
        return f"{scheme}://rota:{written}{draw(st.sampled_from(['', '/rota', f',{hosts}/rota']))}"
    both = draw(st.sampled_from(["", f"&connect_timeout={written}", f"&x={written}&x={written}"]))
    return f"{scheme}://rota@{hosts}/rota?{place}={written}{both}"


@pytest.fixture(autouse=True)
def all_that_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs at DEBUG, and commands that wait for no server."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("rota.cli.shell.RETRY_SECONDS", 0)
    monkeypatch.setattr("rota.cli.shell.Shell.await_database", lambda _: None)


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(url=urls(), command=st.sampled_from(COMMANDS), by_option=st.booleans(), debug=st.booleans())
@example(url=f"mysql://rota%3A{PART}@127.0.0.1:1/rota", command=("task", "list"), by_option=False, debug=False)
@example(url=f'"mysql://rota:{PART}@127.0.0.1:1/rota"', command=("config",), by_option=False, debug=False)
@example(url=f"mysql://rota:{PART}@127.0.0.1:1/rota\n", command=("config",), by_option=False, debug=True)
def test_no_command_shows_a_password_of_the_database_url(
    caplog: pytest.LogCaptureFixture, url: str, command: tuple[str, ...], by_option: bool, debug: bool
) -> None:
    caplog.clear()
    options = ["--debug"] if debug else []
    if by_option and command != ("health",):
        arguments, environment = [*options, *command, "-d", url], {}
    else:
        arguments, environment = [*options, *command], {"ROTA_DATABASE_URL": url}
    result = CliRunner().invoke(cli, arguments, env=environment)
    told = result.output + caplog.text
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert isinstance(result.exception, RotaError), result.exception
        told += "".join(traceback.format_exception(result.exception))
    assert PART not in told, told


@pytest.mark.parametrize("service", ["scheduler", "worker", "up"])
def test_no_service_logs_the_password_of_a_url(
    migrated_mariadb_url: str, mariadb_server: MariaDBServer, tmp_path: Path, service: str
) -> None:
    right = make_url(migrated_mariadb_url)
    wrong = right.set(password=f"{PART}@{PART}").update_query_dict({"ssl_key_password": PART})
    with RotaProcess(
        service, "-vv", database_url=wrong.render_as_string(hide_password=False), log=tmp_path / "log"
    ) as process:
        assert process.wait_exit() == 3
        assert "check the user and the password in the URL" in process.log
        assert PART not in process.log
