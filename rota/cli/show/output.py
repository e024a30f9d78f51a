"""Output of the command: coloured tables on a terminal, aligned text in a pipe, or one JSON document."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from rota.shared.domain.sentences import printable

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
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def note(sentence: str) -> None:
    """Print a remark on stderr."""
    click.echo(sentence, err=True)


def on_terminal() -> bool:
    """Whether a person reads stdout. Python has none where it is closed."""
    return bool(sys.stdout and sys.stdout.isatty())


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, least: Sequence[str] = ()) -> None:
    """Print rows under their columns. If there are none, print ``empty`` on stderr.

    ``least`` are the columns that a narrow terminal leaves out, the least important first; the others are cut where
    they must. Without it all are shown, each in several lines where it must.
    """
    texts = [[cell(value) for value in row] for row in rows]
    if not texts:
        note(empty)
    elif on_terminal():
        _show_rich(columns, texts, least)
    else:
        _show_aligned([columns, *texts])


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
    lines = json.dumps(value, indent=2, ensure_ascii=False, default=str).splitlines() if value or not texts else []
    for name, text in texts.items():
        lines += [f"{name}:", *(f"  {cell(line)}" for line in text.rstrip().splitlines())]
    return "\n".join(indent + line for line in lines)


def _show_aligned(rows: Sequence[Sequence[str]]) -> None:
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - most of a short command's time

    widths = [max(cell_len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(set_cell_size(text, width) for text, width in zip(row, widths, strict=True)).rstrip())


def _show_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from rota.cli.show.fitting import fitted, natural_widths  # noqa: PLC0415

    console = Console(color_system="auto" if colour_choice() is None else None, highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    filled = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    natural = natural_widths([columns[at] for at in filled], [[row[at] for at in filled] for row in rows])
    widths = fitted(natural, console.width, least) if least else natural
    shown = [at for at in filled if columns[at] in widths]
    for at in shown:
        table.add_column(
            columns[at], overflow="ellipsis" if least else "fold", no_wrap=bool(least), max_width=widths[columns[at]]
        )
    for row in rows:
        table.add_row(*(Text(row[at], style=COLOURS.get(row[at], "")) for at in shown))
    console.print(table)
    if left_out := [columns[at] for at in filled if at not in shown]:
        note(f"too narrow for: {', '.join(name or 'in' for name in left_out)}; a wider terminal shows them, --json too")
