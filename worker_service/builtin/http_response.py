"""Reads a response: its decoded body up to a limit, and the few headers that a later node may need."""

import codecs
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import httpx

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import json_text

SHOWN_HEADERS = (
    "content-type", "content-length", "date", "etag", "last-modified", "location", "retry-after", "x-request-id",
)  # fmt: skip
"""The headers in a result: never a cookie or a token."""

HEADER_CHARACTERS = 2000

CHARSET = re.compile(
    r"utf-?(8|16|32)([-_]?[bl]e)?|us-ascii|iso-8859-\d+|latin-?1|windows-\d+|cp\d+|gb\w+|big5|shift_jis|euc-\w+|koi8-\w+",
    re.IGNORECASE,
)
JSON_TYPE = re.compile(r"application/([\w.+-]+\+)?json", re.IGNORECASE)


class Undecodable(Exception):
    """The body's encoding cannot be decoded; the text says why."""


@dataclass(frozen=True, slots=True)
class Body:
    """The beginning of a body."""

    text: str
    truncated: bool

    def as_json(self, content_type: str) -> dict[str, Any]:
        """The body in a node's result: ``json`` if it is complete and valid JSON, else ``body``, the text."""
        if self.truncated or not JSON_TYPE.match(content_type):
            return {"body": self.text}
        try:
            value = json.loads(self.text, parse_constant=_refuse)
            json_text(value)
        except (ValueError, RecursionError, InvalidInput):
            return {"body": self.text}
        return {"json": value}


async def read_body(response: httpx.Response, limit: int, hide: Callable[[str], str]) -> Body:
    """Read at most ``limit`` bytes of the body. ``hide`` takes secrets out of the text.

    A compressed body is inflated only up to the limit, so that a small one cannot fill the memory. Raises Undecodable.
    """
    decode = _decoder(response.headers.get("content-encoding", ""))
    kept = bytearray()
    async for chunk in response.aiter_raw():
        kept += decode(chunk, limit + 1 - len(kept))
        if len(kept) > limit:
            break
    truncated = len(kept) > limit
    return Body(hide(_text(bytes(kept[:limit]), response.charset_encoding, final=not truncated)), truncated)


def shown_headers(response: httpx.Response) -> dict[str, str]:
    """The headers that a result shows, without the credentials of a URL."""
    shown = {name: response.headers[name][:HEADER_CHARACTERS] for name in SHOWN_HEADERS if name in response.headers}
    if "location" in shown:
        shown["location"] = re.sub(r"^([A-Za-z][A-Za-z0-9+.-]*:)?//[^/?#]*@", r"\1//", shown["location"])
    return shown


def _decoder(encoding: str) -> Callable[[bytes, int], bytes]:
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return lambda chunk, room: chunk[:room]
    if name not in ("gzip", "x-gzip", "deflate"):
        raise Undecodable(f"the response is compressed as {name[:40]!r}, though only gzip and deflate are understood")
    inflater = zlib.decompressobj(wbits=47)  # gzip or zlib, by what it begins with

    def inflate(chunk: bytes, room: int) -> bytes:
        try:
            return inflater.decompress(chunk, room)
        except zlib.error:
            raise Undecodable(f"the response says it is compressed as {name}, and is not") from None

    return inflate


def _text(data: bytes, charset: str | None, *, final: bool) -> str:
    """Decode with the encodings of the web only: some of Python's others take very long on malicious input."""
    name = (charset or "utf-8").lower()
    if name in ("utf-8", "utf8") or not CHARSET.fullmatch(name):
        name = "utf-8-sig"  # UTF-8, with or without a byte order mark
    try:
        decoder = codecs.getincrementaldecoder(name)("replace")
    except LookupError:
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    return decoder.decode(data, final)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
