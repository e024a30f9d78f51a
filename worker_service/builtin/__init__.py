"""The built-in node types: HTTP_REQUEST, and SHELL_COMMAND where a worker allows it."""

from rota.shared.database.transactions import Database
from rota.shared.store import node_types
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.worker_service.authoring import Node
from rota.worker_service.builtin.http import http_request
from rota.worker_service.builtin.http_param import HttpRequestParam
from rota.worker_service.builtin.shell import shell_command
from rota.worker_service.builtin.shell_param import ShellCommandParam

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
"""Every built-in type, also those that no worker allows. So their tasks can be checked and saved all the same."""


def register(database: Database, by: str) -> None:
    """Register every built-in type; ``by`` is who does it."""
    database.write(lambda connection: node_types.register(connection, DECLARATIONS, by))


def nodes(*, allow_shell: bool) -> list[Node]:
    """The built-in nodes that a worker runs.

    ``allow_shell`` (ROTA_ALLOW_SHELL) adds SHELL_COMMAND. Then whoever may save a task may run commands as the worker.

        for node in nodes(allow_shell=settings.allow_shell):
            app.add(node)
    """
    return [_HTTP_REQUEST, _SHELL_COMMAND] if allow_shell else [_HTTP_REQUEST]
