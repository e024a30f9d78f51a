"""Settings: from the environment and from options, and every fault at once."""

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.shared.domain.errors import ConfigurationError
from rota.shared.settings import DEFAULT_DATABASE_URL, Settings


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("ROTA_"):
            monkeypatch.delenv(name)


def refusal(**options: object) -> str:
    with pytest.raises(ConfigurationError) as refused:
        Settings.load(**options)
    return str(refused.value)


def test_without_any_it_runs_on_a_file_here() -> None:
    assert Settings.load().database_url.get_secret_value() == DEFAULT_DATABASE_URL


def test_an_option_goes_before_the_environment_and_none_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_CAPACITY", "7")
    monkeypatch.setenv("ROTA_BATCH", "20")
    monkeypatch.setenv("ROTA_LABELS", '{"gpu": "a100"}')
    settings = Settings.load(capacity=9, batch=None)
    assert (settings.capacity, settings.batch, settings.labels) == (9, 20, {"gpu": "a100"})


@pytest.mark.parametrize("name", ["app", "worker_name", "health_file"])
def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"ROTA_{name.upper()}", "")
    assert getattr(Settings.load(), name) is None


SECONDS = st.floats(0.01, 60)


@given(tick=SECONDS, poll=SECONDS, lookahead=st.floats(0.1, 300), heartbeat=SECONDS, more=st.integers(1, 60))
def test_whatever_is_set_a_fire_is_found_and_polled_before_it_is_due(
    tick: float, poll: float, lookahead: float, heartbeat: float, more: int
) -> None:
    settings = Settings(
        tick_seconds=tick,
        poll_seconds=poll,
        lookahead_seconds=lookahead,
        heartbeat_seconds=heartbeat,
        liveness_seconds=int(2 * heartbeat) + 1 + more,
    )
    assert settings.tick_period + settings.poll_period <= 0.75 * lookahead
    assert settings.tick_period <= settings.liveness_seconds / 4
    assert settings.poll_period <= heartbeat
    for asked, period in ((tick, settings.tick_period), (poll, settings.poll_period)):
        assert math.frexp(asked)[0] == math.frexp(period)[0], "halved, or as it was"
        assert period <= asked


def test_every_fault_is_told_at_once_by_the_name_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_BATCH", "many")
    lines = refusal(capacity=0, database_url="oracle://db/rota", tick_seconds=61, colour="red").splitlines()
    assert len(lines) == 5
    for name in ("ROTA_BATCH 'many'", "ROTA_CAPACITY 0", "ROTA_DATABASE_URL", "ROTA_TICK_SECONDS 61", "ROTA_COLOUR"):
        assert sum(line.startswith(name) for line in lines) == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("oracle://scott:tiger@db/rota", "'oracle'; Rota runs on mysql, mariadb and sqlite"),
        ("scott:tiger@db", "is not a database URL"),
        ("mysql://scott:tiger@db", "names no database"),
        ("mysql://scott:tiger@db:tiger/rota", "is not a database URL"),
        ("sqlite://", "names no file"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_and_its_password_not_shown(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    assert said in refusal(database_url=url)
    monkeypatch.setenv("ROTA_DATABASE_URL", url)
    assert said in (told := refusal(capacity=0))
    assert "tiger" not in told


def test_no_form_of_the_settings_shows_the_password() -> None:
    settings = Settings.load(database_url="mysql://scott:tiger@db/rota")
    assert "tiger" not in f"{settings!r} {settings} {settings.model_dump()}"


@pytest.mark.parametrize(("heartbeat", "fits"), [(7.4, True), (7.5, False), (20, False)])
def test_one_late_heartbeat_must_not_kill_a_worker(heartbeat: float, fits: bool) -> None:
    if fits:
        Settings.load(heartbeat_seconds=heartbeat, liveness_seconds=15)
    else:
        assert "less than half of liveness_seconds 15" in refusal(heartbeat_seconds=heartbeat, liveness_seconds=15)


def test_labels_that_are_not_json_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_LABELS", "gpu=a100")
    assert refusal().startswith("ROTA_LABELS is not JSON; write it as")


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings.load().capacity = 3


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://rota@db/rota?pasword=s3cret", "'pasword', which is not known; write 'password'"),
        ("mariadb://rota@a,b/rota?zz=s3cret", "'zz', which is not known; known are binary_prefix, "),
        ("sqlite:///rota.db?imutable=s3cret", "'imutable', which is not known; write 'immutable'"),
        ("mysql://rota@db/rota?client_flag=s3cret", "'client_flag', and its value is not a whole number"),
        ("mysql://rota@a,b/rota?max_allowed_packet=1.5", "'max_allowed_packet', and its value is not a whole number"),
        ("mysql://rota@db/rota?local_infile=s3cret", "'local_infile', and its value is not true or false"),
        ("mysql://rota@db/rota?ssl_disabled=s3cret", "'ssl_disabled', and its value is not true or false"),
        ("mysql://rota@db/rota?collation=1&collation=s3cret", "'collation' more than once; give it once"),
        ("mysql://rota@db/rota?port=3307", "'port'; write the port after the host, as in mysql://"),
        ("mariadb://rota@db/rota?charset=s3cret", "'charset'; leave it out: Rota itself sets utf8mb4"),
        ("sqlite:///rota.db?charset=s3cret", "'charset', which is not known; known are cache, "),
        ("mysql://rota@db/rota?ssl_ca=/s3cret/ca.pem", "'ssl_ca', and its value is not the path of a file"),
        ("mysql://rota@db/rota?ssl_capath=/s3cret", "'ssl_capath', and its value is not the path of a folder"),
    ],
)
def test_an_option_of_the_url_that_cannot_work_is_named_without_its_value(url: str, says: str) -> None:
    said = refusal(database_url=url)
    assert f"ROTA_DATABASE_URL: has the option {says}" in said
    assert "s3cret" not in said


