"""One-off work under business keys: ask for it, look for it, cancel it."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control import audit, instances, known_types, tasks
from rota.shared.control.actor import Actor
from rota.shared.control.acts import Act, perform
from rota.shared.control.documents import Document, key_document, plain
from rota.shared.database.constructs import bound
from rota.shared.database.transactions import Database
from rota.shared.domain.business_keys import Asked, Done, Key, KeyFilter, Standing, checked_key, task_name
from rota.shared.domain.errors import InvalidInput, NameTaken, NotFound, RotaError
from rota.shared.domain.jsontext import json_text
from rota.shared.domain.states import InstanceStatus, OverlapPolicy
from rota.shared.domain.times import read_time, zone_of
from rota.shared.store import business_keys, found_keys, params, standing_keys
from rota.shared.store import tasks as task_rows
from rota.shared.store.business_keys import Call
from rota.shared.store.transitions import canceling
from rota.shared.waking.schedulers import wake_schedulers

BATCH = 1000
"""So many calls at most are written in one transaction."""

CANCELED_AT_ONCE = 500
"""So many keys are canceled in one transaction."""

TRIES_WITHOUT_LOCK = 3
"""So often an act relies on it that nobody changes what it has read."""

SHOWN = 20
"""So many of the keys that a beginning finds are shown before they are canceled."""

REASON = "canceled by its key"

POLICIES = (OverlapPolicy.ALLOW, OverlapPolicy.QUEUE)
"""A task with another one would cancel a run because one of another key runs."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for under one key: ``at`` is a time as text, by default now; ``param`` a JSON object.

    Without a param the run gets that of the task.
    """

    key: str
    at: str | None = None
    param: Any = None
    code: str = ""
    fire_key: str | None = None
    """That of the run, by which ``run_of`` finds it, also long after its end; given once only."""


def once(database: Database, actor: Actor, task_type: str, wanted: Wanted, why: str | None = None) -> Document:
    """Run a task type once under a key; what waits under that key is moved, and what runs is followed.

    Returns what was ``done``: ``added``, ``moved``, or ``kept`` until what runs has ended; and ``instance_id``, the
    run, which is None for what is kept. Raises InvalidInput, InvalidParam, UnknownType.

        once(database, actor, "END_PROMOTION", Wanted("product-42", "2026-12-24T20:00"))
    """
    task = task_of(database, actor, task_type)
    [(key, asked)] = asked_of(database, task, [wanted]).items()

    def work(connection: Connection, act: Act) -> tuple[Call, int | None]:
        [call] = _calls(connection, act, task, {key: asked})
        business_keys.put(connection, [call], actor.name)
        instance_id = _instance_of(connection, call)
        new = {**_told(task_type, key), "at": plain(asked.at), "done": call.done.value}
        given = {} if wanted.param is None else {"param": wanted.param}
        audit.on_task(connection, act, "key.once", (task.id, task.name), old=None, new=new | given)
        return call, instance_id

    call, instance_id = perform(database, actor, why, work)
    wake_schedulers(database, asked.at)
    follows = call.standing.instance_id if call.standing is not None and call.done is Done.KEPT else None
    done = {"done": call.done.value, "instance_id": instance_id, "follows_id": follows}
    return {**_told(task_type, key), "at": plain(asked.at), **done}


def _instance_of(connection: Connection, call: Call) -> int | None:
    """The run of a call that this transaction has written; None for what is kept.

    Once it is committed, another call may give it another time, by which nobody would find it.
    """
    if call.adds:
        return found_keys.of_fire(connection, call.task_id, call.asked.at, call.fire_key)
    return call.standing.instance_id if call.standing is not None and call.done is Done.MOVED else None


def run_of(database: Database, task_type: str, at: datetime, fire_key: str) -> Document | None:
    """The run that was asked for with a fire key, at a time in naive UTC; as ``instances.show``, of replays the last.

    None if it is not there: it was not asked for, is not yet written, or was deleted.
    """
    found = database.read(lambda c: found_keys.newest_of_fire(c, task_name(task_type), at, fire_key))
    return None if found is None else instances.show(database, found)


def once_many(
    database: Database,
    actor: Actor,
    task_type: str,
    wanted: Sequence[Wanted],
    why: str | None = None,
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> Document:
    """``once`` for many keys, some in each transaction; returns how many were ``added``, ``moved`` and ``kept``.

    Of several for one key the last counts. All are checked before any is written. Interrupted and begun again it adds
    nothing twice, unless a run has begun meanwhile. Raises as ``once`` does.
    """
    task = task_of(database, actor, task_type)
    asked = asked_of(database, task, wanted)
    done: Counter[Done] = Counter()
    for batch in _batches(asked):
        done += perform(database, actor, why, partial(put_batch, task=task, batch=batch))
        wake_schedulers(database, min(one.at for one in batch.values()))
        progress(done.total())
    return {"type": task_type, "keys": len(asked), **{one.value: done[one] for one in Done}}


def _batches(asked: Mapping[Key, Asked]) -> Iterator[dict[Key, Asked]]:
    """As many at a time as one transaction writes: bounded in rows, and in the bytes of their params as JSON texts."""
    least = params.BYTES_AT_ONCE // BATCH

    def size(item: tuple[Key, Asked]) -> int:
        param = item[1].param
        return least if param is None else max(least, len(bound([[param]])))

    return map(dict, params.in_portions(asked.items(), size))


def put_batch(connection: Connection, act: Act, task: Row[Any], batch: Mapping[Key, Asked]) -> Counter[Done]:
    """Write what is asked for under keys, with one row of the audit; returns what was done, and how often."""
    calls = _calls(connection, act, task, batch)
    business_keys.put(connection, calls, act.actor.name)
    done = Counter(call.done for call in calls)
    numbers = sorted(number for _, number in batch)
    said = {"type": task.type, "keys": len(batch), "first": numbers[0], "last": numbers[-1]}
    new = said | {one.value: number for one, number in done.items()}
    audit.on_task(connection, act, "key.once_many", (task.id, task.name), old=None, new=new)
    return done


def _calls(connection: Connection, act: Act, task: Row[Any], asked: Mapping[Key, Asked]) -> list[Call]:
    standing = standing_of(connection, act, task.type, asked)
    return [
        Call(task.type, key, one, standing.get(key), task.id, one.fire_key or f"{act.key}-{number}")
        for number, (key, one) in enumerate(asked.items())
    ]


def standing_of(connection: Connection, act: Act, task_type: str, keys: Collection[Key]) -> dict[Key, Standing]:
    """What stands under keys. An act that others have disturbed again and again locks the rows before it reads."""
    if act.tries >= TRIES_WITHOUT_LOCK:
        standing_keys.lock(connection, task_type, keys)
    return standing_keys.standing(connection, task_type, keys)


def task_of(database: Database, actor: Actor, task_type: str) -> Row[Any]:
    """The task under which the one-off work of a type runs; it is added if it is not there.

    Raises UnknownType, and InvalidInput for a task of that name that is of another type, or that could cancel a run
    because of another one.
    """
    name = task_name(task_type)
    find = partial(task_rows.find, name=name)
    try:
        task = database.read(find)
    except NotFound:
        fields = {"name": name, "type": task_type, "overlap_policy": OverlapPolicy.ALLOW}
        with suppress(NameTaken):  # another process has just added it
            tasks.add(database, actor, fields)
        task = database.read(find)
    check_fit(task, task_type)
    return task


def check_fit(task: Row[Any], task_type: str) -> None:
    """Raise InvalidInput for a task that is not fit for the one-off work of a type."""
    name = task.name
    if task.type != task_type:
        raise InvalidInput(f"one-off work of type {task_type!r} runs as task {name!r}, which is of type {task.type!r}")
    if task.overlap_policy not in list(POLICIES):
        raise InvalidInput(
            f"task {name!r} has overlap_policy {task.overlap_policy!r}, by which a run of one key could end that of "
            f"another; one-off work takes {' or '.join(POLICIES)}"
        )


def asked_of(database: Database, task: Row[Any], wanted: Iterable[Wanted]) -> dict[Key, Asked]:
    """What is asked for, by key; of several for one key the last one."""
    now, zone = database.clock.now(), zone_of(task.timezone)
    listed = list(wanted)

    def read(connection: Connection) -> dict[Key, Asked]:
        check = partial(known_types.check, database, connection, task.type)
        return dict(_one_asked(one, now, zone, check, needs_param=task.param is None) for one in listed)

    return database.read(read)


def _one_asked(
    one: Wanted, now: datetime, zone: Any, check: Callable[[Any], None], *, needs_param: bool
) -> tuple[Key, Asked]:
    key = checked_key(one.key, one.code)
    try:
        moment = now if one.at is None else read_time(one.at, zone)[0]
        if one.param is not None or needs_param:
            check(one.param)
    except RotaError as error:
        raise type(error)(f"key {one.key!r}: {error}") from None
    return key, Asked(moment, None if one.param is None else json_text(one.param), one.fire_key)


def listed(database: Database, chosen: KeyFilter, limit: int, after: Document | None = None) -> list[Document]:
    """At most ``limit`` keys that wait or run, or whose runs have just ended.

    ``after`` is the last document of the page before. Raises InvalidInput for ``begins`` or ``contains`` without a
    type, and for an empty ``contains``.
    """
    if chosen.is_by_number and chosen.type is None:
        raise InvalidInput("say of which type: by the beginning or a part of a key they are found within one type")
    if chosen.contains == "":
        raise InvalidInput("contains '': give a part of the key")
    if chosen.is_by_number:
        last = "" if after is None else str(after["key"])
        rows = database.read(lambda c: found_keys.by_number(c, chosen, last, limit))
    else:
        place = None if after is None else (datetime.fromisoformat(after["at"]).replace(tzinfo=None), int(after["id"]))
        rows = database.read(lambda c: found_keys.by_time(c, chosen, place, limit))
    return [key_document(row) for row in rows]


def cancel(database: Database, actor: Actor, task_type: str, given: Key, why: str | None = None) -> Document:
    """Cancel what waits under a key, a code and a number, or ask the worker to stop what runs.

    What is kept as the next run is dropped. Returns ``canceled`` and ``asked``.
    Raises NotFound if nothing waits or runs under the key.
    """
    key = checked_key(given[1], given[0])

    def work(connection: Connection, act: Act) -> Standing:
        one = standing_of(connection, act, task_type, [key]).get(key)
        if one is None or one.is_free:
            raise NotFound(f"nothing waits or runs under key {key[1]!r} of {task_type}; rota key list shows the keys")
        cancel_live(connection, act, [one], database.clock.now())
        new = {**_told(task_type, key), "instance_id": one.instance_id}
        audit.on_task(connection, act, "key.cancel", (one.task_id, task_name(task_type)), old=None, new=new)
        return one

    one = perform(database, actor, why, work)
    runs = one.status is InstanceStatus.RUNNING
    return {**_told(task_type, key), "instance_id": one.instance_id, "canceled": not runs, "asked": runs}


def cancel_all(
    database: Database,
    actor: Actor,
    chosen: KeyFilter,
    why: str | None = None,
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> Document:
    """Cancel all keys of one type and code that begin with ``chosen.begins``, some in each transaction.

    Returns how many were ``canceled``, and how many workers were ``asked``. Raises InvalidInput for an empty beginning.
    """
    checked_beginning(chosen)
    last, canceled, asked = "", 0, 0
    while True:
        page = partial(found_keys.by_number, chosen=chosen, after=last, limit=CANCELED_AT_ONCE)
        keys = [(row.code, row.number) for row in database.read(page)]
        if not keys:
            return {"canceled": canceled, "asked": asked}
        done = perform(database, actor, why, partial(_cancel_page, chosen=chosen, keys=keys, database=database))
        running = sum(one.status is InstanceStatus.RUNNING for one in done)
        canceled, asked, last = canceled + len(done) - running, asked + running, keys[-1][1]
        progress(canceled + asked)


def checked_beginning(chosen: KeyFilter) -> None:
    """Raise InvalidInput if a choice of what to cancel names no type, or if its beginning is empty."""
    if not chosen.type or not chosen.begins:
        raise InvalidInput("an empty beginning would be every key; give the type, and how the keys begin")


def _cancel_page(
    connection: Connection, act: Act, chosen: KeyFilter, keys: Sequence[Key], database: Database
) -> list[Standing]:
    task_type = str(chosen.type)
    found = standing_of(connection, act, task_type, keys)
    live = [one for one in found.values() if not one.is_free]
    if live:
        cancel_live(connection, act, live, database.clock.now())
        numbers = sorted(one.key[1] for one in live)
        new = {"type": task_type, "keys": len(live), "first": numbers[0], "last": numbers[-1]}
        task = (live[0].task_id, task_name(task_type))
        audit.on_task(connection, act, "key.cancel_all", task, old=None, new=new)
    return live


def cancel_live(connection: Connection, act: Act, standings: Sequence[Standing], now: datetime) -> None:
    """Cancel what waits and free its keys; ask for the end of what runs, whose keys stay until then.

    Where a run has just ended and the next one is kept, that waits.
    """
    by = act.actor.name
    waiting = [one for one in standings if one.status is not InstanceStatus.RUNNING]
    running = [one for one in standings if one.status is InstanceStatus.RUNNING]
    business_keys.forget_next(connection, running, by)
    business_keys.remove(connection, waiting, expected=True)
    canceling.cancel_waiting(connection, [one.instance_id for one in waiting if not one.has_ended], REASON, by)
    for one in (one for one in running if not one.cancel_is_requested):
        canceling.request_cancel(connection, one.instance_id, now, REASON)


def _told(task_type: str, key: Key) -> Document:
    return {"type": task_type, "code": key[0], "key": key[1]}
