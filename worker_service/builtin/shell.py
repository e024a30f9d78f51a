"""SHELL_COMMAND: runs a command with limits for time and output. Its process group ends when the node ends."""

from time import perf_counter
from typing import Any

from rota.shared.domain.errors import DetailedError
from rota.shared.signals import signal_name
from rota.worker_service import process_groups
from rota.worker_service.builtin.command import CommandStopped, Ended, run_command
from rota.worker_service.builtin.shell_param import ShellCommandParam
from rota.worker_service.context import NodeContext


class CommandFailed(DetailedError):
    """A command could not be started, took too long, or ended with an unexpected exit code.

    Unless it could not be started, ``details`` has exit_code (negative: the signal), and the end of stdout and stderr.
    Where the node times out, this is the cause of the CancelledError.
    """


async def shell_command(ctx: NodeContext[ShellCommandParam], *, grace_seconds: float = 10) -> dict[str, Any]:
    """Run the command that the param describes. It may tidy up for ``grace_seconds`` when it is stopped.

    Returns exit_code, stdout, stderr, truncated, elapsed_ms. Raises CommandFailed, whose text
    leaves out the command line: it may hold secrets.
    """
    param = ctx.param
    arguments = ["/bin/sh", "-c", param.command] if isinstance(param.command, str) else param.command
    began = perf_counter()
    try:
        ended = await run_command(
            arguments,
            environment=_environment(ctx),
            cwd=param.cwd,
            stdin=param.stdin,
            timeout_seconds=param.timeout_seconds,
            grace_seconds=grace_seconds,
            max_output_bytes=param.max_output_bytes,
        )
    except CommandStopped as stopped:
        raise stopped from CommandFailed("the command was stopped with its node", _details(stopped.ended))
    except OSError as error:
        what = f"the folder {param.cwd!r} (cwd)" if error.filename == param.cwd else repr(arguments[0])
        raise CommandFailed(f"the command could not be started: {what}: {error.strerror}") from None
    if ended.timed_out:
        sentence = f"the command did not end within {param.timeout_seconds:g} s (timeout_seconds) and was terminated"
        raise CommandFailed(sentence, _details(ended))
    if ended.status not in param.expect_exit:
        raise CommandFailed(_sentence(ended, param.expect_exit), _details(ended))
    return {
        "exit_code": ended.status,
        "stdout": ended.stdout.text,
        "stderr": ended.stderr.text,
        "truncated": ended.stdout.truncated or ended.stderr.truncated,
        "elapsed_ms": round((perf_counter() - began) * 1000),
    }


def _environment(ctx: NodeContext[ShellCommandParam]) -> dict[str, str]:
    """What a command inherits, and the run's facts."""
    return {
        **process_groups.environment(),
        "ROTA_INSTANCE_ID": str(ctx.instance_id),
        "ROTA_TASK_NAME": ctx.task_name,
        "ROTA_SCHEDULE_DATETIME": ctx.schedule_datetime.isoformat(),
        "ROTA_ATTEMPT": str(ctx.attempt),
        **ctx.param.env,
    }


def _details(ended: Ended) -> dict[str, Any]:
    return {
        "exit_code": ended.status,
        "stdout": ended.stdout.last,
        "stderr": ended.stderr.last,
        "truncated": not (ended.stdout.last_is_all and ended.stderr.last_is_all),
    }


def _sentence(ended: Ended, expected: list[int]) -> str:
    if ended.status < 0:
        happened = f"the command was killed by {signal_name(-ended.status)}"
    else:
        wanted = ", ".join(map(str, expected))
        happened = f"the command ended with exit code {ended.status}, where {wanted} is expected"
    return f"{happened}; stderr ends: {ended.stderr.tail}" if ended.stderr.tail else f"{happened}; stderr is empty"
