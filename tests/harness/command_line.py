"""The command, run in the test's own process."""

from collections.abc import Iterator

import click
from click.testing import CliRunner, Result

from rota.cli import COMMANDS, cli


def invoke(*arguments: str, url: str | None = None, stdin: str | None = None, **environment: str) -> Result:
    """Run the command in this process, with no ROTA_ variable but those given.

    Not ``worker`` alone: it parts its process in two, which a process with threads cannot bear. See RotaProcess.
    """
    assert arguments[:1] != ("worker",) or {"list", "show", "drain", "resume", "stop", "--help"} & {*arguments}
    variables: dict[str, str | None] = {**environment}
    if url is not None:
        variables["ROTA_DATABASE_URL"] = url
    result = CliRunner().invoke(cli, arguments, input=stdin, env=variables)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def done(*arguments: str, url: str) -> str:
    """Run the command, which must succeed; returns what it prints on stdout."""
    result = invoke(*arguments, url=url)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and subcommand, by what is typed for it."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", below) for sub, below in command.commands.items())
