"""Groups of commands that know what somebody means who types another scheduler's word, or one letter too many."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import click

MEANT: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("create", "new"), ("add",)),
    **dict.fromkeys(("edit", "update", "modify", "change"), ("set",)),
    **dict.fromkeys(("delete", "rm", "del"), ("remove", "cancel")),
    **dict.fromkeys(("enable", "start", "unpause"), ("on", "resume")),
    **dict.fromkeys(("disable", "stop", "pause"), ("off", "cancel", "drain")),
    **dict.fromkeys(("trigger", "exec", "fire"), ("run",)),
    **dict.fromkeys(("kill", "abort", "terminate"), ("cancel",)),
    **dict.fromkeys(("retry", "rerun", "redo"), ("replay",)),
    **dict.fromkeys(("get", "info", "describe", "log", "logs"), ("show", "instance")),
    **dict.fromkeys(("ls", "all"), ("list",)),
    **dict.fromkeys(("job", "jobs", "schedule"), ("task",)),
    **dict.fromkeys(("runs", "history"), ("instance",)),
    **dict.fromkeys(("executor", "executors", "node", "nodes"), ("worker",)),
    **dict.fromkeys(("status", "check"), ("doctor",)),
}
"""Words of other schedulers, each with the commands that may be meant; a group has at most some of them."""


class GuessingGroup(click.Group):
    """A group that answers an unknown command with the one that was probably meant, or with those there are."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was typed. Where there is none, say what was probably meant."""
        word = args[0]
        if self.get_command(ctx, word) is None and not ctx.resilient_parsing and not word.startswith("-"):
            names = self.list_commands(ctx)
            for near in (*(one for one in MEANT.get(word, ()) if one in names), *get_close_matches(word, names, n=1)):
                ctx.fail(f"No such command {word!r}. Did you mean {near!r}?")
            ctx.fail(f"No such command {word!r}; there are: {', '.join(names)}.")
        return super().resolve_command(ctx, args)
