"""The built-in node types, where a worker allows them: HTTP_REQUEST unless it is turned off, SHELL_COMMAND."""

from dataclasses import replace
from functools import partial

from sqlalchemy import Connection

from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import node_types
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.worker_service.authoring import Rota
from rota.worker_service.builtin.http import http_request
from rota.worker_service.builtin.http_param import HttpRequestParam
from rota.worker_service.builtin.shell import shell_command
from rota.worker_service.builtin.shell_param import ShellCommandParam
from rota.worker_service.contents import Node

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
    """Register every built-in type, unless that would change nothing: who may only read has nothing to write then.

    ``by`` is who does it.
    """
    if not database.read(_are_the_last):
        database.write(lambda connection: node_types.register(connection, DECLARATIONS, by))


def _are_the_last(connection: Connection) -> bool:
    """Whether the built-in types are registered, and nobody has declared one otherwise since."""
    last = {one.type: (one.defaults, one.param_schema) for one in node_types.registered(connection)}
    return node_types.is_registered(connection, DECLARATIONS) and all(
        last.get(one.type) == (one.defaults, one.param_schema) for one in DECLARATIONS
    )


def nodes(settings: Settings, app: Rota) -> list[Node]:
    """The built-in nodes that a worker of an app runs: those that the worker allows and the app does not replace.

    With ``allow_shell`` (ROTA_ALLOW_SHELL) whoever may save a task may run commands as the worker; with ``allow_http``
    (ROTA_ALLOW_HTTP), send requests from the worker's place in the network.

        nodes(Settings(allow_http=False), app)   # []
    """
    replaced = {name for node in app.nodes.values() for name in (node.type, node.category)}
    shell = replace(_SHELL_COMMAND, handler=partial(shell_command, grace_seconds=settings.cancel_grace_seconds))
    allowed = ((settings.allow_http, _HTTP_REQUEST), (settings.allow_shell, shell))
    return [node for allows, node in allowed if allows and node.type not in replaced]
