"""An app with a pool of two threads. Its handlers leave evidence, as those of ``tests.harness.apps``."""

import asyncio
import threading
import time
from typing import Any

from rota import Rota
from tests.harness.apps import LOOK_SECONDS, Context, is_open, recorded

app = Rota()
app.pool("images", size=2)


def held(ctx: Context) -> dict[str, Any]:
    """Until its gate is open, or as long as it is told. Tells the thread that it ran on."""
    with recorded(ctx):
        while "gate" in ctx.param and not is_open(ctx.param["gate"]):
            time.sleep(LOOK_SECONDS)
        time.sleep(ctx.param.get("seconds", 0))
        return {"thread": threading.current_thread().name}


@app.task("THUMB_THREAD")
def thumb_on_thread(ctx: Context) -> dict[str, Any]:
    return held(ctx)


@app.task("THUMB_PROCESS", execution="process")
def thumb_in_process(ctx: Context) -> dict[str, Any]:
    return held(ctx)


@app.task("THUMB_ASYNC")
async def thumb(ctx: Context) -> dict[str, Any]:
    with recorded(ctx):
        while not is_open(ctx.param["gate"]):  # noqa: ASYNC110 - the gate is opened by another process
            await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(ctx.param["seconds"])
        return {"thread": threading.current_thread().name}


two_nodes = app.task_type("THUMBS")


@two_nodes.node("READ")
def read(ctx: Context) -> dict[str, Any]:
    return held(ctx)


@two_nodes.node("WRITE")
def write(ctx: Context) -> dict[str, Any]:
    return held(ctx)


@app.task("PLAIN")
def plain(ctx: Context) -> dict[str, Any]:
    return held(ctx)
