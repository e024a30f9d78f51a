"""A table on a terminal, by rich."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rota.cli.show.fitting import fitted, natural_widths
from rota.cli.show.output import COLOURS, colour_choice, note


def show_on_terminal(columns: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[str]) -> None:
    """Print rows of printable texts under their columns, those of ``least`` only where they fit."""
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
