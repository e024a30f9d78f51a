"""Where a handler stands: the innermost line of its own code that it is in. Read from another thread, as it runs on.

Its own code is what lies in the folder of the handler's file, or below, and was not installed there.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rota.worker_service.handlers import function_of

INSTALLED = {"site-packages", "dist-packages"}

ROTA = Path(__file__).resolve().parents[1]
STANDARD = Path(os.__file__).parent


def in_thread(ident: int | None, handler: Callable[..., Any]) -> str | None:
    """The line in which a handler stands that runs on this thread: ``/app/jobs.py:42 in fetch``. None: not known."""
    frames = []
    frame = None if ident is None else sys._current_frames().get(ident)  # noqa: SLF001 - documented
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return _innermost(frames, handler)


def on_thread(ident: int | None) -> str | None:
    """The innermost line of somebody's own code on this thread, whoever has called it. None: there is none."""
    frame = None if ident is None else sys._current_frames().get(ident)  # noqa: SLF001 - documented
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if not file.is_relative_to(STANDARD) and not INSTALLED & {*file.parts} and not _is_rota(file):
            return f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None


def in_coroutine(coroutine: Any, handler: Callable[..., Any]) -> str | None:
    """The line in which a handler stands that this suspended coroutine runs. None: not known."""
    frames: list[FrameType] = []
    while coroutine is not None:
        frame = _first(coroutine, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            frames.append(frame)
        coroutine = _first(coroutine, "cr_await", "gi_yieldfrom", "ag_await")
    return _innermost(reversed(frames), handler)


def _first(found: Any, *names: str) -> Any:
    return next((getattr(found, name) for name in names if hasattr(found, name)), None)


def _innermost(frames: Iterable[FrameType], handler: Callable[..., Any]) -> str | None:
    with suppress(Exception):  # a handler may be any object; a timeout must be told all the same
        folder = Path(inspect.unwrap(function_of(inspect.unwrap(handler))).__code__.co_filename).parent
        for frame in frames:
            file, line = Path(frame.f_code.co_filename), frame.f_lineno
            if file.is_relative_to(folder) and not INSTALLED & {*file.relative_to(folder).parts} and not _is_rota(file):
                return f"{file}:{line} in {frame.f_code.co_name}"
    return None


def _is_rota(file: Path) -> bool:
    return file.resolve().is_relative_to(ROTA)
