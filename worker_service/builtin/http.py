"""HTTP_REQUEST: sends one request, with limits for time, redirects and bytes. Its credentials are shown nowhere.

The worker's environment (proxies, .netrc) is ignored. TLS is always verified, against the authorities of certifi and of
the machine. Errors show only the origin of a URL, because paths and queries often hold tokens.
"""

import asyncio
import logging
import os
import ssl
from contextvars import ContextVar
from functools import cache
from time import perf_counter
from typing import Any
from urllib.parse import quote

import httpx

from rota.shared.domain.errors import RotaError
from rota.shared.domain.jsontext import json_text
from rota.worker_service.builtin.http_param import HttpRequestParam
from rota.worker_service.builtin.http_response import Body, Undecodable, read_body, shown_headers
from rota.worker_service.builtin.http_secrets import Secrets
from rota.worker_service.context import NodeContext

MOST_REDIRECTS = 5
EXCERPT_CHARACTERS = 300

NEUTRAL_HEADERS = {
    "accept",
    "accept-encoding",
    "accept-language",
    "content-type",
    "content-length",
    "host",
    "user-agent",
}
"""The headers that a redirect to another origin keeps. All others may be credentials."""

_requesting: ContextVar[bool] = ContextVar("requesting", default=False)


class RequestFailed(RotaError):
    """A request got no answer, or not the expected one."""


async def http_request(ctx: NodeContext[HttpRequestParam]) -> dict[str, Any]:
    """Send the request that the param describes.

    Returns status, headers (a few), json or body, truncated, elapsed_ms. Raises RequestFailed.
    """
    began = perf_counter()
    _requesting.set(True)
    secrets = Secrets()
    try:
        async with asyncio.timeout(ctx.param.timeout_seconds):
            response, body = await _exchange(ctx, secrets)
    except TimeoutError:
        raise _failed(ctx.param, f"was not done within {ctx.param.timeout_seconds:g} s (timeout_seconds)") from None
    except httpx.LocalProtocolError:  # its text may hold a header's value
        raise _failed(ctx.param, "could not be sent: HTTP does not allow such a request") from None
    except (httpx.HTTPError, httpx.InvalidURL, Undecodable) as error:
        raise _failed(ctx.param, f"failed: {secrets.hide(_reason(error))}") from None
    if not ctx.param.expects(response.status_code):
        raise _failed(ctx.param, _unexpected(ctx.param, response, body))
    return {
        "status": response.status_code,
        "headers": {name: secrets.hide(value) for name, value in shown_headers(response).items()},
        **body.as_json(response.headers.get("content-type", "")),
        "truncated": body.truncated,
        "elapsed_ms": round((perf_counter() - began) * 1000),
    }


async def _exchange(ctx: NodeContext[HttpRequestParam], secrets: Secrets) -> tuple[httpx.Response, Body]:
    param = ctx.param
    headers = {"Accept-Encoding": "identity", "User-Agent": "Rota"}
    tls = await asyncio.to_thread(_tls)
    async with httpx.AsyncClient(verify=tls, trust_env=False, timeout=None, headers=headers) as client:  # noqa: S113
        request: httpx.Request | None = _request(client, ctx, secrets)
        for _ in range(MOST_REDIRECTS + 1):
            if request is None:
                break
            response = await client.send(request, stream=True)
            following = response.next_request if param.follow_redirects else None
            if following is None:
                return response, await read_body(response, param.max_response_bytes, secrets.hide)
            await response.aclose()
            request = _redirected(request, following)
    raise _failed(param, f"was redirected more than {MOST_REDIRECTS} times")


def _request(client: httpx.AsyncClient, ctx: NodeContext[HttpRequestParam], secrets: Secrets) -> httpx.Request:
    param = ctx.param
    url = httpx.URL(param.url)
    headers = httpx.Headers({**_run_headers(ctx), **param.headers})
    if url.userinfo and "authorization" not in headers:
        headers["Authorization"] = secrets.basic(url.username, url.password)
    secrets.add_headers(headers)
    content = param.body
    if param.has_json:
        content = json_text(param.json_body)
        headers.setdefault("Content-Type", "application/json")
    bare = url.copy_with(userinfo=b"", fragment=None)
    full = bare.copy_merge_params(param.params) if param.params else bare
    return client.build_request(param.method, full, headers=headers, content=content)


def _run_headers(ctx: NodeContext[HttpRequestParam]) -> dict[str, str]:
    """Headers that identify the fire. A repeated request has the same instance id, or the same schedule time."""
    return {
        "Rota-Instance-Id": str(ctx.instance_id),
        "Rota-Task-Name": quote(ctx.task_name),
        "Rota-Schedule-Datetime": ctx.schedule_datetime.isoformat(),
        "Rota-Attempt": str(ctx.attempt),
    }


def _redirected(before: httpx.Request, following: httpx.Request) -> httpx.Request:
    """The next request, without what may be a credential if the origin is another. Never goes from https to http."""
    if before.url.scheme == "https" and following.url.scheme != "https":
        raise httpx.UnsupportedProtocol(f"it redirects from https to {following.url.scheme}, which is not followed")
    if _origin(following.url) != _origin(before.url):
        for name in set(following.headers) - NEUTRAL_HEADERS:
            del following.headers[name]
    return following


def _failed(param: HttpRequestParam, happened: str) -> RequestFailed:
    try:
        where = f" {_origin(httpx.URL(param.url))}"
    except httpx.InvalidURL:
        where = ""
    return RequestFailed(f"{param.method}{where} {happened}")


def _origin(url: httpx.URL) -> str:
    port = f":{url.port}" if url.port is not None else ""
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{url.scheme}://{host}{port}"


def _unexpected(param: HttpRequestParam, response: httpx.Response, body: Body) -> str:
    wanted = param.expect_status if isinstance(param.expect_status, str) else ", ".join(map(str, param.expect_status))
    excerpt = body.text[:EXCERPT_CHARACTERS].strip()
    said = f"the body begins: {excerpt}" if excerpt else "the body is empty"
    hint = "; set follow_redirects to follow it" if response.has_redirect_location else ""
    return f"answered {response.status_code}, where {wanted} is expected{hint}; {said}"


def _reason(error: Exception) -> str:
    """The text of the innermost error that has one: "Connection refused" rather than "attempts failed"."""
    said, inner = str(error), error.__cause__ or error.__context__
    while inner is not None:
        if isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
        if isinstance(inner, ConnectionError) and inner.errno:
            said = os.strerror(inner.errno)
        elif isinstance(inner, OSError) and inner.strerror:
            said = inner.strerror
        inner = inner.__cause__ or inner.__context__
    return said or type(error).__name__


@cache
def _tls() -> ssl.SSLContext:
    """The TLS context, made once. Call it off the event loop: reading the authorities takes a while."""
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context


def _not_ours(record: logging.LogRecord) -> bool:
    """Drop the records of this node's requests: httpx logs whole URLs, httpcore headers. Other users' records pass."""
    return not _requesting.get()


for _name in ("httpx", *(f"httpcore.{part}" for part in ("connection", "http11", "http2", "proxy", "socks"))):
    logging.getLogger(_name).addFilter(_not_ours)
