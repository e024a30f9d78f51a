"""Rota: distributed task scheduling for people who already run MySQL or MariaDB.

    from rota import NodeContext, Rota

    app = Rota()

    @app.task("CLEANUP_TEMP", cron="0 3 * * *")
    async def cleanup(ctx: NodeContext) -> dict:
        return {"removed": 17}

Run it with ``rota up --app jobs:app``.
"""

from importlib.metadata import version

from shared.domain.errors import RotaError
from worker_service.authoring import Rota, TaskType
from worker_service.context import NodeContext

__version__ = version("rota")

__all__ = ["NodeContext", "Rota", "RotaError", "TaskType", "__version__"]
