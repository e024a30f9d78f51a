"""HTTP_REQUEST against a real server: what it sends, reads and bounds."""

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from rota.shared.clock import boottime
from rota.worker_service.builtin.http import http_request
from tests.harness.http_server import Server, answer, context, failure, run
from tests.harness.processes import wait_until

DEADLINE = 10


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_a_result_has_the_status_some_headers_and_the_body(server: Server) -> None:
    server.answers["/"] = answer(200, "hällo", "text/plain; charset=utf-8", Set_Cookie="a=b", ETag='"1"', X_Own="x")
    result = run(server.url())
    assert result.pop("elapsed_ms") >= 0
    assert set(result["headers"]) == {"content-type", "content-length", "date", "etag"}
    del result["headers"]
    assert result == {"status": 200, "body": "hällo", "truncated": False}


@pytest.mark.parametrize("content_type", ["application/json", "application/problem+json; charset=utf-8"])
def test_json_is_parsed(server: Server, content_type: str) -> None:
    server.answers["/"] = answer(200, '{"rows": [1, null]}', content_type)
    result = run(server.url())
    assert result["json"] == {"rows": [1, None]}
    assert "body" not in result


@pytest.mark.parametrize("body", ["", "{", "NaN", '"\\ud800"', "[" * 100_000, "9" * 10_000])
def test_what_calls_itself_json_and_is_not_stays_text(server: Server, body: str) -> None:
    server.answers["/"] = answer(200, body, "application/json")
    assert run(server.url(), max_response_bytes=200_000)["body"] == body


def test_truncated_json_stays_text(server: Server) -> None:
    server.answers["/"] = answer(200, '"' + "x" * 100 + '"', "application/json")
    result = run(server.url(), max_response_bytes=10)
    assert result["body"] == '"xxxxxxxxx'
    assert result["truncated"]


@pytest.mark.parametrize(
    ("charset", "data", "text"),
    [
        ("iso-8859-1", b"\xe4", "ä"),
        ("gbk", "中".encode("gbk"), "中"),
        ("utf-8", b"\xff", "\ufffd"),
        ("utf-8", b"\xef\xbb\xbfx", "x"),
        ("zip", b"x", "x"),
        ("punycode", b"x-y", "x-y"),
        ("cp99999", b"x", "x"),
    ],
)
def test_text_is_decoded_by_its_charset(server: Server, charset: str, data: bytes, text: str) -> None:
    server.answers["/"] = answer(200, data, f"text/plain; charset={charset}")
    assert run(server.url())["body"] == text


def test_it_sends_what_it_is_told_and_which_fire_it_is(server: Server) -> None:
    run(server.url("/a?x=1"), method="PUT", params={"y": [2, "ü"]}, headers={"X-Own": "mine"}, body="hällo")
    (method, path, headers, body) = server.asked[0]
    assert (method, path, body.decode()) == ("PUT", "/a?x=1&y=2&y=%C3%BC", "hällo")
    assert headers["x-own"] == "mine"
    assert headers["rota-instance-id"] == "7"
    assert headers["rota-attempt"] == "2"
    assert headers["rota-task-name"] == "n%C3%A4chtlich"
    assert headers["rota-schedule-datetime"] == "2026-11-21T03:00:00+08:00"


@pytest.mark.parametrize("given", [{"a": "ä"}, None, [], 0])
def test_a_json_body_is_sent_as_json(server: Server, given: Any) -> None:
    run(server.url(), method="POST", json=given)
    assert json.loads(server.asked[0][3]) == given
    assert server.asked[0][2]["content-type"] == "application/json"


def test_an_unexpected_status_fails_with_the_beginning_of_the_body(server: Server) -> None:
    server.answers["/x"] = answer(503, "busy" + "!" * 1000)
    said = failure(server.url("/x"))
    assert said.startswith(f"GET {server.url('')} answered 503, where 200-299 is expected; the body begins: busy!!!")
    assert said.count("!") == 296
    server.answers["/x"] = answer(404)
    assert failure(server.url("/x"), expect_status=[200, "300-399"]).endswith(
        "answered 404, where 200, 300-399 is expected; the body is empty"
    )


@pytest.mark.parametrize("expected", ["404", [404], ["400-499"], [200, "404-404"]])
def test_other_statuses_may_be_expected(server: Server, expected: Any) -> None:
    server.answers["/"] = answer(404)
    assert run(server.url(), expect_status=expected)["status"] == 404


def test_a_body_is_read_to_the_limit_and_no_further(server: Server) -> None:
    written = []

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65_536)
            written.append(1)

    server.answers["/"] = endless
    result = run(server.url(), max_response_bytes=1000)
    assert result["body"] == "x" * 1000
    assert result["truncated"]
    assert len(written) < 1000


