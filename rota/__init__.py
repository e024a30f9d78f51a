"""Rota: distributed task scheduling for people who already run MySQL or MariaDB.

    from rota import NodeContext, Rota

    app = Rota()

    @app.task("CLEANUP_TEMP", cron="0 3 * * *")
    async def cleanup(ctx: NodeContext) -> dict[str, int]:
        return {"removed": 17}

Run it with ``rota up --app jobs:app``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rota.beside import embedded
    from rota.client.awaited import AsyncClient
    from rota.client.keys import Once
    from rota.client.plain import Client
    from rota.shared.domain.errors import RotaError
    from rota.shared.domain.events import FiresEvent, RunEvent, SchedulerEvent, TaskEvent, WorkerEvent
    from rota.worker_service.authoring import Rota, TaskType
    from rota.worker_service.context import NodeContext
    from rota.worker_service.jobs import Job
    from rota.worker_service.verdicts import EndRun, Fail, Retry, RunAgain

    __version__: str

__all__ = [
    "AsyncClient",
    "Client",
    "EndRun",
    "Fail",
    "FiresEvent",
    "Job",
    "NodeContext",
    "Once",
    "Retry",
    "Rota",
    "RotaError",
    "RunAgain",
    "RunEvent",
    "SchedulerEvent",
    "TaskEvent",
    "TaskType",
    "WorkerEvent",
    "__version__",
    "embedded",
]

_HOMES = {
    "AsyncClient": "rota.client.awaited",
    "Client": "rota.client.plain",
    "EndRun": "rota.worker_service.verdicts",
    "Fail": "rota.worker_service.verdicts",
    "FiresEvent": "rota.shared.domain.events",
    "Job": "rota.worker_service.jobs",
    "NodeContext": "rota.worker_service.context",
    "Once": "rota.client.keys",
    "Retry": "rota.worker_service.verdicts",
    "Rota": "rota.worker_service.authoring",
    "RotaError": "rota.shared.domain.errors",
    "RunAgain": "rota.worker_service.verdicts",
    "RunEvent": "rota.shared.domain.events",
    "SchedulerEvent": "rota.shared.domain.events",
    "TaskEvent": "rota.shared.domain.events",
    "TaskType": "rota.worker_service.authoring",
    "WorkerEvent": "rota.shared.domain.events",
    "embedded": "rota.beside",
}


if not TYPE_CHECKING:  # to a type checker it would say that every name is there

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used (PEP 562), so that the command starts in a tenth of a second."""
        if name == "__version__":
            return import_module("importlib.metadata").version("rota")
        if name not in _HOMES:
            raise AttributeError(f"module 'rota' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
