"""Output of the command: texts that are safe for a terminal, fields, and JSON documents."""

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

import click

from rota.shared.domain.sentences import is_shown, printable

COLOURS = {
    "succeed": "green",
    "ok": "green",
    "on": "green",
    "live": "green",
    "failed": "red",
    "wrong": "red",
    "dead": "red",
    "canceled": "yellow",
    "draining": "yellow",
    "paused": "yellow",
    "silent": "red",
    "active": "green",
    "off": "yellow",
    "running": "cyan",
    "assigned": "blue",
}
"""The colours of the words for states and checks."""

SHORT = 60
"""How many characters of a result a table shows."""


def show_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo("\n".join(json_lines(document)))


def show_json_list(items: Iterable[Any]) -> None:
    """Print a JSON list, each item as soon as it comes: a list of large ones need not fit into the memory."""
    before = "["
    for item in items:
        click.echo(before + "".join(f"\n  {line}" for line in json_lines(item)), nl=False)
        before = ","
    click.echo("[]" if before == "[" else "\n]")


def json_lines(value: Any) -> list[str]:
    r"""A JSON value over several lines. What a terminal would obey in its texts, and not show, is a ``\u`` escape."""
    ascii_only = (getattr(sys.stdout, "encoding", None) or "utf-8").lower() not in ("utf-8", "utf8")
    lines = json.dumps(value, indent=2, ensure_ascii=ascii_only, default=str).split("\n")
    return [line if line.isprintable() else _escaped(line) for line in lines]


def _escaped(line: str) -> str:
    return "".join(c if is_shown(c) else json.dumps(c)[1:-1] for c in line)


def note(sentence: str) -> None:
    """Print a remark on stderr."""
    for line in sentence.splitlines():
        click.echo(printable(line), err=True)


def on_terminal() -> bool:
    """Whether a person reads stdout. Python has none where it is closed."""
    return bool(sys.stdout and sys.stdout.isatty())


def show_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair a line. Values that are None are left out."""
    present = [(name, cell(value)) for name, value in fields if value is not None]
    width = max(len(name) for name, _ in present)
    for name, value in present:
        label = click.style(name.ljust(width), dim=True) if on_terminal() else name.ljust(width)
        click.echo(f"{label}  {coloured(value)}")


def colour_choice() -> bool | None:
    """False: the user wants no colour anywhere (NO_COLOR, no-color.org). None: colour on terminals."""
    return False if os.environ.get("NO_COLOR") else None


def coloured(word: str) -> str:
    """A state's word in its colour, on a terminal."""
    colour = COLOURS.get(word)
    return click.style(word, fg=colour) if colour and on_terminal() else word


def cell(value: Any) -> str:
    """A value as text that is safe for a terminal: control characters are printed as escapes."""
    if not isinstance(value, str):
        value = "" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return printable(value)


def shortened(value: Any, limit: int = SHORT) -> str:
    """A JSON value on one line, cut to a limit."""
    text = cell(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def block(value: Any, indent: str = "    ") -> str:
    """A JSON value over several lines. A text of several lines in it, such as a traceback, is printed line by line."""
    texts = {}
    if isinstance(value, dict):
        texts = {name: text for name, text in value.items() if isinstance(text, str) and "\n" in text}
        value = {name: other for name, other in value.items() if name not in texts}
    lines = json_lines(value) if value or not texts else []
    for name, text in texts.items():
        lines += [f"{cell(name)}:", *(f"  {cell(line)}" for line in text.rstrip().splitlines())]
    return "\n".join(indent + line for line in lines)
