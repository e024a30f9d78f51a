"""The executors for threads and for coroutines: each call's end is told once, whatever the handler does."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from rota import Fail, Retry
from rota.shared.clock import HostTimer
from rota.worker_service.contents import Node
from rota.worker_service.context import NodeContext
from rota.worker_service.executors import event_loop
from rota.worker_service.executors.base import Call, Executor, NoThread, Outcome
from rota.worker_service.executors.event_loop import EventLoopExecutor
from rota.worker_service.executors.threads import ThreadExecutor
from rota.worker_service.signatures import Execution
from tests.harness.processes import wait_until
from tests.harness.told import DEADLINE, Told


def call(handler: Callable[..., Any], execution: Execution, model: Any = None, **param: Any) -> Call:
    return Call(Node("T_N", "T", 1, handler, execution, param_model=model), NodeContext(param=param))


class Param(BaseModel):
    how: str

    @field_validator("how")
    @classmethod
    def _checked(cls, how: str) -> str:
        if how == "exit":
            sys.exit(3)
        if how == "block":
            blocked.set()
            assert leave.wait(DEADLINE)
        return f"{how} on {threading.current_thread().name}"


blocked, leave = threading.Event(), threading.Event()
"""A validator that blocks, and may go on."""


@pytest.fixture(params=["thread", "async"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Told]:
    """Runs a plain body as the handler of one kind, then of the other."""
    executor: Executor = request.getfixturevalue({"thread": "threads", "async": "loop"}[request.param])

    def start(body: Callable[[], Any]) -> Told:
        async def coroutine(_: Any) -> Any:
            return body()

        told = Told()
        handler = coroutine if request.param == "async" else lambda _: body()
        executor.start(call(handler, request.param), told)
        return told

    return start


def raises(error: BaseException) -> Callable[[], Any]:
    def body() -> Any:
        raise error

    return body


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


def test_a_result_is_told_with_its_times(run: Callable[[Callable[[], Any]], Told]) -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    told = run(lambda: {"rows": 42})
    outcome = told.one
    assert outcome.result == {"rows": 42}
    assert outcome.failure is None
    assert before <= told.entered <= outcome.left <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Mute()]
)
def test_whatever_a_handler_raises_is_its_failure(
    run: Callable[[Callable[[], Any]], Told], error: BaseException
) -> None:
    outcome = run(raises(error)).one
    assert not outcome.stopped
    assert outcome.failure is not None
    assert outcome.failure.type == type(error).__name__
    assert run(lambda: 1).one.result == 1  # and it works on


@pytest.fixture(params=["thread", "async"])
def typed(request: pytest.FixtureRequest) -> Callable[..., Told]:
    """Runs a handler of one kind, then of the other, that returns its param, whose model is ``Param``."""
    executor: Executor = request.getfixturevalue({"thread": "threads", "async": "loop"}[request.param])

    async def coroutine(ctx: NodeContext[Param]) -> str:
        return ctx.param.how

    def function(ctx: NodeContext[Param]) -> str:
        return ctx.param.how

    def start(**param: Any) -> Told:
        told = Told()
        handler = coroutine if request.param == "async" else function
        told.running = executor.start(call(handler, request.param, Param, **param), told)
        return told

    return start


def test_a_handlers_own_word_on_its_failure_is_told(run: Callable[[Callable[[], Any]], Told]) -> None:
    def raising(error: Exception) -> Callable[[], Any]:
        def body() -> Any:
            raise error

        return body

    later = run(raising(Retry("not yet", in_=5))).one.failure
    never = run(raising(Fail("no"))).one.failure
    lost = run(raising(ConnectionResetError("no"))).one.failure
    assert later is not None
    assert never is not None
    assert lost is not None
    assert (later.error, later.final, later.kinds, later.retry_in) == ("Retry: not yet", False, (), 5)
    assert (never.error, never.final) == ("Fail: no", True)
    assert list(lost.kinds) == ["ConnectionResetError", "ConnectionError", "OSError", "Exception", "BaseException"]


def test_a_param_is_checked_where_its_handler_runs(typed: Callable[..., Told]) -> None:
    assert "checked on handler" in typed(how="checked").one.result


def test_a_param_that_does_not_fit_is_the_nodes_failure_for_good(typed: Callable[..., Told]) -> None:
    told = typed(how=7)
    assert told.failure == ("InvalidParam", "param of T_N: how: Input should be a valid string")
    assert told.one.failure is not None
    assert told.one.failure.final


def test_a_validator_that_exits_is_the_nodes_failure_and_no_threads(typed: Callable[..., Told]) -> None:
    assert typed(how="exit").failure == ("SystemExit", "SystemExit: 3")
    assert "checked on handler" in typed(how="checked").one.result


def test_a_validator_that_blocks_holds_up_its_own_thread_and_can_be_stopped(threads: ThreadExecutor) -> None:
    blocked.clear()
    leave.clear()
    stuck, other = Told(), Told()
    stuck.running = threads.start(call(lambda _: 1, "thread", Param, how="block"), stuck)
    assert blocked.wait(DEADLINE)
    threads.start(call(lambda _: 2, "thread"), other)
    assert other.one.result == 2
    stuck.stop()
    assert stuck.one.stopped
    leave.set()


def test_a_stopped_thread_is_told_at_once_and_lingers_until_it_returns(threads: ThreadExecutor) -> None:
    entered, leave = threading.Event(), threading.Event()

    def handler(ctx: NodeContext[Any]) -> int:
        entered.set()
        assert leave.wait(DEADLINE)
        return 1

    told, one = Told(), call(handler, "thread")
    running = threads.start(one, told)
    assert entered.wait(DEADLINE)
    running.stop()
    assert (told.outcomes[0].stopped, told.outcomes[0].lingers) == (True, True)
    assert one.context.cancel_requested
    running.stop()
    assert len(told.outcomes) == 1
    leave.set()
    wait_until(lambda: len(told.outcomes) == 2, DEADLINE, "the thread's return")
    assert (told.outcomes[1].stopped, told.outcomes[1].lingers) == (True, False)


@pytest.mark.parametrize("looks", [False, True])
def test_a_thread_that_did_not_know_of_its_stop_has_finished(threads: ThreadExecutor, *, looks: bool) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def handler(ctx: NodeContext[Any]) -> int:
        entered.set()
        assert go_on.wait(DEADLINE)
        return 7 if not looks or ctx.cancel_requested else 8

    told = Told()
    running = threads.start(call(handler, "thread"), told)
    assert entered.wait(DEADLINE)
    running.stop()
    go_on.set()
    wait_until(lambda: len(told.outcomes) == 2, DEADLINE, "the end")
    end = told.outcomes[1]
    assert (end.stopped, end.finished, end.result) == (True, not looks, 7)


def test_a_coroutine_that_is_stopped_twice_may_still_tidy_up(loop: EventLoopExecutor) -> None:
    entered, cleaning, leave, tidied = (threading.Event() for _ in range(4))

    async def handler(ctx: NodeContext[Any]) -> None:
        entered.set()
        try:
            await asyncio.sleep(DEADLINE)
        finally:
            cleaning.set()
            while not leave.is_set():  # noqa: ASYNC110 - another thread sets it
                await asyncio.sleep(0.001)
            tidied.set()

    async def at_once(ctx: NodeContext[Any]) -> None: ...

    told, other = Told(), Told()
    running = loop.start(call(handler, "async"), told)
    assert entered.wait(DEADLINE)
    running.stop()
    assert cleaning.wait(DEADLINE)
    running.stop()
    loop.start(call(at_once, "async"), other)
    assert other.one.result is None  # so the loop has seen the second stop
    leave.set()
    assert told.one.stopped
    assert tidied.is_set()


def test_a_call_stopped_before_a_thread_takes_it_never_runs_and_does_not_linger() -> None:
    executor = ThreadExecutor(1, HostTimer())
    leave = threading.Event()
    first, second, third, ran = Told(), Told(), Told(), []
    executor.start(call(lambda _: leave.wait(DEADLINE), "thread"), first)
    executor.start(call(lambda _: ran.append(1), "thread"), second).stop()
    assert (second.one.stopped, second.one.lingers) == (True, False)
    leave.set()
    executor.start(call(lambda _: 3, "thread"), third)
    assert third.one.result == 3
    assert ran == []
    assert len(second.outcomes) == 1
    executor.close()


def test_closed_threads_tell_all_their_calls_and_take_no_more() -> None:
    executor = ThreadExecutor(1, HostTimer())
    leave, entered = threading.Event(), threading.Event()
    running, waiting, late = Told(), Told(), Told()

    def handler(ctx: object) -> None:
        entered.set()
        leave.wait(DEADLINE)

    executor.start(call(handler, "thread"), running)
    executor.start(call(lambda _: 1, "thread"), waiting)
    assert entered.wait(DEADLINE)
    executor.close()
    executor.start(call(lambda _: 1, "thread"), late)
    assert [told.one.stopped for told in (running, waiting, late)] == [True] * 3
    leave.set()
    wait_until(lambda: len(running.outcomes) == 2, DEADLINE, "the thread's return")


def test_no_more_threads_than_asked_for_and_none_without_need(threads: ThreadExecutor) -> None:
    leave = threading.Event()
    names: list[str] = []

    def handler(_: Any) -> None:
        names.append(threading.current_thread().name)
        leave.wait(DEADLINE)

    tolds = [Told() for _ in range(5)]
    for told in tolds:
        threads.start(call(handler, "thread"), told)
    wait_until(lambda: len(names) == 2, DEADLINE, "two calls at once")
    leave.set()
    for told in tolds:
        assert told.one.failure is None
    assert len(set(names)) == 2


def test_calls_that_come_together_are_each_taken_by_a_thread_that_was_idle(threads: ThreadExecutor) -> None:
    together = threading.Barrier(2, timeout=DEADLINE)
    for _ in range(50):
        tolds = [Told(), Told()]
        for told in tolds:
            threads.start(call(lambda _: together.wait() >= 0, "thread"), told)
        assert [told.one.result for told in tolds] == [True, True]


class ScarceTimer(HostTimer):
    """A timer of a machine that has so many threads left."""

    left = 0

    def thread(self, name: str, target: Callable[[], object]) -> threading.Thread:
        thread = super().thread(name, target)
        if self.left <= 0:
            thread.start = refuse_a_thread  # type: ignore[method-assign]
        self.left -= 1
        return thread


def refuse_a_thread() -> None:
    raise RuntimeError("can't start new thread")


def test_a_call_that_the_machine_has_no_thread_for_is_refused_and_never_runs() -> None:
    timer, ran = ScarceTimer(), []
    executor = ThreadExecutor(1, timer)
    told, after = Told(), Told()
    with pytest.raises(NoThread, match="can't start new thread"):
        executor.start(call(lambda _: ran.append("refused"), "thread"), told)
    timer.left = 1
    executor.start(call(lambda _: ran.append("after"), "thread"), after)
    assert after.one.failure is None
    executor.close()
    assert (ran, told.outcomes) == (["after"], [])


def test_a_done_that_raises_costs_no_thread(threads: ThreadExecutor) -> None:
    def broken(_: Outcome) -> None:
        raise RuntimeError("broken")

    for _ in range(4):
        threads.start(call(lambda _: 1, "thread"), broken)
    told = Told()
    threads.start(call(lambda _: 2, "thread"), told)
    assert told.one.result == 2


def test_a_stopped_coroutine_is_canceled_and_may_clean_up(loop: EventLoopExecutor) -> None:
    entered, cleaned = threading.Event(), []

    async def handler(_: Any) -> None:
        entered.set()
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    told = Told()
    running = loop.start(call(handler, "async"), told)
    assert entered.wait(DEADLINE)
    running.stop()
    assert told.one.stopped
    assert cleaned == [True]


def test_a_coroutine_that_swallows_its_cancellation_is_canceled_until_it_ends(
    loop: EventLoopExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "CANCEL_AGAIN_SECONDS", 0.01)
    entered = threading.Event()
    swallowed: list[int] = []

    async def handler(_: Any) -> None:
        entered.set()
        while len(swallowed) < 3:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                swallowed.append(1)
        await asyncio.sleep(1000)

    told, after = Told(), Told()
    running = loop.start(call(handler, "async"), told)
    assert entered.wait(DEADLINE)
    running.stop()
    wait_until(lambda: swallowed, DEADLINE, "its first cancellation")
    running.kill()
    assert told.one.stopped
    assert len(swallowed) == 3

    async def undisturbed(_: Any) -> int:
        await asyncio.sleep(0.03)
        return 1

    loop.start(call(undisturbed, "async"), after)
    assert after.one.result == 1


def test_a_coroutine_that_blocks_the_loop_makes_it_silent_until_it_goes_on(loop: EventLoopExecutor) -> None:
    go_on = threading.Event()

    async def handler(_: Any) -> None:
        assert go_on.wait(DEADLINE)

    loop.start(call(handler, "async"), told := Told())
    wait_until(lambda: loop.silent_seconds > 2 * event_loop.STAMP_SECONDS, DEADLINE, "the loop to be silent")
    go_on.set()
    assert told.one.result is None
    wait_until(lambda: loop.silent_seconds < event_loop.STAMP_SECONDS, DEADLINE, "the loop to go on")


@pytest.mark.parametrize("looks", [False, True])
def test_a_coroutine_that_blocks_the_loop_past_its_stop_was_stopped_though_it_returns(
    loop: EventLoopExecutor, *, looks: bool
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    async def handler(ctx: Any) -> int:
        entered.set()
        assert go_on.wait(DEADLINE)
        return int(looks and ctx.cancel_requested)

    running = loop.start(call(handler, "async"), told := Told())
    assert entered.wait(DEADLINE)
    running.stop()
    go_on.set()
    assert (told.one.stopped, told.one.finished, told.one.result) == (True, not looks, int(looks))


def test_a_coroutine_that_blocks_the_loop_past_its_stop_and_fails_was_stopped(loop: EventLoopExecutor) -> None:
    entered, go_on = threading.Event(), threading.Event()

    async def handler(_: Any) -> None:
        entered.set()
        assert go_on.wait(DEADLINE)
        raise ValueError("late")

    running = loop.start(call(handler, "async"), told := Told())
    assert entered.wait(DEADLINE)
    running.stop()
    go_on.set()
    assert (told.one.stopped, told.one.finished) == (True, False)


def test_a_coroutine_stopped_before_it_begins_is_told_and_never_entered(loop: EventLoopExecutor) -> None:
    entered, release, blocking, ran = Told(), threading.Event(), threading.Event(), []

    async def block(_: Any) -> None:
        blocking.set()
        release.wait(DEADLINE)

    async def handler(_: Any) -> None:
        ran.append(1)

    loop.start(call(block, "async"), Told())
    assert blocking.wait(DEADLINE)
    loop.start(call(handler, "async"), entered).stop()
    assert entered.outcomes == []  # the loop is blocked: it is told when it is free again
    release.set()
    assert entered.one.stopped
    assert ran == []


def test_what_starts_later_begins_when_it_is_told_and_wakes_the_loop_once(
    loop: EventLoopExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    wake = loop._loop.call_soon_threadsafe

    def noted(*what: Any) -> Any:
        woken.append(1)
        return wake(*what)

    async def handler(_: Any) -> int:
        return 1

    monkeypatch.setattr(loop._loop, "call_soon_threadsafe", noted)
    loop.begin()
    told = [Told() for _ in range(5)]
    for one in told:
        loop.start(call(handler, "async"), one, later=True)
    assert (woken, [one.outcomes for one in told]) == ([], [[]] * 5)
    loop.begin()
    assert [one.one.result for one in told] == [1] * 5
    assert woken == [1]
    loop.begin()
    assert woken == [1]


def test_what_was_to_start_later_and_is_stopped_before_is_told_and_never_entered(loop: EventLoopExecutor) -> None:
    ran: list[int] = []

    async def handler(_: Any) -> None:
        ran.append(1)

    stopped, other = Told(), Told()
    loop.start(call(handler, "async"), stopped, later=True).stop()
    loop.start(call(handler, "async"), other)
    assert (stopped.one.stopped, other.one.stopped, ran) == (True, False, [1])


def test_what_was_to_start_later_is_told_stopped_by_a_loop_that_has_ended() -> None:
    async def handler(_: Any) -> None: ...

    loop, told = EventLoopExecutor(HostTimer()), Told()
    loop.start(call(handler, "async"), told, later=True)
    loop.close()
    loop._thread.join(DEADLINE)
    loop.begin()
    assert told.one.stopped


def test_what_starts_later_on_a_thread_starts(threads: ThreadExecutor) -> None:
    told = Told()
    threads.start(call(lambda _: 1, "thread"), told, later=True)
    threads.begin()
    assert told.one.result == 1


def test_a_failure_while_cleaning_up_is_a_stop(loop: EventLoopExecutor) -> None:
    entered = threading.Event()

    async def handler(_: Any) -> None:
        entered.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            raise RuntimeError("while cleaning up") from None

    told = Told()
    running = loop.start(call(handler, "async"), told)
    assert entered.wait(DEADLINE)
    running.stop()
    assert told.one.stopped


def test_a_task_left_behind_that_exits_does_not_end_the_loop(
    loop: EventLoopExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        raise SystemExit(1)

    async def handler(_: Any) -> None:
        left = asyncio.ensure_future(leave())
        while not left.done():  # noqa: ASYNC110 - to await it would raise here
            await asyncio.sleep(0)

    first, second = Told(), Told()
    loop.start(call(handler, "async"), first)
    assert first.one.failure is None
    loop.start(call(handler, "async"), second)
    assert second.one.failure is None
    assert "ended the event loop" in caplog.text


def test_a_closed_loop_tells_all_its_calls_and_takes_no_more() -> None:
    executor = EventLoopExecutor(HostTimer())
    entered = threading.Event()

    async def patient(_: Any) -> None:
        entered.set()
        await asyncio.sleep(1000)

    async def stubborn(_: Any) -> None:
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                continue

    tolds = [Told(), Told(), Told()]
    executor.start(call(stubborn, "async"), tolds[0])
    executor.start(call(patient, "async"), tolds[1])
    assert entered.wait(DEADLINE)
    executor.close()
    executor.close()
    running = executor.start(call(patient, "async"), tolds[2])
    assert [told.one.stopped for told in tolds] == [True] * 3
    running.stop()
    assert len(tolds[2].outcomes) == 1
    executor._thread.join(DEADLINE)
    gc.collect()  # asyncio complains of the stubborn one when it is collected: here, not in another test
