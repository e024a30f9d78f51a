"""What of the server's certificate is verified, by the options of the database URL, as docs/operations.md says."""

import ssl
from pathlib import Path

import pytest
from sqlalchemy.dialects.mysql.pymysql import dialect

from rota.shared.database.mysql_connection import opened
from rota.shared.database.transactions import normalised
from rota.shared.settings import Settings

SYSTEM_CA = ssl.get_default_verify_paths().cafile


@pytest.mark.skipif(SYSTEM_CA is None or not Path(SYSTEM_CA).is_file(), reason="this machine has no file of CAs")
@pytest.mark.parametrize(
    ("options", "verifies", "checks_host"),
    [
        ("", False, False),
        ("?ssl_ca={ca}", True, True),
        ("?ssl_ca={ca}&ssl_check_hostname=false", True, False),
    ],
)
def test_ssl_ca_verifies_the_certificate_and_its_host(options: str, verifies: bool, checks_host: bool) -> None:
    url = normalised("mysql://rota@db/rota" + options.format(ca=SYSTEM_CA))
    _, arguments = dialect().create_connect_args(url)
    tls: ssl.SSLContext = vars(opened({**arguments, "defer_connect": True}))["ctx"]
    assert (tls.verify_mode == ssl.CERT_REQUIRED, tls.check_hostname) == (verifies, checks_host)


@pytest.mark.parametrize(("value", "offers"), [("false", True), ("no", True), ("true", False), ("1", False)])
def test_ssl_disabled_does_what_it_says(value: str, offers: bool) -> None:
    url = f"mysql://rota@db/rota?ssl_disabled={value}"
    Settings.load(database_url=url)
    _, arguments = dialect().create_connect_args(normalised(url))
    assert vars(opened({**arguments, "defer_connect": True}))["ssl"] is offers


def test_the_password_of_the_key_is_used_beside_a_ca(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(
        ssl.SSLContext, "load_cert_chain", lambda _, cert, keyfile, password: loaded.append((cert, keyfile, password))
    )
    url = normalised("mysql://rota@db/rota?ssl_cert=cert.pem&ssl_key=key.pem&ssl_key_password=s3cret")
    _, arguments = dialect().create_connect_args(url)
    opened({**arguments, "defer_connect": True})
    assert loaded == [("cert.pem", "key.pem", "s3cret")]
