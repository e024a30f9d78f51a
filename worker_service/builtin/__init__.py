"""The node types that Rota brings: HTTP_REQUEST, and SHELL_COMMAND where a worker allows it."""

from shared.store.node_types import NodeTypeDeclaration
from worker_service.authoring import Node
from worker_service.builtin.http import http_request
from worker_service.builtin.http_param import HttpRequestParam
from worker_service.builtin.shell import shell_command
from worker_service.builtin.shell_param import ShellCommandParam

_HTTP_REQUEST = Node(
    type="HTTP_REQUEST",
    category="HTTP_REQUEST",
    sequence=1,
    handler=http_request,
    execution="async",
    param_model=HttpRequestParam,
)
_SHELL_COMMAND = Node(
    type="SHELL_COMMAND",
    category="SHELL_COMMAND",
    sequence=1,
    handler=shell_command,
    execution="async",
    param_model=ShellCommandParam,
)

DECLARATIONS: list[NodeTypeDeclaration] = [node.declaration() for node in (_HTTP_REQUEST, _SHELL_COMMAND)]
"""Every built-in type, also those that no worker allows: so their tasks can be saved, and checked by their schema."""


def nodes(*, allow_shell: bool) -> list[Node]:
    """The built-in nodes that a worker runs.

    ``allow_shell`` (ROTA_ALLOW_SHELL) adds SHELL_COMMAND: then who may save a task may run commands as the worker.

        for node in nodes(allow_shell=settings.allow_shell):
            app.add(node)
    """
    return [_HTTP_REQUEST, _SHELL_COMMAND] if allow_shell else [_HTTP_REQUEST]
