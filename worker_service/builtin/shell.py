"""SHELL_COMMAND: a command in a process group of its own, bounded in time and output, which ends with its node."""

from typing import Any

from worker_service.builtin.shell_param import ShellCommandParam
from worker_service.context import NodeContext


async def shell_command(ctx: NodeContext[ShellCommandParam]) -> dict[str, Any]:
    """Run the command that the param describes."""
    raise NotImplementedError
