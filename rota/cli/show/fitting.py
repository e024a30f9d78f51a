"""Which columns of a table fit on a terminal, and how wide each is. Wide characters (CJK, emoji) take two places."""

from collections.abc import Mapping, Sequence

from rich.cells import cell_len

GAP = 2
"""The places between two columns."""

SHORTEST = 10
"""A text that is cut shorter tells nothing; its column is left out instead."""

NAMES = frozenset({"name", "task"})
"""Columns of names, which get more room than others."""

SHORTEST_NAME = 20
"""A name that is cut shorter is hard to tell from others; less where that is more than a third of the terminal."""

CUT = frozenset({"result", "worker", "type", "trigger", "remark", "labels", "changed", "who", "why", "host"})
"""Columns whose texts may be cut, as names. All others are shown whole or not at all: half a time says nothing."""


def natural_widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, int]:
    """How wide each column is with all of its texts whole, and its heading."""
    return {name: max(cell_len(row[at]) for row in (columns, *rows)) for at, name in enumerate(columns)}


def fitted(natural: Mapping[str, int], width: int, least: Sequence[str]) -> dict[str, int]:
    """The columns that fit into ``width``, each with its width, in their order.

    While they do not fit, one is left out, in the order of ``least``; those that it does not name stay. Then those that
    fit beside the others are put back, the last first. The room that is left goes to names, then to the texts that may
    be cut, the last of ``least`` first.

        fitted({"id": 4, "late": 6, "result": 60}, 40, ["late", "result"])   # {"id": 4, "late": 6, "result": 26}
    """
    shortest = {name: min(most, _shortest(name, width)) for name, most in natural.items()}
    left = dict(shortest)
    for name in least:
        if _together(left) <= width:
            break
        left.pop(name, None)
    for name in reversed(least):
        if name in shortest and _together({**left, name: shortest[name]}) <= width:
            left[name] = shortest[name]
    widths = {name: shortest[name] for name in natural if name in left}
    for name in (*NAMES, *reversed(least)):
        if name in widths:
            widths[name] += max(0, min(natural[name] - widths[name], width - _together(widths)))
    return widths


def _shortest(name: str, width: int) -> int:
    if name in NAMES:
        return max(SHORTEST, min(SHORTEST_NAME, width // 3))
    return SHORTEST if name in CUT else width


def _together(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)
