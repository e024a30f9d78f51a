"""Rota: distributed task scheduling for people who already run MySQL or MariaDB.

    from rota import NodeContext, Rota

    app = Rota()

    @app.task("CLEANUP_TEMP", cron="0 3 * * *")
    async def cleanup(ctx: NodeContext) -> dict:
        return {"removed": 17}

Run it with ``rota up --app jobs:app``.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.domain.errors import RotaError
    from worker_service.authoring import Rota, TaskType
    from worker_service.context import NodeContext

__version__ = version("rota")

__all__ = ["NodeContext", "Rota", "RotaError", "TaskType", "__version__"]

_HOMES = {
    "NodeContext": "worker_service.context",
    "Rota": "worker_service.authoring",
    "RotaError": "shared.domain.errors",
    "TaskType": "worker_service.authoring",
}


def __getattr__(name: str) -> object:
    """The public names, imported when they are first used: the command starts in a tenth of a second (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rota' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
