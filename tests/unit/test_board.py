"""What a worker and its guardian tell each other by the memory that they share."""

import asyncio
import threading
from typing import Any

import pytest

from rota.worker_service.board import Board
from rota.worker_service.contents import Node
from rota.worker_service.context import NodeContext
from rota.worker_service.signatures import Execution

ROOM = 3


def node(handler: Any, execution: Execution) -> Node:
    return Node("A_B", "A", 1, handler, execution)


def context(instance: int) -> NodeContext[Any]:
    return NodeContext(param=None, instance_id=instance)


@pytest.mark.parametrize("fails", [False, True])
def test_a_function_is_on_the_board_while_it_runs_with_its_thread(fails: bool) -> None:
    board, seen = Board(ROOM), list[Any]()

    def handler(ctx: NodeContext[Any]) -> int:
        seen.extend(board.entered())
        if fails:
            raise ValueError
        return 5

    watched = board.watched(node(handler, "thread"))
    if fails:
        with pytest.raises(ValueError):  # noqa: PT011
            watched.handler(context(9))
    else:
        assert watched.handler(context(9)) == 5
    assert seen == [(9, threading.get_native_id())]
    assert board.entered() == []


def test_coroutines_are_on_the_board_until_they_end() -> None:
    board = Board(ROOM)

    async def handler(ctx: NodeContext[Any]) -> list[int]:
        await asyncio.sleep(0)
        return sorted(instance for instance, _ in board.entered())

    async def both() -> list[Any]:
        watched: Any = board.watched(node(handler, "async")).handler
        return list(await asyncio.gather(watched(context(1)), watched(context(2))))

    assert asyncio.run(both()) == [[1, 2], [2]]
    assert board.entered() == []


def test_a_handler_for_which_there_is_no_room_runs_all_the_same() -> None:
    board = Board(1)

    def inner(ctx: NodeContext[Any]) -> list[tuple[int, int]]:
        return board.entered()

    def outer(ctx: NodeContext[Any]) -> Any:
        return board.watched(node(inner, "thread")).handler(context(2))

    assert board.watched(node(outer, "thread")).handler(context(1)) == [(1, threading.get_native_id())]
    assert board.entered() == []


def test_what_runs_in_a_child_is_left_as_it_is() -> None:
    one = node(lambda ctx: None, "process")
    assert Board(ROOM).watched(one) is one
