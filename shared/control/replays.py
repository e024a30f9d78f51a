"""Replays: run ended instances once more, by their ids or all that a filter finds."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control import audit
from rota.shared.control.actor import Actor
from rota.shared.control.acts import Act, perform
from rota.shared.control.documents import Document, instance_in_list, plain
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, NotPossible, RotaError
from rota.shared.domain.replaying import start_of
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.task_filter import EVERY_TASK, TaskFilter
from rota.shared.domain.times import read_time, written_utc, zone_of
from rota.shared.store import chain_runs, instances, node_types, replays, tasks
from rota.shared.waking.schedulers import wake_schedulers

FIRST_SHOWN = 10
"""So many of those that a filter finds are shown."""


@dataclass(frozen=True, slots=True)
class Again:
    """How instances are to run once more: with this ``param`` in place of their own, and from this node on.

    ``chain``: what follows their tasks then runs once more, too.
    """

    param: Mapping[str, Any] | None = None
    from_node: str | None = None
    chain: bool = False


AS_BEFORE = Again()
"""With their own params, and from the first node on."""


@dataclass(frozen=True, slots=True)
class ReplayFilter:
    """Which instances are to be replayed, the newest run of each fire.

    ``since`` and ``until`` are for their ``schedule_datetime``: from the one on, and before the other. A time without
    an offset is local time in the zone of ``task``, or in UTC. ``of_tasks`` chooses several tasks in place of ``task``.

        ReplayFilter(status="failed", task="nightly", since="2026-11-19T00:00")
    """

    status: str = InstanceStatus.FAILED.value
    task: str | None = None
    since: str | None = None
    until: str | None = None
    of_tasks: TaskFilter = EVERY_TASK


@dataclass(frozen=True, slots=True)
class Found:
    """What a filter finds.

    ``number``: how many can be replayed; ``first``: the first of them; ``left_out``: how many cannot be, and ``why``:
    what is said of the first of those; ``last``: the greatest id of an instance at that time.
    """

    number: int
    first: list[Document]
    left_out: int
    why: str | None
    last: int


@dataclass(slots=True)
class Replayed:
    """What has become of those that a filter found.

    ``done``: how many were replayed; ``first``: the first of these; ``left_out``: how many could not be, and ``why``:
    what was said of the first of those.
    """

    done: int = 0
    first: list[Document] = field(default_factory=list)
    left_out: int = 0
    why: str | None = None


def replay(
    database: Database,
    actor: Actor,
    instance_ids: Sequence[int],
    why: str | None = None,
    *,
    again: Again = AS_BEFORE,
) -> list[Document]:
    """Run all of these ended instances once more, or none; returns the new instances in the same order.

    Each new instance has the nominal time of the old one. They come without large params and results
    (``documents.instance_in_list``). Raises NotFound, InvalidParam, and NotPossible if one has not ended, or if a node
    before the one to begin with has not succeeded.
    """

    def one(connection: Connection, act: Act, instance_id: int) -> Document:
        by = actor.name
        made = instances.replay(connection, instance_id, by, param=again.param, from_node=again.from_node)
        if again.chain:
            _require_no_shards(instances.in_list(connection, [made]))
        [row] = _recorded_replays(connection, act, [made], again)
        return instance_in_list(row) | {"nodes": [], "failed_attempts": []}

    def work(connection: Connection, act: Act) -> list[Document]:
        _check(connection, instance_ids, again)
        return [one(connection, act, number) for number in instance_ids]

    made = perform(database, actor, why, work)
    wake_schedulers(database, database.clock.now())
    return made


def _require_no_shards(made: Iterable[Row[Any]]) -> None:
    for row in made:
        if row.shard_index is not None:
            raise NotPossible(f"instance {row.replay_of} is a shard; its chain follows its parent, so replay that")


def find(database: Database, chosen: ReplayFilter, again: Again = AS_BEFORE) -> Found:
    """What ``replay_found`` would run once more. It reads a page at a time.

    Raises NotFound for a task that does not exist, and InvalidInput for a text that is no time.
    """
    last = database.read(instances.newest_id)
    number, left_out, why, first = 0, 0, None, list[int]()
    for page in _pages(database, chosen, last):
        starts, refusals = database.read(partial(_starts, ids=page, again=again)) if page else ({}, [])
        first += islice(starts, FIRST_SHOWN - len(first))
        number += len(starts)
        left_out += len(refusals)
        why = why or next(iter(refusals), None)
    rows = database.read(lambda c: instances.in_list(c, first))
    return Found(number, [instance_in_list(row) for row in rows], left_out, why, last)


def replay_found(
    database: Database,
    actor: Actor,
    chosen: ReplayFilter,
    last: int,
    why: str | None = None,
    *,
    again: Again = AS_BEFORE,
    progress: Callable[[Replayed], None] = lambda done: None,
) -> Replayed:
    """Run those once more that a filter finds, with ids up to ``last``, some in each transaction.

    Each transaction looks again, under a lock, whether an instance is still the newest run of its fire. So nothing is
    replayed twice if this is interrupted and begun again, or begun by two at once. What cannot be replayed is left out
    and counted. ``progress`` is told after each transaction. Raises as ``find`` does.
    """
    done = Replayed()
    for page in _pages(database, chosen, last):
        for some in database.read(partial(replays.portions, ids=page, param=again.param)) if page else ():
            _add(done, *perform(database, actor, why, partial(_replay_some, ids=some, again=again)))
            wake_schedulers(database, database.clock.now())
            progress(done)
    return done


def _add(done: Replayed, made: Sequence[Document], refusals: Sequence[str]) -> None:
    done.done += len(made)
    done.first += islice(made, FIRST_SHOWN - len(done.first))
    done.left_out += len(refusals)
    done.why = done.why or next(iter(refusals), None)


def _replay_some(
    connection: Connection, act: Act, ids: Sequence[int], again: Again
) -> tuple[list[Document], list[str]]:
    starts, refusals = _starts(connection, replays.hold(connection, ids), again)
    if not starts:
        return [], refusals
    _check(connection, list(starts), again)
    made = replays.insert_replays(connection, starts, act.actor.name, again.param)
    rows = _recorded_replays(connection, act, made.values(), again)
    return [instance_in_list(row) for row in rows], refusals


def _recorded_replays(connection: Connection, act: Act, made: Collection[int], again: Again) -> list[Row[Any]]:
    """Mark these new instances if what follows is to run once more, and record them; returns them as of a list."""
    if again.chain:
        chain_runs.mark_again(connection, made)
    rows = instances.in_list(connection, made)
    for row in rows:
        audit.on_instance(connection, act, "instance.replay", row, old=None, new=_recorded(row, again))
    return rows


def _starts(connection: Connection, ids: Sequence[int], again: Again) -> tuple[dict[int, int | None], list[str]]:
    """The sequence to begin with, by instance; and why the others cannot be replayed."""
    name = again.from_node
    nodes = {} if name is None else replays.nodes_of(connection, ids)
    starts: dict[int, int | None] = {}
    refusals: list[str] = []
    for instance_id in ids:
        try:
            starts[instance_id] = None if name is None else start_of(instance_id, nodes[instance_id], name)
        except RotaError as error:
            refusals.append(str(error))
    return starts, refusals


def _check(connection: Connection, instance_ids: Sequence[int], again: Again) -> None:
    """Check a new param for the tasks of these instances.

    Raises InvalidParam, and InvalidInput for one that does not go with ``from_node``.
    """
    if again.param is None:
        return
    if again.from_node is not None and "nodes" in again.param:
        raise InvalidInput("a param that lists its nodes goes with a replay from the start, not with from_node")
    catalog = node_types.catalog(connection)
    for task_type in tasks.types_of_instances(connection, instance_ids):
        catalog.check(task_type, again.param)


def _recorded(row: Row[Any], again: Again) -> dict[str, Any]:
    new = {"replays": row.replay_of, "schedule_datetime": plain(row.schedule_datetime)}
    more = {"from_sequence": row.from_sequence, "param": again.param, "chain": again.chain or None}
    return new | {name: value for name, value in more.items() if value is not None}


def _pages(database: Database, chosen: ReplayFilter, last: int) -> Iterator[list[int]]:
    status = InstanceStatus(chosen.status)
    name, of_tasks = chosen.task, chosen.of_tasks
    if name is None and of_tasks.is_every and status is InstanceStatus.SUCCEED:
        raise InvalidInput("status succeed: say of which task, since there is no index of all that succeeded")
    if name is not None and not of_tasks.is_every:
        raise InvalidInput(f"task {name!r} says which alone: leave it out, or else owner, group and tags")
    task = None if name is None else database.read(lambda c: tasks.find(c, name))
    zone = zone_of(None if task is None else task.timezone)

    def moment(text: str | None) -> datetime | None:
        return None if text is None else read_time(text, zone)[0]

    wanted = replays.Wanted(status)
    if task is not None:
        wanted = replays.Wanted(status, {task.id})
    elif not of_tasks.is_every:
        wanted = replays.Wanted(status, set(database.read(lambda c: tasks.ids(c, of_tasks))))
    since, until = moment(chosen.since), moment(chosen.until)
    if since is not None and until is not None and since >= until:
        end = written_utc(until)
        raise InvalidInput(f"since {written_utc(since)}: it is not before the time that until says, {end}")
    wanted = replace(wanted, since=since, until=until)
    yield from replays.pages(database, wanted, last)
