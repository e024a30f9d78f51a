"""The params of pending instances and of due tasks: read where they are needed, some megabytes at a time, not kept."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from rota.scheduler_service.giving import Placed
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, RotaError, UnknownType
from rota.shared.domain.jsontext import json_text, json_value
from rota.shared.domain.nodes import Catalog, PlannedNode
from rota.shared.domain.planning import PlannedTask
from rota.shared.domain.states import REASON_LIMIT
from rota.shared.store import params
from rota.shared.store.pending import Pending

Listed = Sequence[PlannedNode] | RotaError | None
Read = Callable[..., dict[int, str | None]]


def with_lists(
    database: Database, page: Sequence[Pending], catalog: Catalog, pinned: Container[int]
) -> Sequence[Pending]:
    """The page; an instance whose param lists its own nodes has them in ``listed``, without their params.

    Of most instances no param is read, because the page says that it lists no nodes.
    """
    asking = [p for p in page if p.may_list_nodes and (p.attempt == 0 or p.id not in pinned)]
    if not asking:
        return page
    own = {p.id: p.param_size or 0 for p in asking if p.has_own_param}
    tasks = {p.task_id: p.param_size or 0 for p in asking if not p.has_own_param}
    of_own = _lists(database, catalog, params.of_instances, own)
    of_tasks = _lists(database, catalog, params.of_tasks, tasks)
    lists = {p.id: of_own.get(p.id) if p.has_own_param else of_tasks.get(p.task_id) for p in asking}
    return [replace(p, listed=lists[p.id]) if p.id in lists else p for p in page]


def _lists(database: Database, catalog: Catalog, read: Read, sizes: Mapping[int, int]) -> dict[int, Listed]:
    lists: dict[int, Listed] = {}
    for some in params.in_portions(sizes, sizes.__getitem__):
        texts = database.read(partial(read, ids=some))
        lists.update((row_id, _listed(catalog, text)) for row_id, text in texts.items())
    return lists


def _listed(catalog: Catalog, text: str | None) -> Listed:
    try:
        nodes = None if text is None else catalog.listed(json_value(text))
    except RotaError as error:
        return error
    return nodes and [replace(node, param=None) for node in nodes]


def portions(placed: Sequence[Placed]) -> Iterator[list[Placed]]:
    """What was placed, as much at a time as one transaction reads and writes of params."""
    return params.in_portions(placed, lambda one: one.instance.param_size or 0)


def with_params(
    database: Database, placed: Sequence[Placed], catalog: Catalog
) -> tuple[Sequence[Placed], dict[int, str]]:
    """Give a portion what its params say: the task's param to pin, and the nodes that a param lists, with their params.

    Returns also the instances to refuse, with the reasons: a param that is no JSON for Python is refused alone. What
    lists other nodes than it was placed by, since somebody has edited the param, is left to the next pass.
    """
    own = [one.instance.id for one in placed if one.instance.has_own_param and not one.keeps]
    tasks = {p.task_id for p, *_ in placed if p.param_size is not None and not p.has_own_param}
    if not own and not tasks:
        return placed, {}
    of_own, of_tasks = database.read(lambda c: (params.of_instances(c, own), params.of_tasks(c, tasks)))
    ready: list[Placed] = []
    refused: dict[int, str] = {}
    pinned: dict[int, str | None] = {}
    for one in placed:
        p = one.instance
        text = of_own.get(p.id) if p.has_own_param else of_tasks.get(p.task_id)
        try:
            value = None if text is None else json_value(text)
            nodes = one.nodes if one.keeps else _with_node_params(one, catalog.listed(value))
            if not p.has_own_param and p.task_id not in pinned:
                pinned[p.task_id] = None if value is None else json_text(value)
        except UnknownType:
            continue
        except InvalidInput as error:
            refused[p.id] = str(error)[:REASON_LIMIT]
            continue
        if nodes is not None:
            ready.append(one._replace(nodes=nodes, param=None if p.has_own_param else pinned[p.task_id]))
    return ready, refused


def _with_node_params(one: Placed, listed: Sequence[PlannedNode] | None) -> Sequence[PlannedNode] | None:
    """The nodes that were placed, with the params that are listed; None if they are not those that are listed now.

    Raises InvalidInput for a node's param that cannot be written as JSON.
    """
    if listed is None:
        return one.nodes if one.instance.listed is None else None
    for node in listed:
        if node.param is not None:
            json_text(node.param)
    return listed if [node.type for node in listed] == [node.type for node in one.nodes] else None


def of_due(database: Database, tasks: Sequence[PlannedTask]) -> Iterator[Sequence[PlannedTask]]:
    """The tasks of a batch with their large params, as many at a time as one statement reads of those.

    A task that SQL has deleted meanwhile, or whose large param it has removed, is left to the next tick.
    """
    for some in params.in_portions(tasks, lambda task: task.large_param):
        large = [task.id for task in some if task.large_param]
        texts = database.read(partial(params.of_tasks, ids=large)) if large else {}
        missing = {i for i in large if texts.get(i) is None}
        yield [replace(t, param=texts[t.id]) if t.large_param else t for t in some if t.id not in missing]
