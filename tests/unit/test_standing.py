"""Where a handler stands that timed out, and which coroutine blocks the event loop."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rota.worker_service.board import Board
from rota.worker_service.contents import Node
from rota.worker_service.context import NodeContext
from rota.worker_service.executors.base import Call
from rota.worker_service.executors.event_loop import HELD_UP_SECONDS, EventLoopExecutor
from rota.worker_service.executors.threads import ThreadExecutor
from rota.worker_service.signatures import Execution
from tests.harness.processes import wait_until
from tests.harness.told import DEADLINE, Told


def call(handler: Callable[..., Any], execution: Execution) -> Call:
    node = Board(2).watched(Node("REPORT_SEND", "REPORT", 1, handler, execution))
    return Call(node, NodeContext(task_name="daily", instance_id=7, node_type="REPORT_SEND", attempt=2))


def place(function: Callable[..., Any], line: int) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno + line} in {function.__name__}"


def test_a_thread_stands_in_the_innermost_line_of_its_own_code(threads: ThreadExecutor) -> None:
    entered, leave = threading.Event(), threading.Event()

    def inner() -> None:
        entered.set()
        assert leave.wait(DEADLINE)

    def handler(_: NodeContext[Any]) -> None:
        inner()

    told = Told()
    running = threads.start(call(handler, "thread"), told)
    assert entered.wait(DEADLINE)
    wait_until(lambda: running.standing() == place(inner, 2), DEADLINE, "the line in which it waits")
    leave.set()
    assert told.one
    assert running.standing() is None


def test_a_coroutine_stands_where_it_awaits(loop: EventLoopExecutor) -> None:
    entered = threading.Event()

    async def inner() -> None:
        entered.set()
        await asyncio.sleep(1000)

    async def handler(_: NodeContext[Any]) -> None:
        await inner()

    told = Told()
    running = loop.start(call(handler, "async"), told)
    assert entered.wait(DEADLINE)
    wait_until(lambda: running.standing() == place(inner, 2), DEADLINE, "the line in which it waits")
    running.stop()
    assert told.one
    assert running.standing() is None


def test_a_coroutine_that_blocks_stands_where_its_thread_does(loop: EventLoopExecutor) -> None:
    entered, leave = threading.Event(), threading.Event()

    async def handler(_: NodeContext[Any]) -> None:
        entered.set()
        assert leave.wait(DEADLINE)

    told = Told()
    running = loop.start(call(handler, "async"), told)
    assert entered.wait(DEADLINE)
    wait_until(lambda: running.standing() == place(handler, 2), DEADLINE, "the line in which it blocks")
    leave.set()
    assert told.one


def test_a_coroutine_that_blocks_the_event_loop_is_named_once_and_with_how_long(
    loop: EventLoopExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    leave = threading.Event()

    async def handler(_: NodeContext[Any]) -> None:
        assert leave.wait(DEADLINE)

    told = Told()
    loop.start(call(handler, "async"), told)

    def warned() -> bool:
        loop.look()
        return bool(caplog.records)

    wait_until(warned, DEADLINE, "the warning")
    loop.look()
    [record] = caplog.records
    words = record.getMessage()
    assert record.levelno == logging.WARNING
    assert words.startswith("task 'daily', instance 7, attempt 2: REPORT_SEND has blocked the event loop for ")
    assert place(handler, 1) in words
    assert loop.silent_seconds > HELD_UP_SECONDS
    leave.set()
    assert told.one
    wait_until(lambda: len(caplog.records) == 2, DEADLINE, "the end of it")
    assert "REPORT_SEND no longer blocks the event loop, after " in caplog.records[1].getMessage()


@pytest.mark.parametrize("way", ["gather", "a task", "a callback"])
def test_what_a_coroutine_has_started_is_named_when_it_blocks_the_event_loop(
    loop: EventLoopExecutor, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    leave = threading.Event()

    def block() -> None:
        assert leave.wait(DEADLINE)

    async def child() -> None:
        await asyncio.sleep(0)
        block()

    async def handler(_: NodeContext[Any]) -> None:
        if way == "gather":
            await asyncio.gather(asyncio.sleep(0), child())
        elif way == "a task":
            await asyncio.create_task(child())
        else:
            asyncio.get_running_loop().call_later(0, block)
            await asyncio.sleep(0.01)

    told = Told()
    running = loop.start(call(handler, "async"), told)

    def warned() -> bool:
        loop.look()
        return bool(caplog.records)

    wait_until(warned, DEADLINE, "the warning")
    words = caplog.records[0].getMessage()
    whose = "a callback, or a task" if way == "a callback" else "task 'daily', instance 7, attempt 2: REPORT_SEND"
    assert words.startswith(whose)
    assert place(block, 1) in words
    if way != "a callback":
        assert running.standing() == place(block, 1), "a timeout says where it hangs, and not where it waits for that"
    leave.set()
    assert told.one


def test_a_loop_that_goes_on_is_no_reason_to_warn(loop: EventLoopExecutor, caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    async def handler(_: NodeContext[Any]) -> None:
        ended.set()
        await asyncio.sleep(1000)

    running = loop.start(call(handler, "async"), Told())
    assert ended.wait(DEADLINE)
    loop.look()
    running.stop()
    assert caplog.records == []


def test_whatever_is_wrong_with_a_handler_where_it_stands_is_not_known_and_no_error(threads: ThreadExecutor) -> None:
    class Odd:
        """A handler without code of its own."""

        @property
        def __wrapped__(self) -> Any:
            raise RuntimeError

        def __call__(self, _: NodeContext[Any]) -> None:
            entered.set()
            assert leave.wait(DEADLINE)

    entered, leave, told = threading.Event(), threading.Event(), Told()
    running = threads.start(Call(Node("T_N", "T", 1, Odd(), "thread"), NodeContext()), told)
    assert entered.wait(DEADLINE)
    assert running.standing() is None
    leave.set()
    assert told.one
