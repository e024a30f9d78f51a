"""URLs with one host and with several: how they are read, shown and refused."""

import pytest

from rota.cli.commands.config import without_password
from rota.shared.database.transactions import normalised
from rota.shared.database.urls import Address, addresses, has_several_hosts, named, parsed, shown
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
        ("mysql://rota:a,b@db/rota?x=1,2", [("db", None)]),
        ("mysql://rota@[::1],[::2]:3307/rota", [("::1", None), ("::2", 3307)]),
        ("mysql://rota@[::1]:3307/rota", [("::1", 3307)]),
        ("sqlite:///a,b.db", []),
    ],
)
def test_the_hosts_of_a_url_are_found_in_their_order(url: str, wanted: list[tuple[str, int | None]]) -> None:
    assert addresses(parsed(url)) == [Address(*one) for one in wanted]
    assert has_several_hosts(parsed(url)) == (len(wanted) > 1)
    Settings.load(database_url=url)


def test_all_other_parts_of_a_url_with_several_hosts_are_read_as_ever() -> None:
    url = normalised(SEVERAL)
    assert (url.drivername, url.username, url.password, url.database) == ("mysql+pymysql", "rota", "s3cret", "rota")
    assert dict(url.query) == {"ssl_ca": "/ca.pem"}


def test_no_password_is_shown_however_many_hosts_there_are() -> None:
    assert shown(normalised(SEVERAL)) == "mysql+pymysql://rota:***@a:3306,b,[fe80::1]:3307/rota?ssl_ca=%2Fca.pem"
    assert named(normalised("mysql://rota:s3cret@a,b/rota")) == "mysql://rota:***@a,b/rota"
    assert without_password("mysql://rota:s3cret@a,b:1/rota?password=x") == "mysql://rota:***@a,b:1/rota?password=***"
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


@pytest.mark.parametrize("password", ["s3@cret,s3cret", "s3@cret:s3cret,x", "s3@cret,cret:s3/"])
def test_no_part_of_a_password_is_shown_as_a_host(password: str) -> None:
    said = refusal(f"mysql://rota:{password}@a,b:x/rota")
    assert said == "has more than one @ before its hosts; write an @ of the password as %40"


def test_a_list_of_hosts_needs_a_database_as_one_host_does() -> None:
    assert refusal("mysql://rota@a,b") == "names no database; write mysql://user:password@host/database"
    assert "is not a database URL" in refusal("a,b/rota")


@pytest.mark.parametrize(("url", "limit"), [("mysql://a/rota", 10), ("mysql://a,b/rota", 7.5)])
def test_with_several_hosts_a_call_that_hangs_and_a_round_over_all_fit_into_the_liveness_limit(
    url: str, limit: float
) -> None:
    assert Settings.load(database_url=url, call_timeout_seconds=10, liveness_seconds=15).call_limit == limit
    assert Settings.load(database_url=url, call_timeout_seconds=2, liveness_seconds=15).call_limit == 2
