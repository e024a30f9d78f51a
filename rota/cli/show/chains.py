"""Draws the chain of a run as a tree."""

from collections.abc import Sequence

import click

from rota.cli.show.output import cell, coloured
from rota.shared.control.documents import Document
from rota.shared.domain.chains import SHOWN
from rota.shared.domain.states import OnEnd


def show_chain(chain: Sequence[Document], instance_id: int) -> None:
    """Print the tasks of a chain, each below the first that it follows, with its run; the shown one is marked."""
    tree = _Tree(chain, instance_id)
    first = [one["task"] for one in chain if not one["after"]]
    for name in [*first, *(one["task"] for one in chain)]:  # the others are in a circle, which SQL has written
        if name not in tree.drawn:
            tree.draw(name)
    if len(chain) >= SHOWN:
        click.echo(f"these are the {SHOWN} tasks that are nearest to it; there may be more")


class _Tree:
    def __init__(self, chain: Sequence[Document], instance_id: int) -> None:
        self.drawn: set[str] = set()
        self._instance_id = instance_id
        self._nodes = {one["task"]: one for one in chain}
        self._below: dict[str, list[str]] = {}
        for one in chain:
            for before in one["after"]:
                self._below.setdefault(before, []).append(one["task"])

    def draw(self, name: str, branch: str = "", indent: str = "") -> None:
        """Print a task and what follows it. ``branch`` stands before its name, ``indent`` before those below it."""
        if name in self.drawn:
            click.echo(f"{branch}{cell(name)}  (above)")
            return
        self.drawn.add(name)
        one = self._nodes[name]
        click.echo(f"{branch}{cell(name)}{_ends(one)}  {self._run(one)}")
        below = self._below.get(name, [])
        for at, follower in enumerate(below, 1):
            mark, more = ("└─ ", "   ") if at == len(below) else ("├─ ", "│  ")
            self.draw(follower, indent + mark, indent + more)

    def _run(self, one: Document) -> str:
        if one["instance_id"] is None:
            return f"no run: {cell(one['why'])}" if one["why"] else "no run"
        runs = f", the newest of {one['runs']}" if one["runs"] > 1 else ""
        this = "  <- this one" if one["instance_id"] == self._instance_id else ""
        return f"{coloured(one['status'])}  instance {one['instance_id']}{runs}{this}"


def _ends(one: Document) -> str:
    """What it waits for, where that is more than the success of one task."""
    said = [f"{name}: {end}" for name, end in one["after"].items()]
    is_plain = len(said) == 1 and OnEnd.SUCCESS in one["after"].values()
    return f" (after {cell(', '.join(said))})" if said and not is_plain else ""
