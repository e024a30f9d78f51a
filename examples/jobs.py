"""What a task author writes. See it live:

rota up --app examples.jobs:app

Then, in another terminal of the same folder: rota task list; rota task run cleanup-temp --wait; rota instance list.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from rota import NodeContext, Rota

app = Rota()

HOURS_KEPT = 24


# The common case: one function is a task type with one node, and with a cron a task, named heartbeat here.
# Six fields: the first is seconds, where that is declared.
@app.task("HEARTBEAT", cron="* * * * * *", seconds=True)
async def heartbeat(ctx: NodeContext) -> dict[str, str]:
    """Every second: the fire's own time, which a replay sees again."""
    return {"beat": f"{ctx.schedule_datetime:%H:%M:%S}"}


# A plain function runs on a thread, so it may block.
@app.task("CLEANUP_TEMP", cron="0 3 * * *", timezone="Europe/Berlin", overlap_policy="skip")
def cleanup(ctx: NodeContext) -> dict[str, int]:
    """Every night at three in Berlin, summer and winter: count the temporary files that are a day old."""
    oldest = ctx.due_at.timestamp() - HOURS_KEPT * 3600
    old = [path for path in Path(tempfile.gettempdir()).glob("*.tmp") if path.stat().st_mtime < oldest]
    return {"would_remove": len(old)}


class ReportParam(BaseModel):
    """A report's param: checked when a task is saved, and again when it runs."""

    region: str = "eu"
    rows: int = Field(default=42, ge=0, le=1_000_000)


# A type with two nodes. The second starts when the first's result is in the database, and finds it in its context.
report = app.task_type("REPORT", param=ReportParam)


@report.node("EXTRACT", timeout=60)
def extract(ctx: NodeContext[ReportParam]) -> dict[str, Any]:
    """REPORT_EXTRACT, first."""
    time.sleep(0.2)
    return {"day": str(ctx.schedule_datetime.date()), "region": ctx.param.region, "rows": ctx.param.rows}


@report.node("SEND", retries=3)
async def send(ctx: NodeContext[ReportParam]) -> dict[str, Any]:
    """REPORT_SEND, second. If it fails it is tried again; the extract is not."""
    extracted = ctx.results["EXTRACT"]
    await asyncio.sleep(0.1)
    ctx.log.info("sending %s rows for %s", extracted["rows"], extracted["day"])
    return {"sent": extracted["rows"], "to": f"{ctx.param.region}@example.org"}


# One type, several tasks: each with its own time, zone and param.
app.schedule("daily-report", report, cron="30 16 * * *", timezone="Asia/Shanghai")
app.schedule("live-report", report, cron="*/5 * * * * *", seconds=True, param=ReportParam(region="us", rows=7))
app.schedule("report-on-demand", report, retries=2)  # no cron: rota task run report-on-demand --param '{"rows": 3}'


@app.task("UNSTEADY", cron="*/3 * * * * *", seconds=True, retries=3, retry_delay_seconds=1)
async def unsteady(ctx: NodeContext) -> dict[str, int]:
    """Every three seconds; fails at first every quarter of a minute, and is tried again after a second."""
    if ctx.attempt == 1 and ctx.schedule_datetime.second % 15 == 0:
        raise ConnectionError("the other side did not answer; the next attempt may find it")
    return {"attempt": ctx.attempt}
