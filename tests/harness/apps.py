"""What the workers of these tests run. Every handler writes its entry and its exit into a file, outside Rota's tables.

The file and the folder of the gates are given by the environment (see ``tests.harness.cluster``).
"""

import asyncio
import ctypes
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rota import Fail, NodeContext, Retry, Rota, RunAgain

EVIDENCE_FILE, GATE_FOLDER, SERVICE = "CLUSTER_EVIDENCE", "CLUSTER_GATES", "CLUSTER_SERVICE"
LOOK_SECONDS = 0.02
TRIAL_SUMMANDS = 1_000_000
NAP_SECONDS = 0.01

Context = NodeContext[dict[str, Any]]

app = Rota()

late_app = Rota()
"""Has a type that no other worker has."""


def record(event: str, ctx: Context) -> None:
    """One line, by one write to a file that was opened for appending: lines of several processes never mix."""
    entry = {
        "event": event,
        "boottime": time.clock_gettime(time.CLOCK_BOOTTIME),
        "pid": os.getpid(),
        "service": os.environ.get(SERVICE, ""),
        "instance": ctx.instance_id,
        "attempt": ctx.attempt,
        "node": ctx.node_type,
        "task": ctx.task_name,
        "fire": ctx.schedule_datetime.astimezone(UTC).replace(tzinfo=None).isoformat(),
    }
    file = os.open(os.environ[EVIDENCE_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(file)


@contextmanager
def recorded(ctx: Context) -> Iterator[None]:
    """The entry, and the exit: ``exit`` if the handler returned, ``raised`` if it did not."""
    record("enter", ctx)
    try:
        yield
    except BaseException:
        record("raised", ctx)
        raise
    record("exit", ctx)


def is_open(gate: str) -> bool:
    """Whether the test has opened a gate."""
    return (Path(os.environ[GATE_FOLDER]) / gate).exists()


@app.task("NOTE")
async def note(ctx: Context) -> dict[str, int]:
    """Ends at once."""
    with recorded(ctx):
        return {"attempt": ctx.attempt}


@app.task("NOTE_THREAD")
def note_thread(ctx: Context) -> dict[str, int]:
    """Ends at once, on a thread."""
    with recorded(ctx):
        return {"attempt": ctx.attempt}


@app.task("REST")
async def rest(ctx: Context) -> dict[str, int]:
    """Takes as long as it is told."""
    with recorded(ctx):
        await asyncio.sleep(ctx.param["seconds"])
        return {"attempt": ctx.attempt}


@app.task("REST_THREAD")
def rest_on_thread(ctx: Context) -> dict[str, int]:
    """The same on a thread."""
    with recorded(ctx):
        time.sleep(ctx.param["seconds"])
        return {"attempt": ctx.attempt}


@app.task("HOLD")
async def hold(ctx: Context) -> dict[str, int]:
    """Runs until its gate is open."""
    with recorded(ctx):
        while not is_open(ctx.param["gate"]):  # noqa: ASYNC110 - the gate is opened by another process
            await asyncio.sleep(LOOK_SECONDS)
        return {"attempt": ctx.attempt}


@app.task("HOLD_THREAD")
def hold_thread(ctx: Context) -> dict[str, int]:
    """Runs until its gate is open, whatever it is told."""
    with recorded(ctx):
        while not is_open(ctx.param["gate"]):
            time.sleep(LOOK_SECONDS)
        return {"attempt": ctx.attempt}


@app.task("HEED_THREAD")
def heed_thread(ctx: Context) -> dict[str, int]:
    """Runs until it is told to stop, and then until its gate is open."""
    with recorded(ctx):
        while not ctx.cancel_requested:
            time.sleep(LOOK_SECONDS)
        record("told", ctx)
        while not is_open(ctx.param["gate"]):
            time.sleep(LOOK_SECONDS)
        return {"attempt": ctx.attempt}


@app.task("IGNORE_PROCESS", execution="process")
def ignore_process(ctx: Context) -> dict[str, int]:
    """Runs until its gate is open, in a process of its own that ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return hold_process(ctx)


@app.task("HOLD_PROCESS", execution="process")
def hold_process(ctx: Context) -> dict[str, int]:
    """Runs until its gate is open, in a process of its own."""
    with recorded(ctx):
        while not is_open(ctx.param["gate"]):
            time.sleep(LOOK_SECONDS)
        return {"attempt": ctx.attempt}


@app.task("BLOCK")
async def block(ctx: Context) -> dict[str, int]:
    """What no coroutine should do: blocks the event loop."""
    with recorded(ctx):
        time.sleep(ctx.param["seconds"])  # noqa: ASYNC251 - on purpose
        return {"attempt": ctx.attempt}


@app.task("SWALLOW")
async def swallow(ctx: Context) -> dict[str, int]:
    """What no coroutine should do: passes over each cancellation. Runs until its gate is open."""
    with recorded(ctx):
        while not is_open(ctx.param["gate"]):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(LOOK_SECONDS)
        return {"attempt": ctx.attempt}


def summands_a_second() -> float:
    """How many numbers Python adds up in a second, on this machine. A fixed number would tell of another one."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        sum(range(TRIAL_SUMMANDS))
        took.append(time.perf_counter() - began)
    return TRIAL_SUMMANDS / min(took)


@app.task("HOLD_LOCK")
def hold_lock(ctx: Context) -> dict[str, int]:
    """Holds Python's lock in one call of C, at work, so that no other thread of this process runs meanwhile."""
    with recorded(ctx):
        sum(range(round(ctx.param["seconds"] * summands_a_second())))
        return {"attempt": ctx.attempt}


@app.task("SLEEP_WITH_LOCK")
def sleep_with_lock(ctx: Context) -> dict[str, int]:
    """Holds Python's lock in one call of C, asleep, for exactly as long as it is told."""
    with recorded(ctx):
        ctypes.PyDLL(None).sleep(ctx.param["seconds"])
        return {"attempt": ctx.attempt}


steps = app.task_type("STEPS")


@steps.node("FIRST")
async def first(ctx: Context) -> dict[str, int]:
    """Succeeds."""
    with recorded(ctx):
        return {"attempt": ctx.attempt}


@steps.node("SECOND")
def second(ctx: Context) -> dict[str, Any]:
    """Fails in the attempts up to the one that ``fail_until`` names."""
    with recorded(ctx):
        if ctx.attempt <= ctx.param.get("fail_until", 0):
            raise ConnectionError(f"attempt {ctx.attempt} is meant to fail")
        return {"after": ctx.results["FIRST"]}


@steps.node("THIRD")
async def third(ctx: Context) -> dict[str, Any]:
    """Succeeds, and tells what it was given."""
    with recorded(ctx):
        return {"after": ctx.results["SECOND"]}


async def say(ctx: Context) -> dict[str, int]:
    """Asks for a retry in a moment, or gives up, as it is told; in its second attempt it succeeds."""
    with recorded(ctx):
        return said(ctx)


def say_on_thread(ctx: Context) -> dict[str, int]:
    """The same on a thread, or in a process."""
    with recorded(ctx):
        return said(ctx)


def said(ctx: Context) -> dict[str, int]:
    """What each of them does."""
    if ctx.attempt == 1 and ctx.param["say"] == "retry":
        raise Retry("not yet", in_=0.5)
    if ctx.param["say"] == "fail":
        raise Fail("it is gone")
    return {"attempt": ctx.attempt}


app.task("SAY")(say)
app.task("SAY_THREAD")(say_on_thread)
app.task("SAY_PROCESS", execution="process")(say_on_thread)


def ask_again(ctx: Context) -> Any:
    """Asks for one more run, until the time that its param names."""
    with recorded(ctx):
        time.sleep(NAP_SECONDS)
        is_over = datetime.now(UTC).isoformat() > ctx.param["until"]
        return {"over": True} if is_over else RunAgain(in_=0.2, result={"attempt": ctx.attempt})


app.task("AGAIN")(ask_again)
app.task("AGAIN_PROCESS", execution="process")(ask_again)

naps = app.task_type("NAPS")


async def nap(ctx: Context) -> dict[str, int]:
    """Takes a hundredth of a second."""
    with recorded(ctx):
        await asyncio.sleep(NAP_SECONDS)
        return {"attempt": ctx.attempt}


def nap_on_thread(ctx: Context) -> dict[str, int]:
    """The same on a thread."""
    with recorded(ctx):
        time.sleep(NAP_SECONDS)
        return {"attempt": ctx.attempt}


naps.node("FIRST")(nap)
naps.node("SECOND")(nap_on_thread)
naps.node("THIRD")(nap)


@late_app.task("LATECOMER")
async def latecomer(ctx: Context) -> dict[str, int]:
    """Ends at once."""
    with recorded(ctx):
        return {"attempt": ctx.attempt}


cleaned = app.task_type("CLEANED")


@cleaned.node("WORK")
async def work(ctx: Context) -> dict[str, int]:
    """Runs until its gate is open, and fails if it is told."""
    with recorded(ctx):
        while not is_open(ctx.param["work"]):  # noqa: ASYNC110 - the gate is opened by another process
            await asyncio.sleep(LOOK_SECONDS)
        if ctx.param.get("fails"):
            raise Fail("it is meant to fail")
        return {"attempt": ctx.attempt}


@cleaned.node("DELIVER")
async def deliver(ctx: Context) -> dict[str, int]:
    """Ends at once."""
    with recorded(ctx):
        return {"attempt": ctx.attempt}


@cleaned.node("CLEANUP", always=True)
async def clean_up(ctx: Context) -> dict[str, Any]:
    """Runs until its gate is open, and tells how the run has ended before."""
    with recorded(ctx):
        while not is_open(ctx.param["clean"]):  # noqa: ASYNC110 - the gate is opened by another process
            await asyncio.sleep(LOOK_SECONDS)
        return {"status": ctx.run_status, "reason": ctx.run_reason}


@cleaned.node("NOTIFY", always=True, execution="process")
def notify(ctx: Context) -> dict[str, Any]:
    """The same at once, in a process of its own."""
    with recorded(ctx):
        return {"status": ctx.run_status, "cleaned": "CLEANUP" in ctx.results}


forked = app.task_type("FORKED")


async def until_open(ctx: Context, gate: str) -> None:
    """Runs until the gate is open that the param names, if it names one; then naps."""
    while (name := ctx.param.get(gate)) is not None and not is_open(name):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(LOOK_SECONDS)
    await asyncio.sleep(NAP_SECONDS)


@forked.node("EU", after=[])
async def eu(ctx: Context) -> str:
    """Waits for none."""
    with recorded(ctx):
        await until_open(ctx, "eu")
        return "eu"


@forked.node("US", after=[])
def us(ctx: Context) -> str:
    """Waits for none, on a thread, and fails in as many attempts as it is told."""
    with recorded(ctx):
        asyncio.run(until_open(ctx, "us"))
        if ctx.attempt <= ctx.param.get("fails", 0):
            raise ValueError("it is meant to fail")
        return "us"


@forked.node("ASIA", after=[], execution="process")
def asia(ctx: Context) -> str:
    """Waits for none, in a process."""
    with recorded(ctx):
        asyncio.run(until_open(ctx, "asia"))
        return "asia"


@forked.node("SEND", after=["EU"])
async def send(ctx: Context) -> list[str]:
    """Waits for EU."""
    with recorded(ctx):
        return sorted(ctx.results)


@forked.node("MERGE")
async def merge(ctx: Context) -> list[str]:
    """Waits for all."""
    with recorded(ctx):
        return sorted(name for name in ctx.results if "_" not in name)