def test_options_of_the_url_that_can_work_are_taken(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    for query in (
        f"ssl_ca={tmp_path / 'ca.pem'}&ssl_capath={tmp_path}",
        "unix_socket=/run/mysqld.sock&ssl_disabled=false&local_infile=off",
    ):
        Settings.load(database_url=f"mysql://rota@db/rota?{query}")
    Settings.load(database_url="sqlite:///file:rota.db?uri=true&mode=rw")


OWN_LIMIT = "leave it out, and set ROTA_CALL_TIMEOUT_SECONDS: it limits each call and each connecting"
OF_A_URI = "which belongs to a URI; write sqlite:///file:/srv/rota.db?mode=ro&uri=true"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://rota@db/rota?connect_timeout=3", f"the option 'connect_timeout'; {OWN_LIMIT}"),
        ("mysql://rota@a,b/rota?read_timeout=3", f"the option 'read_timeout'; {OWN_LIMIT}"),
        ("mysql://rota@db/rota?write_timeout=3", f"the option 'write_timeout'; {OWN_LIMIT}"),
        ("sqlite:///rota.db?timeout=3", f"the option 'timeout'; {OWN_LIMIT}"),
        ("mysql://rota@db/rota?autocommit=true", "the option 'autocommit'; leave it out: Rota itself sets it"),
        ("mysql://rota@db/rota?db=other", "the option 'db'; write it before the ?, as in mysql://user:password@host/"),
        ("mysql://rota@db/rota?ssl=true", "the option 'ssl'; it is no switch; write ssl_ca=FILE"),
        (f"mysql://rota@db/rota?ssl_ca={__file__}&ssl_verify_cert=false", "the option 'ssl_verify_cert'; leave it out"),
        (
            "mysql://rota@db/rota?ssl_verify_identity=true",
            "the option 'ssl_verify_identity'; leave it out: ssl_ca=FILE",
        ),
        (
            f"mysql://rota@db/rota?ssl_ca={__file__}&ssl_disabled=true",
            "ssl_disabled and 'ssl_ca', which exclude each other; leave one of them out",
        ),
        ("sqlite:///rota.db?mode=ro", f"the option 'mode', {OF_A_URI}"),
        ("sqlite:///rota.db?immutable=1&uri=true", f"the option 'immutable', {OF_A_URI}"),
        ("sqlite:///file:rota.db?mode=ro", f"the option 'mode', {OF_A_URI}"),
        ("sqlite://srv/rota.db", "names a host; a file has three slashes before its path: sqlite:///rota.db"),
        ("sqlite:///file:rota.db", "one half of a URI; write sqlite:///file:/srv/rota.db?mode=ro&uri=true"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused_with_what_to_write_instead(url: str, says: str) -> None:
    said = refusal(database_url=url)
    assert said.startswith("ROTA_DATABASE_URL: ")
    assert says in said


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_a_database_in_memory_is_refused_as_one_without_a_file(url: str) -> None:
    assert "names no file" in refusal(database_url=url)


@pytest.mark.parametrize("limit", ["overdue_seconds", "abandoned_seconds"])
def test_a_grace_that_others_do_not_wait_for_is_refused(limit: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cancel_grace_seconds 10 must be less than {limit} 10, or a "):
        Settings.load(**{limit: 10})
    assert Settings.load(**{limit: 10}, cancel_grace_seconds=0).cancel_grace_seconds == 0
