"""URLs with one host and with several: how they are read, shown and refused."""

import re
import traceback
from typing import Any
from urllib.parse import quote

import pytest

from rota.shared.database.mysql_connection import opened
from rota.shared.database.mysql_migration import migration_engine
from rota.shared.database.transactions import Database, normalised
from rota.shared.database.urls import NO_URL, SPLIT, Address, addresses, has_several_hosts, named, parsed, shown
from rota.shared.domain.errors import ConfigurationError
from rota.shared.settings import Settings

SEVERAL = "mysql://rota:s3cret@a:3306,b,[fe80::1]:3307/rota?ssl_ca=/ca.pem"


def refusal(url: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        Settings.load(database_url=url)
    return str(refused.value).removeprefix("ROTA_DATABASE_URL: ")


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        (SEVERAL, [("a", 3306), ("b", None), ("fe80::1", 3307)]),
        ("mysql://a,b/rota", [("a", None), ("b", None)]),
        ("mysql://rota@10.0.0.1,10.0.0.2:3307/rota", [("10.0.0.1", None), ("10.0.0.2", 3307)]),
        ("mysql://rota:a,b%40c@db:3306/rota", [("db", 3306)]),
        ("mysql://rota:a,b@db/rota?init_command=1,2", [("db", None)]),
        ("mysql://rota@[::1],[::2]:3307/rota", [("::1", None), ("::2", 3307)]),
        ("mysql://rota@[::1]:3307/rota", [("::1", 3307)]),
        ("sqlite:///a,b.db", []),
    ],
)
def test_the_hosts_of_a_url_are_found_in_their_order(url: str, wanted: list[tuple[str, int | None]]) -> None:
    assert addresses(parsed(url)) == [Address(*one) for one in wanted]
    assert has_several_hosts(parsed(url)) == (len(wanted) > 1)
    Settings.load(database_url=url.replace("/ca.pem", __file__))


def test_a_password_in_an_option_that_holds_an_at_and_a_slash_is_refused_and_not_taken_for_a_host() -> None:
    told = refusal("mysql://rota@127.0.0.1:3306/rota?password=s3cret@s3cret/s3cret")
    assert told == SPLIT
    user_of_a_server = parsed("mysql://rota@server:s3cret@db:3306/rota")
    assert (user_of_a_server.username, user_of_a_server.host) == ("rota@server", "db")


def test_all_other_parts_of_a_url_with_several_hosts_are_read_as_ever() -> None:
    url = normalised(SEVERAL)
    assert (url.drivername, url.username, url.password, url.database) == ("mysql+pymysql", "rota", "s3cret", "rota")
    assert dict(url.query) == {"ssl_ca": "/ca.pem"}


def test_no_password_is_shown_however_many_hosts_there_are() -> None:
    assert shown(normalised(SEVERAL)) == "mysql+pymysql://rota:***@a:3306,b,[fe80::1]:3307/rota?ssl_ca=%2Fca.pem"
    assert named(normalised("mysql://rota:s3cret@a,b/rota")) == "mysql://rota:***@a,b/rota"
    assert named(parsed("mysql://rota:s3cret@a,b:1/rota?password=x")) == "mysql://rota:***@a,b:1/rota?password=***"
    assert named(parsed("mysql://rota:s3cret@[::1]:3307/rota")) == "mysql://rota:***@[::1]:3307/rota"


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ("a,,b", "has an empty host in 'a,,b'; write mysql://user:password@a:3306,b,[::1]:3307/database"),
        ("a,", "has an empty host in 'a,'; write mysql://user:password@a:3306,b,[::1]:3307/database"),
        ("a, b", "has the host ' b'; write mysql://user:password@a:3306,b,[::1]:3307/database"),
        (":3306,b", "has the host ':3306'; write mysql://user:password@a:3306,b,[::1]:3307/database"),
        ("a:x,b", "has the port 'x' of the host 'a'; a port is from 1 to 65535"),
        ("a,b:0", "has the port '0' of the host 'b'; a port is from 1 to 65535"),
        ("a,b:65536", "has the port '65536' of the host 'b'; a port is from 1 to 65535"),
        ("a,b:", "has the port '' of the host 'b'; a port is from 1 to 65535"),
        ("a,::1", "has the host '::1'; write an IPv6 address in brackets, as [::1]:3306"),
        ("a,[::1", "has the host '[::1'; write an IPv6 address in brackets, as [::1]:3306"),
        ("a:1,b,a:1", "names the host a:1 twice; name each host of the cluster once"),
    ],
)
def test_a_bad_list_of_hosts_is_refused_with_the_right_form(hosts: str, said: str) -> None:
    assert refusal(f"mysql://rota:s3cret@{hosts}/rota") == said


@pytest.mark.parametrize(
    "option", ["password", "passwd", "ssl_key", "ssl_key_password", "PASSWORD", "pasword", "x", "charset"]
)
@pytest.mark.parametrize("hosts", ["db", "db:3307", "a,b:1"])
def test_an_option_of_the_url_is_shown_only_if_it_is_known_to_be_no_secret(option: str, hosts: str) -> None:
    url = normalised(f"mysql://rota@{hosts}/rota?ssl_ca=/ca.pem&{option}=s3cret&{option}=t0p")
    wanted = f"mysql://rota@{hosts}/rota?{option}=***&ssl_ca=%2Fca.pem"
    assert sorted(re.split("[?&]", named(url))) == sorted(re.split("[?&]", wanted))
    assert "s3cret" not in shown(url)
    assert "t0p" not in shown(url)


