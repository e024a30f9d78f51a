"""Logs failed attempts on their worker: a line with what failed where, and the traceback at DEBUG."""

import logging
from contextlib import suppress

from rota.shared.domain.sentences import printable
from rota.shared.domain.states import InstanceStatus
from rota.shared.store.reports import Report
from rota.shared.store.runs import NodeRun, Run
from rota.worker_service.executors.base import Failure

log = logging.getLogger(__name__)

FAILED = (InstanceStatus.FAILED, InstanceStatus.PENDING)


def log_failure(run: Run, node: NodeRun | None, report: Report, failure: Failure | None = None) -> None:
    """Log the failure that a report is of. Whoever reports an attempt calls this once.

    The line has the instance's reason, which is in the database, too: what is secret is in neither. A log handler or a
    filter of the app may raise: the failure must be reported all the same.
    """
    if report.instance is None or report.instance.status not in FAILED:
        return
    extra = {"task": run.task_name, "instance": run.id, "node": node.type if node else ""}
    where = f"task {run.task_name!r}, instance {run.id}, attempt {run.attempt}"
    with suppress(Exception):
        log.warning("%s: %s", where, printable((report.instance.reason or "").partition("\n")[0].rstrip()), extra=extra)
        if failure is not None and failure.traceback and log.isEnabledFor(logging.DEBUG):
            lines = (printable(line.rstrip()) for line in failure.traceback.splitlines())
            log.debug("%s:\n%s", where, "\n".join(lines), extra=extra)
