"""The app whose functions the tests of the process executor run in processes of their own."""

import atexit
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
import weakref
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, SecretStr, field_validator

from rota import EndRun, Fail, NodeContext, Retry, Rota, RunAgain


class Param(BaseModel):
    region: str = Field(default="eu", alias="in")
    secret: SecretStr = SecretStr("none")
    note: str = ""

    @field_validator("note")
    @classmethod
    def _checked(cls, note: str) -> str:
        if note == "exit":
            sys.exit(3)
        return note


class Away(ConnectionError):
    """An exception of the app."""


app = Rota()
typed = app.task_type("TYPED", param=Param)
plain = app.task_type("PLAIN")


@typed.node("CONTEXT", execution="process")
def context(ctx: NodeContext[Any]) -> Any:
    given = {
        name: getattr(ctx, name)
        for name in ("task_name", "node_type", "instance_id", "run_number", "attempt", "origin", "results")
    }
    return given | {
        "region": ctx.param.region,
        "secret": ctx.param.secret.get_secret_value(),
        "unset": sorted(ctx.param.model_fields_set),
        "fire": ctx.schedule_datetime.isoformat(),
        "zone": str(ctx.schedule_datetime.tzinfo),
        "due": ctx.due_at.isoformat(),
        "canceled": ctx.cancel_requested,
        "cwd": str(Path.cwd()),
        "path": sys.path,
        "python_path": os.environ.get("PYTHONPATH"),
        "pid": os.getpid(),
    }


@plain.node("PID", execution="process")
def pid(ctx: NodeContext[Any]) -> Any:
    return os.getpid()


@plain.node("MODEL", execution="process")
def model(ctx: NodeContext[Any]) -> Any:
    return Param(note="a model")


@plain.node("ECHO", execution="process")
def echo(ctx: NodeContext[Any]) -> Any:
    return ctx.param


@plain.node("SET", execution="process")
def a_set(ctx: NodeContext[Any]) -> Any:
    return {1}


@plain.node("LARGE", execution="process")
def large(ctx: NodeContext[Any]) -> Any:
    return "x" * ctx.param["size"]


@plain.node("AGAIN", execution="process")
def again(ctx: NodeContext[Any]) -> Any:
    at = ctx.param.get("at")
    if at is not None:
        return RunAgain(at=datetime.fromisoformat(at), result={"at": at})
    return RunAgain(in_=300, result={"rows": 3})


@plain.node("EARLY", execution="process")
def early(ctx: NodeContext[Any]) -> Any:
    return EndRun({"rows": 0})


@plain.node("RAISE", execution="process")
def raise_(ctx: NodeContext[Any]) -> Any:
    raise {
        "value": ValueError("no"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "retry": Retry("not yet", in_=5),
        "fail": Fail("no"),
        "own": Away("no"),
        "long": ValueError("x" * 10_000_000),
    }[ctx.param["what"]]


@plain.node("END", execution="process")
def end(ctx: NodeContext[Any]) -> Any:
    if isinstance(ctx.param["how"], int):
        os._exit(ctx.param["how"])
    os.kill(os.getpid(), getattr(signal, ctx.param["how"]))


@plain.node("BRIEF", execution="process")
def brief(ctx: NodeContext[Any]) -> Any:
    time.sleep(0.1)


@plain.node("HOOK", execution="process")
def hook(ctx: NodeContext[Any]) -> Any:
    """Leaves an exit hook, which hangs or says that it was called."""
    if ctx.param.get("hangs"):
        atexit.register(time.sleep, 1000)
    else:
        atexit.register(print, "printed by a hook", end=" ")
        atexit.register(Path(ctx.param["file"]).write_text, "called")
    return os.getpid()


@plain.node("LOG", execution="process")
def log(ctx: NodeContext[Any]) -> Any:
    ctx.log.info("counted %d", 3)
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("mine").exception("it failed")
    logging.getLogger("mine").debug("too low")
    print("to stdout")


@plain.node("HANG", execution="process")
def hang(ctx: NodeContext[Any]) -> Any:
    """Hangs with a child and a grandchild, all ignoring SIGTERM, and says who they are."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    other = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; sleep 1000; true"])
    Path(ctx.param["file"] + ".new").write_text(json.dumps([os.getpid(), other.pid]))
    Path(ctx.param["file"] + ".new").rename(ctx.param["file"])
    if ctx.param.get("hold_the_lock"):
        ctypes.PyDLL(None).sleep(1000)  # with Python's lock held: no thread of this process runs
    time.sleep(1000)


@plain.node("TIDY", execution="process")
def tidy(ctx: NodeContext[Any]) -> Any:
    """Waits until it is stopped, and tidies up, or goes on as the param says."""
    folder = Path(ctx.param["folder"])
    other = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
    try:
        (folder / "new").write_text(json.dumps([os.getpid(), other.pid]))
        (folder / "new").rename(folder / "pids")
        if ctx.param.get("looks"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while not ctx.cancel_requested:
                time.sleep(0.01)
            return "looked"
        time.sleep(1000)
    except SystemExit as error:
        (folder / "tidied").write_text(f"{error} {ctx.cancel_requested if ctx.param.get('asks') else ''}")
        if ctx.param.get("returns"):
            return "returned"
        raise
    finally:
        (folder / "left").touch()


def remove() -> None:
    """What ``tempfile.TemporaryDirectory`` does, for example: the finalizer of what the import has made."""
    if file := os.environ.get("TEST_REMOVED"):
        Path(file).touch()


weakref.finalize(Param, remove)