def test_an_option_that_is_masked_does_not_change_the_rest() -> None:
    assert named(parsed("mysql://r%2Ata@db/rota?password=x")) == "mysql://r%2Ata@db/rota?password=***"
    assert named(parsed("sqlite:////srv/rota.db?mode=ro&uri=true")) == "sqlite:////srv/rota.db?mode=ro&uri=true"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://rota:s3@cret@db/rota",
        "mysql://rota:s3@cret@db:3306/rota",
        "mysql://rota:s3@cret/s3cret@db/rota",
        "mysql://rota:s3@cret:s3cret@db/rota",
        "mysql://rota:s3@cret?s3cret@db/rota",
        "mysql://rota:@cret@db/rota",
        "mysql://ro/ta:s3cret@db/rota",
        "mysql://rota:s3@cret,s3cret@a,b:x/rota",
        "mysql://rota:s3@cret:s3cret,x@a,b:x/rota",
        "mysql://rota:s3@cret,cret:s3/@a,b:x/rota",
    ],
)
def test_a_password_that_the_url_splits_is_refused_before_a_part_of_it_is_shown(url: str) -> None:
    said = refusal(url)
    assert said == (
        "has an @ in a place where none may be; percent-encode the user and the password: "
        "write @ as %40, / as %2F, : as %3A and % as %25"
    )
    with pytest.raises(ConfigurationError, match="percent-encode the user and the password") as refused:
        Database(url)
    assert "cret" not in "".join(traceback.format_exception(refused.value, chain=True)).partition("Error: ")[2]


@pytest.mark.parametrize(
    "text",
    [
        "mysql://rota:s3cret@db:s3cret/rota",
        "rota:s3cret@db",
        "mysql:/rota:s3cret@db",
        "mysql://rota:s3cret,x/rota",
        "mysql://rota:1,s3cret:x/rota",
    ],
)
def test_a_text_that_is_no_url_is_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parsed(text)
    assert str(refused.value) == NO_URL
    assert "s3cret" not in "".join(traceback.format_exception(refused.value)).partition("Error: ")[2]


def test_a_user_and_a_password_that_are_percent_encoded_as_one_text_are_refused() -> None:
    said = refusal("mysql://rota%3As3cret@db/rota")
    assert (
        said == "has the user and the password as one text; percent-encode each alone, and write a plain : between them"
    )


@pytest.mark.parametrize("password", ["p@ss", "p/a:s%s?", "@", "a,b@c"])
def test_a_password_that_is_percent_encoded_is_read_as_it_was(password: str) -> None:
    url = normalised(f"mysql://rota:{quote(password, safe='')}@db/rota")
    assert (url.username, url.password, url.host, url.database) == ("rota", password, "db", "rota")
    assert named(url) == "mysql://rota:***@db/rota"


def test_a_user_and_a_file_may_have_an_at_sign() -> None:
    assert parsed("mysql://me@corp:secret@db/rota").username == "me@corp"
    assert parsed("sqlite:///a@b.db").database == "a@b.db"
    assert parsed("sqlite:////srv/a@b,c.db").database == "/srv/a@b,c.db"


def test_a_list_of_hosts_needs_a_database_as_one_host_does() -> None:
    assert refusal("mysql://rota@a,b") == "names no database; write mysql://user:password@host/database"
    assert "is not a database URL" in refusal("a,b/rota")


@pytest.mark.parametrize("text", ["rota.db", "sqlite:/srv/rota.db", "db/rota"])
def test_who_writes_a_path_for_a_url_reads_how_a_file_is_named(text: str) -> None:
    assert refusal(text) == "is not a database URL; write mysql://user:password@host/database, or sqlite:///rota.db"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"foo": "s3cret"}, "the database URL has the option 'foo', which the driver does not know"),
        ({"ssl": "s3cret"}, "the database URL has the option 'ssl', which is no switch; write ssl_ca=FILE"),
        ({"ssl": {"ca": "/nowhere/ca.pem"}}, "a file that the options of the database URL name does not exist"),
    ],
)
def test_an_option_that_the_driver_does_not_take_is_refused_in_a_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        opened({"host": "127.0.0.1", "port": 1, **options})
    assert str(refused.value) == said


@pytest.mark.parametrize("option", ["foo=s3cret", "ssl=s3cret", "ssl_ca=/nowhere/ca.pem"])
def test_a_migration_refuses_such_an_option_too(option: str) -> None:
    with pytest.raises(ConfigurationError, match="database URL"):
        migration_engine(normalised(f"mysql://rota@127.0.0.1:1/rota?{option}"), 1, 1).connect()


@pytest.mark.parametrize(("url", "limit"), [("mysql://a/rota", 10), ("mysql://a,b/rota", 7.5)])
def test_with_several_hosts_a_call_that_hangs_and_a_round_over_all_fit_into_the_liveness_limit(
    url: str, limit: float
) -> None:
    assert Settings.load(database_url=url, call_timeout_seconds=10, liveness_seconds=15).call_limit == limit
    assert Settings.load(database_url=url, call_timeout_seconds=2, liveness_seconds=15).call_limit == 2
