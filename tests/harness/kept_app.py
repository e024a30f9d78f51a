"""An app whose handler, on a thread, returns though its worker stops. Behind it stands a node that runs always."""

from rota import Rota
from tests.harness.apps import Context, hold_thread, recorded

app = Rota()
kept = app.task_type("KEPT")


@kept.node("WORK")
def work(ctx: Context) -> dict[str, int]:
    """Runs until its gate is open."""
    return hold_thread(ctx)


@kept.node("DELIVER")
def deliver(ctx: Context) -> None:
    """Ends at once."""
    with recorded(ctx):
        pass


@kept.node("CLEANUP", always=True)
def clean_up(ctx: Context) -> str:
    """Tells how the run has ended before."""
    with recorded(ctx):
        return ctx.run_status
