"""Tables: coloured on a terminal and fitted to its width, aligned text in a pipe."""

from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.cells import cell_len, set_cell_size

from rota.cli.show.output import cell, note, on_terminal


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, least: Sequence[str] = ()) -> None:
    """Print rows under their columns. If there are none, print ``empty`` on stderr.

    ``least`` are the columns that a narrow terminal leaves out, the least important first; the others are cut where
    they must. Without it all are shown, each in several lines where it must.
    """
    texts = [[cell(value) for value in row] for row in rows]
    if not texts:
        note(empty)
    elif on_terminal():
        from rota.cli.show.terminal import show_on_terminal  # noqa: PLC0415 - most of a short command's time

        show_on_terminal(columns, texts, least)
    else:
        _show_aligned([columns, *texts])


def _show_aligned(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(cell_len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(set_cell_size(text, width) for text, width in zip(row, widths, strict=True)).rstrip())
