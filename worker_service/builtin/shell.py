"""SHELL_COMMAND: a command in a process group of its own, bounded in time and output, which ends with its node."""

import os
import signal
from collections.abc import Mapping
from typing import Any

from shared.clock import boottime
from shared.domain.errors import RotaError
from worker_service.builtin.command import Ended, run_command
from worker_service.builtin.shell_param import ShellCommandParam
from worker_service.context import NodeContext


class CommandFailed(RotaError):
    """A command that could not be started, took too long, or ended otherwise than expected."""


async def shell_command(ctx: NodeContext[ShellCommandParam]) -> dict[str, Any]:
    """Run the command that the param describes.

    Returns exit_code, stdout, stderr, truncated, elapsed_ms. Raises CommandFailed, without the command line, which may
    hold secrets.
    """
    param = ctx.param
    arguments = ["/bin/sh", "-c", param.command] if isinstance(param.command, str) else param.command
    began = boottime()
    try:
        ended = await run_command(
            arguments,
            environment=_environment(ctx, os.environ),
            cwd=param.cwd,
            stdin=param.stdin,
            timeout_seconds=param.timeout_seconds,
            max_output_bytes=param.max_output_bytes,
        )
    except TimeoutError:
        raise CommandFailed(
            f"the command did not end within {param.timeout_seconds:g} s (timeout_seconds) and was terminated"
        ) from None
    except OSError as error:
        what = f"the folder {param.cwd!r} (cwd)" if error.filename == param.cwd else repr(arguments[0])
        raise CommandFailed(f"the command could not be started: {what}: {error.strerror}") from None
    if ended.status not in param.expect_exit:
        raise CommandFailed(_sentence(ended, param.expect_exit))
    return {
        "exit_code": ended.status,
        "stdout": ended.stdout.text,
        "stderr": ended.stderr.text,
        "truncated": ended.stdout.truncated or ended.stderr.truncated,
        "elapsed_ms": round((boottime() - began) * 1000),
    }


def _environment(ctx: NodeContext[ShellCommandParam], inherited: Mapping[str, str]) -> dict[str, str]:
    """The worker's environment without Rota's own variables, which hold the database's password; and the run."""
    return {
        **{name: value for name, value in inherited.items() if not name.startswith("ROTA_")},
        "ROTA_INSTANCE_ID": str(ctx.instance_id),
        "ROTA_TASK_NAME": ctx.task_name,
        "ROTA_SCHEDULE_DATETIME": ctx.schedule_datetime.isoformat(),
        "ROTA_ATTEMPT": str(ctx.attempt),
        **ctx.param.env,
    }


def _sentence(ended: Ended, expected: list[int]) -> str:
    if ended.status < 0:
        number = -ended.status
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        happened = f"the command was killed by {name}"
    else:
        wanted = ", ".join(map(str, expected))
        happened = f"the command ended with exit code {ended.status}, where {wanted} is expected"
    return f"{happened}; stderr ends: {ended.stderr.tail}" if ended.stderr.tail else f"{happened}; stderr is empty"
