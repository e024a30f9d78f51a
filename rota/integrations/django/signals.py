"""Signals of what became of runs, sent in the worker that ran them.

    @receiver(run_failed)
    def alert(event: RunEvent, **_: Any) -> None:
        mail_admins(event.task_name, event.reason)

They come after the commit of the run's end, on a thread for all receivers, which can neither slow nor break the run.
Each is sent at most once, as of ``app.on``: what must not be missed is to be read from the rows.
"""

from django.db import close_old_connections
from django.dispatch import Signal

from rota.integrations.django.connections import renew
from rota.shared.domain.events import RunEvent
from rota.worker_service.authoring import Rota

run_ended = Signal()
"""A run that this worker had begun has succeeded, failed for good, or been canceled: ``event``, a ``RunEvent``, says
which."""

run_failed = Signal()
"""A run has failed for good: ``event`` is a ``RunEvent``."""


def send_from(app: Rota) -> None:
    """Let an app send the signals that have receivers by now."""
    if run_ended.has_listeners() or run_failed.has_listeners():
        app.on("succeeded", "failed", "canceled")(send)


def send(event: RunEvent) -> None:
    """Send the signals of an event."""
    renew()
    try:
        run_ended.send_robust(RunEvent, event=event)
        if event.event == "failed":
            run_failed.send_robust(RunEvent, event=event)
    finally:
        close_old_connections()
