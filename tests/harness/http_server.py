"""A real HTTP server for tests, whose answers are functions by path, and what sends it requests."""

import asyncio
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rota.worker_service.builtin.http import RequestFailed, http_request
from rota.worker_service.builtin.http_param import HttpRequestParam
from rota.worker_service.context import NodeContext

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server(ThreadingHTTPServer):
    """A server whose answers are functions by path; it keeps what it was asked."""

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.released = threading.Event()
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.server_port}{path}"

    def close(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client hung up, as it may."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):
            super().handle_one_request()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        self.server.answers.get(self.path.partition("?")[0], answer(200, "ok"))(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def log_message(self, *_: Any) -> None:
        """Not to stderr."""


def answer(status: int, body: str | bytes = "", content_type: str = "text/plain", **headers: str) -> Answer:
    data = body.encode() if isinstance(body, str) else body

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        given = {"Content-Type": content_type, "Content-Length": str(len(data))}
        for name, value in (given | {name.replace("_", "-"): value for name, value in headers.items()}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    return send


def context(url: str, **param: Any) -> NodeContext[HttpRequestParam]:
    return NodeContext(
        param=HttpRequestParam.model_validate({"url": url, **param}),
        schedule_datetime=datetime(2026, 11, 21, 3, tzinfo=ZoneInfo("Asia/Shanghai")),
        task_name="nächtlich",
        instance_id=7,
        attempt=2,
    )


def run(url: str, **param: Any) -> dict[str, Any]:
    return asyncio.run(http_request(context(url, **param)))


def failure(url: str, **param: Any) -> str:
    with pytest.raises(RequestFailed) as caught:
        run(url, **param)
    return str(caught.value)
