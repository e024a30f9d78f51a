"""The tasks that Rota runs in the benchmark: handlers that do nothing but write down when they were entered."""

from typing import Any

from benchmarks.record import record
from rota import NodeContext, Rota

app = Rota()


def key_of(task: str, fire: float) -> str:
    """What tells one fire of a task from all others in the records."""
    return f"{task}@{fire:.6f}"


def _note(ctx: NodeContext[Any]) -> None:
    record(key_of(ctx.task_name, ctx.schedule_datetime.timestamp()), ctx.due_at.timestamp())


@app.task("BENCH_NOOP")
async def noop(ctx: NodeContext[Any]) -> dict[str, bool]:
    """One node on the event loop."""
    _note(ctx)
    return {"ok": True}
