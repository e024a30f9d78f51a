"""One app as it was deployed again and again: each version has another ordered list of nodes for DEPLOYED.

A task's param may hold a node: ``{"hold": "DEPLOYED_SEND", "gate": "opened by the test"}``.
"""

import asyncio

from rota import Rota
from tests.harness.apps import LOOK_SECONDS, Context, is_open, recorded


def app_of(*names: str) -> Rota:
    """An app whose task type DEPLOYED has these nodes, in this order."""
    app = Rota()
    deployed = app.task_type("DEPLOYED")
    for name in names:
        deployed.node(name)(_node)
    return app


async def _node(ctx: Context) -> dict[str, str]:
    with recorded(ctx):
        held = (ctx.param or {}).get("hold") == ctx.node_type
        while held and not is_open(ctx.param["gate"]):  # noqa: ASYNC110 - the gate is opened by another process
            await asyncio.sleep(LOOK_SECONDS)
        return {"node": ctx.node_type}


original = app_of("EXTRACT", "SEND")
renamed = app_of("EXTRACT", "MAIL")
shortened = app_of("EXTRACT")
reordered = app_of("SEND", "EXTRACT")
extended = app_of("EXTRACT", "CHECK", "SEND")


def declaring(cron: str) -> Rota:
    """An app that declares a task with this cron."""
    app = app_of("EXTRACT")
    app.schedule("deployed-daily", "DEPLOYED", cron=cron)
    return app


at_three = declaring("0 3 * * *")
at_four = declaring("0 4 * * *")
