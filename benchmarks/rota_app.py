"""The tasks that Rota runs in the benchmark: handlers that do nothing but write down when they were entered."""

import asyncio
from typing import Any

from benchmarks.different import KINDS, ON_THREADS
from benchmarks.record import record
from rota import NodeContext, Rota
from rota.worker_service.signatures import Execution

app = Rota()


def key_of(task: str, fire: float) -> str:
    """What tells one fire of a task from all others in the records."""
    return f"{task}@{fire:.6f}"


def attempt_of(key: str, attempt: int) -> str:
    """What tells the attempts of a fire apart, where a worker is killed and a second one is right."""
    return f"{key}#{attempt}"


def _key(ctx: NodeContext[Any]) -> str:
    return key_of(ctx.task_name, ctx.schedule_datetime.timestamp())


@app.task("BENCH_NOOP")
async def noop(ctx: NodeContext[Any]) -> dict[str, bool]:
    """One node on the event loop."""
    record(_key(ctx), ctx.due_at.timestamp())
    return {"ok": True}


@app.task("BENCH_PROCESS", execution="process")
def process(ctx: NodeContext[Any]) -> dict[str, bool]:
    """One node in a process of its own."""
    record(_key(ctx), ctx.due_at.timestamp())
    return {"ok": True}


@app.task("BENCH_WAIT")
async def wait(ctx: NodeContext[Any]) -> dict[str, bool]:
    """One node that takes ``seconds``; each attempt is recorded."""
    record(attempt_of(_key(ctx), ctx.attempt), ctx.due_at.timestamp())
    await asyncio.sleep(ctx.param["seconds"])
    return {"ok": True}


PIPE_NODES = [f"N{number}" for number in range(1, 6)]
PIPES: dict[Execution, str] = {
    "async": "BENCH_PIPE_ASYNC",
    "thread": "BENCH_PIPE_THREAD",
    "process": "BENCH_PIPE_PROCESS",
}


def pipe(ctx: NodeContext[Any]) -> str:
    """One of five nodes; its result has so many ``bytes``."""
    record(f"{_key(ctx)}/{ctx.node_type.rpartition('_')[2]}", ctx.due_at.timestamp())
    return "x" * int(ctx.param["bytes"])


async def async_pipe(ctx: NodeContext[Any]) -> str:
    """The same on the event loop."""
    return pipe(ctx)


for execution, kind in PIPES.items():
    task_type = app.task_type(kind)
    for name in PIPE_NODES:
        task_type.node(name, execution=execution)(async_pipe if execution == "async" else pipe)


def different(ctx: NodeContext[Any]) -> dict[str, int]:
    """One of one to three nodes of a task that is like no other."""
    record(f"{_key(ctx)}/{ctx.node_type.rpartition('_')[2]}", ctx.due_at.timestamp())
    return {"number": ctx.param["number"]}


async def async_different(ctx: NodeContext[Any]) -> dict[str, int]:
    """The same on the event loop."""
    return different(ctx)


for number, (kind, names) in enumerate(KINDS.items()):
    task_type = app.task_type(kind)
    for name in names:
        task_type.node(name)(different if number % ON_THREADS == 0 else async_different)