@pytest.mark.parametrize(("limit", "truncated"), [(5, False), (4, True), (0, True)])
def test_a_body_as_long_as_the_limit_is_whole(server: Server, limit: int, truncated: bool) -> None:
    server.answers["/"] = answer(200, "12345")
    result = run(server.url(), max_response_bytes=limit)
    assert result["body"] == "12345"[:limit]
    assert result["truncated"] is truncated


def test_a_small_body_that_inflates_is_inflated_to_the_limit_only(server: Server) -> None:
    server.answers["/"] = answer(200, gzip.compress(b"x" * 10_000_000), Content_Encoding="gzip")
    result = run(server.url(), max_response_bytes=1000)
    assert result["body"] == "x" * 1000
    assert result["truncated"]
    server.answers["/"] = answer(200, gzip.compress(b"x" * 1000), Content_Encoding="gzip")
    assert not run(server.url(), max_response_bytes=1000)["truncated"]
    assert server.asked[0][2]["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("encoding", "said"), [("br", "compressed as 'br'"), ("gzip", "says it is compressed as gzip")]
)
def test_a_body_that_cannot_be_inflated_is_a_sentence(server: Server, encoding: str, said: str) -> None:
    server.answers["/"] = answer(200, "plain", Content_Encoding=encoding)
    assert said in failure(server.url())


def test_a_redirect_is_followed_only_if_asked(server: Server) -> None:
    server.answers["/from"] = answer(302, Location="/to")
    assert "answered 302, where 200-299 is expected; set follow_redirects to follow it" in failure(server.url("/from"))
    assert run(server.url("/from"), expect_status="302")["headers"]["location"] == "/to"
    assert run(server.url("/from"), follow_redirects=True)["body"] == "ok"


def test_redirects_are_counted(server: Server) -> None:
    for at in range(6):
        server.answers[f"/{at}"] = answer(307, Location=f"/{at + 1}")
    assert run(server.url("/1"), follow_redirects=True, method="POST", body="x")["status"] == 200
    assert server.asked[-1][3] == b"x"
    assert failure(server.url("/0"), follow_redirects=True).endswith("was redirected more than 5 times")


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/", "http://", "http://[", "//:99999"])
def test_a_redirect_to_elsewhere_than_http_is_a_sentence(server: Server, location: str) -> None:
    server.answers["/"] = answer(302, Location=location)
    assert failure(server.url(), follow_redirects=True).startswith(f"GET {server.url('')} ")


def test_a_connection_that_fails_is_a_sentence() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert failure(f"http://127.0.0.1:{port}/x") == f"GET http://127.0.0.1:{port} failed: Connection refused"
    assert failure("http://no-such-host.invalid/").startswith("GET http://no-such-host.invalid failed: ")


def test_a_server_that_hangs_up_is_a_sentence(server: Server) -> None:
    server.answers["/"] = lambda handler: handler.connection.shutdown(socket.SHUT_RDWR)
    assert failure(server.url()) == f"GET {server.url('')} failed: Server disconnected without sending a response."


@pytest.mark.parametrize("where", ["before", "within"])
def test_a_timeout_ends_it_promptly(server: Server, where: str) -> None:
    def hang(handler: BaseHTTPRequestHandler) -> None:
        if where == "within":
            handler.send_response(200)
            handler.send_header("Content-Length", "10")
            handler.end_headers()
            handler.wfile.write(b"x")
        server.released.wait(DEADLINE)

    server.answers["/"] = hang
    run(server.url("/warm"))
    began = boottime()
    said = failure(server.url(), timeout_seconds=0.3)
    assert said == f"GET {server.url('')} was not done within 0.3 s (timeout_seconds)"
    assert boottime() - began < 3


def test_a_slow_trickle_is_bounded_too(server: Server) -> None:
    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not server.released.wait(0.02):
            handler.wfile.write(b"x")

    server.answers["/"] = trickle
    assert "was not done within 0.3 s" in failure(server.url(), timeout_seconds=0.3)


def test_cancellation_ends_it_promptly_and_hangs_up(server: Server) -> None:
    entered, hung_up = threading.Event(), threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        entered.set()
        if handler.rfile.read(1) == b"":
            hung_up.set()

    server.answers["/"] = hang

    async def cancel() -> float:
        task = asyncio.create_task(http_request(context(server.url())))
        assert await asyncio.to_thread(entered.wait, DEADLINE)
        began = boottime()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return boottime() - began

    assert asyncio.run(cancel()) < 1
    wait_until(hung_up.is_set, DEADLINE, "the connection's end")
