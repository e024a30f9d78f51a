"""An app as a user would bring their own: watches that outlast a second, so that a killed worker leaves work behind."""

import socket
import time

from rota import NodeContext, Rota

app = Rota()


@app.task(
    "NIGHT_WATCH",
    cron="* * * * * *",
    seconds=True,
    misfire_grace_seconds=600,  # on a machine so busy that the scheduler is late, too, every fire counts
    overlap_policy="allow",
    max_instances=100,
)
def watch(ctx: NodeContext) -> dict[str, str]:
    """A watch of five seconds, begun every second."""
    time.sleep(5)
    return {"host": socket.gethostname()}
