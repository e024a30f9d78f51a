"""HTTP_REQUEST: what it hides, whom it trusts, and what has no say in it."""

import base64
import json
import logging
import ssl
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest

from rota.worker_service.builtin import http
from rota.worker_service.builtin.http import RequestFailed
from rota.worker_service.builtin.http_secrets import Secrets
from tests.harness.http_server import Server, answer, failure, run


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def other() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def echo(handler: BaseHTTPRequestHandler) -> None:
    """Answers with what it was asked, credentials too, as careless servers do."""
    answer(200, json.dumps(dict(handler.headers.items())), "application/json")(handler)


def test_another_origin_is_sent_no_credentials(server: Server, other: Server) -> None:
    server.answers["/same"] = answer(302, Location="/away")
    server.answers["/away"] = answer(302, Location=other.url("/"))
    headers = {"Authorization": "Bearer s3cret-1", "X-Api-Key": "s3cret-2", "Cookie": "a=s3cret-3", "Accept": "a/b"}
    run(server.url("/same"), follow_redirects=True, headers=headers)
    assert server.asked[1][2]["x-api-key"] == "s3cret-2"
    assert "s3cret" not in str(other.asked)
    assert not any(name.startswith("rota-") for name in other.asked[0][2])
    assert other.asked[0][2]["accept"] == "a/b"
    run(server.url("/same").replace("http://", "http://user:s3cret-4@"), follow_redirects=True)
    assert "authorization" not in other.asked[1][2]


def test_credentials_are_shown_nowhere(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.DEBUG)
    logging.getLogger("httpcore").setLevel(logging.DEBUG)
    server.answers["/"] = echo
    server.answers["/500"] = lambda handler: answer(500, str(handler.headers) + " pa:ss-w0rd")(handler)
    basic = base64.b64encode(b"user:pa:ss-w0rd").decode()
    headers = {"X-Api-Key": "k3y-of-mine", "Cookie": "session=c00kie-of-mine"}
    params = {"token": "t0ken-of-mine"}
    address = server.url("/", host="user:pa%3Ass-w0rd@127.0.0.1")
    shown = [json.dumps(run(address, headers=headers, params=params))]
    assert base64.b64decode(server.asked[0][2]["authorization"].split()[1]) == b"user:pa:ss-w0rd"
    for bad in (f"{address}500", address.replace("/127", "/"), address.replace(str(server.server_port), "1")):
        try:
            run(bad, headers=headers, params=params, expect_status="299")
        except RequestFailed as error:
            shown.append("".join(traceback.format_exception(error)))
    shown.append(caplog.text)
    for secret in ("pa:ss-w0rd", "pa%3Ass-w0rd", "k3y-of-mine", "c00kie-of-mine", "t0ken-of-mine", basic):
        assert secret not in "".join(shown)
    assert "***" in shown[0]


def test_others_still_log_their_requests(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.INFO)
    httpx.get(server.url("/of-others"), trust_env=False)
    assert "/of-others" in caplog.text


def test_secrets_that_are_too_short_garble_nothing() -> None:
    secrets = Secrets()
    secrets.add_headers({"X-Token": "a", "Accept": "text/plain"})
    assert secrets.hide("a text/plain text") == "a text/plain text"


def test_a_credential_in_the_location_is_not_shown(server: Server) -> None:
    server.answers["/"] = answer(302, Location="https://user:pass@elsewhere/x@y")
    assert run(server.url(), expect_status="302")["headers"]["location"] == "https://elsewhere/x@y"


def test_the_environment_has_no_say(
    server: Server, other: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, other.url())
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password s3cret")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    run(server.url())
    assert "authorization" not in server.asked[0][2]
    assert other.asked == []


def test_an_authority_that_is_not_known_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = self_signed(tmp_path)
    tls.load_cert_chain(certificate)
    server = Server(tls)
    try:
        http._tls.cache_clear()
        assert "certificate verify failed" in failure(server.url(scheme="https"))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # how OpenSSL is told of the machine's authorities
        http._tls.cache_clear()
        assert run(server.url(scheme="https"))["body"] == "ok"
        server.answers["/"] = answer(302, Location="http://127.0.0.1/")
        assert "redirects from https to http, which is not followed" in failure(
            server.url(scheme="https"), follow_redirects=True
        )
    finally:
        server.close()
        http._tls.cache_clear()


def self_signed(folder: Path) -> Path:
    """A key and a certificate for 127.0.0.1, in one file."""
    import datetime as dates  # noqa: PLC0415
    import ipaddress  # noqa: PLC0415

    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dates.datetime.now(dates.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dates.timedelta(days=1))
        .not_valid_after(now + dates.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return file
