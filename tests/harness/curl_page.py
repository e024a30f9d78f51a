"""The lines of curl in docs/web.md, with the answers that it shows."""

import re
import shlex

import httpx

from tests.harness.processes import ROOT

CALL = re.compile(r"^    \$ curl (?P<call>.*)\n    (?P<answer>[\[{].*)$", re.M)


def calls(section: str) -> list[tuple[str, str]]:
    """Each call of a section of the page, and the answer that is shown."""
    page = (ROOT / "docs" / "web.md").read_text()
    [text] = [part for part in re.split(r"^## ", page, flags=re.M) if part.startswith(f"{section}\n")]
    return CALL.findall(text)


def asked(call: str, port: int) -> object:
    """The answer to a line of curl, of the server on this port."""
    words = shlex.split(call)
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    url = re.sub(r"^localhost:\d+", f"http://localhost:{port}", words[-1])
    return httpx.request(method, url, timeout=60).json()
