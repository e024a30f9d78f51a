"""The app of ``tests.harness.apps``, in workers whose threads meet an error that nobody expects."""

import os
from typing import Any, NoReturn

from rota.worker_service.pulling.slots import Slots
from rota.worker_service.rows import WorkerRows
from tests.harness.apps import app

__all__ = ["app"]

FAILING_THREAD = "CLUSTER_FAILING_THREAD"


def fail(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("nobody expects this")


match os.environ.get(FAILING_THREAD):
    case "report":
        WorkerRows.report = fail  # type: ignore[method-assign]
    case "start":
        Slots.idle = fail  # type: ignore[method-assign]
