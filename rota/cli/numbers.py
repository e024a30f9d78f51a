"""Whole numbers on the command line, ids among them, refused in words for people."""

import re
from typing import Any

import click

from rota.cli.show.output import shortened


class WholeNumber(click.IntRange):
    """A whole number from ``least`` to ``most``. ``wanted`` says in an error what would be right."""

    def __init__(self, least: int, most: int, wanted: str | None = None) -> None:
        super().__init__(least, most)
        self._wanted = wanted or f"a whole number from {least} to {most}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Refuse any other text."""
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{shortened(value)!r} is not {self._wanted}.", param, ctx)


ROW_ID = WholeNumber(1, 2**63 - 1, "an id; an id is a whole number from 1 to 9,223,372,036,854,775,807, for example 17")
"""An id that a row can have, on each database."""


class CommandOnIds(click.Command):
    """A command whose arguments are ids: ``-1`` is no unknown option but a wrong id."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse a negative number as any other text that is no id."""
        given = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption:
            for number in filter(re.compile(r"-\d+").fullmatch, given):
                ROW_ID.convert(number, next(param for param in self.params if param.type is ROW_ID), ctx)
            raise
