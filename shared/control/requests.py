"""Requests: one-off work that a program asks for in a transaction of its own, and what the scheduler makes of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NoReturn

from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError

from rota.shared.control import audit, business_keys
from rota.shared.control.actor import Actor
from rota.shared.control.acts import WHY_LIMIT, Act, perform
from rota.shared.control.business_keys import Wanted
from rota.shared.control.documents import Document, plain
from rota.shared.database.callers import Insert
from rota.shared.database.constructs import written
from rota.shared.database.refusals import is_locked, is_refusal, sentence
from rota.shared.database.transactions import Database
from rota.shared.domain.business_keys import Asked, Key, checked_key, task_name
from rota.shared.domain.errors import DatabaseAway, DatabaseProblem, InvalidInput, NotFound
from rota.shared.domain.jsontext import UnreadableJson, json_value
from rota.shared.domain.times import is_time, why_no_time
from rota.shared.store import params, requests
from rota.shared.store import tasks as task_rows
from rota.shared.store.requests import Request, What


@dataclass(slots=True)
class HeldUp:
    """The requests that are left for later, since somebody has locked what they write, or what comes before them."""

    ids: set[int] = field(default_factory=set)
    keys: set[tuple[str, Key]] = field(default_factory=set)
    """The type and the key of each."""

    types: set[str] = field(default_factory=set)
    """The types whose task is to be added, and of which somebody has locked the place."""

    def add(self, one: Request) -> None:
        """Leave this one."""
        self.ids.add(one.id)
        self.keys.add((one.type, one.key))

    def let_through(self, some: Sequence[Request]) -> list[Request]:
        """Leave those of some requests that come behind one that is left; returns the others."""
        for one in some:
            if (one.type, one.key) in self.keys or (one.what == What.ONCE and one.type in self.types):
                self.add(one)
        return [one for one in some if one.id not in self.ids]


@dataclass(frozen=True, slots=True)
class _NewTask:
    """The task of a type, where it is not there yet."""

    type: str
    timezone: str = "UTC"
    param: None = None


def once(
    database: Database, actor: Actor, task_type: str, wanted: Wanted, why: str | None = None
) -> tuple[Sequence[Insert], Document]:
    """The INSERT that asks for a run under a key, and what is told of it. Nothing is written.

    Raises as ``business_keys.once`` does.
    """
    [(key, asked)] = _asked_of(database, task_type, [wanted], why).items()
    told = {"at": plain(asked.at), "done": "asked", "instance_id": None, "follows_id": None}
    return _inserts(database, actor, task_type, {key: asked}, why), {**_told(task_type, key), **told}


def once_many(
    database: Database, actor: Actor, task_type: str, wanted: Sequence[Wanted], why: str | None = None
) -> tuple[Sequence[Insert], Document]:
    """The INSERTs that ask for runs under many keys, and how many they are. Nothing is written.

    Raises as ``business_keys.once_many`` does.
    """
    inserts = _inserts(database, actor, task_type, _asked_of(database, task_type, wanted, why), why)
    return inserts, {"type": task_type, "keys": len(inserts), "asked": len(inserts)}


def _asked_of(database: Database, task_type: str, wanted: Sequence[Wanted], why: str | None) -> dict[Key, Asked]:
    _check_why(why)
    try:
        task: Any = database.read(partial(task_rows.find, name=task_name(task_type)))
        business_keys.check_fit(task, task_type)
    except NotFound:
        task = _NewTask(task_type)
    return business_keys.asked_of(database, task, wanted)


def _inserts(
    database: Database, actor: Actor, task_type: str, asked: Mapping[Key, Asked], why: str | None
) -> list[Insert]:
    return [
        requests.insert(
            database,
            Request(0, What.ONCE, task_type, key, one.at, one.param, why or None, actor.name, one.fire_key),
        )
        for key, one in asked.items()
    ]


def cancel(
    database: Database, actor: Actor, task_type: str, given: Key, why: str | None = None
) -> tuple[Sequence[Insert], Document]:
    """The INSERT that asks for the cancel of what is under a key then, and what is told of it. Nothing is written."""
    _check_why(why)
    key = checked_key(given[1], given[0])
    told = {**_told(task_type, key), "instance_id": None, "canceled": False, "asked": True}
    request = Request(0, What.CANCEL, task_type, key, None, None, why or None, actor.name)
    return [requests.insert(database, request)], told


def _check_why(why: str | None) -> None:
    if why is not None and len(why) > WHY_LIMIT:
        raise InvalidInput(f"a reason of {len(why):,} characters is too long; at most {WHY_LIMIT:,} are kept")


def _told(task_type: str, key: Key) -> Document:
    return {"type": task_type, "code": key[0], "key": key[1]}


# What the scheduler does


def apply(
    database: Database,
    found: Sequence[Request],
    refused: Callable[[Request, str], object],
    held_up: HeldUp,
) -> None:
    """Do what requests ask for, in their order, and remove them: many in a transaction, where they are alike.

    One that can never be done is kept with the reason, and told to ``refused``. If somebody has locked what one writes,
    it is left for later, and so are those behind it under its key: ``held_up`` says which. Raises what may pass, such
    as DatabaseAway: then what is left is done later.
    """
    for some in chain.from_iterable(map(_portions, _alike(found))):
        try:
            _apply(database, _with_large_params(database, held_up.let_through(some)), refused, held_up)
        except DatabaseAway:
            raise
        except DatabaseProblem:  # mostly: the task of their type is to be added, and somebody has locked its place
            database.wariness.passed_over([f"the first request of {some[0].type}"])
            if some[0].what == What.ONCE:
                held_up.types.add(some[0].type)
            for one in some:
                held_up.add(one)


def _refuse(database: Database, one: Request, said: str) -> bool:
    """Keep a request with the reason why it can never be done; False if somebody has locked it."""
    return not database.write_by_halves([one], lambda c, _: requests.refuse(c, one.id, said), _raise, _name)


def _name(one: Request) -> str:
    return f"request {one.id}, key {one.key[1]!r} of {one.type},"


def _raise(_: object, error: DBAPIError) -> NoReturn:
    raise error


def _alike(found: Sequence[Request]) -> list[list[Request]]:
    """The requests in their order, parted wherever one asks for something else, or again for a key of its part."""
    parts: list[list[Request]] = []
    keys: set[Key] = set()
    for one in found:
        last = parts[-1][-1] if parts else None
        if last is None or _kind(last) != _kind(one) or one.key in keys:
            parts.append([])
            keys = set()
        parts[-1].append(one)
        keys.add(one.key)
    return parts


def _kind(one: Request) -> tuple[str, str, str, str | None]:
    return one.what, one.type, one.by, one.why


def _portions(some: Sequence[Request]) -> Iterator[list[Request]]:
    """As many at a time as one transaction does: bounded in rows, and in the bytes of their params."""
    least = params.BYTES_AT_ONCE // business_keys.BATCH
    return params.in_portions(some, lambda one: max(least, one.large_param))


def _with_large_params(database: Database, some: list[Request]) -> list[Request]:
    if not any(one.large_param for one in some):
        return some
    return database.read(partial(requests.with_large_params, some=some))


def _work(database: Database, actor: Actor, some: Sequence[Request]) -> Callable[[Connection, Act], None]:
    """What does requests that are alike, in a transaction. Raises InvalidInput if that can never be done."""
    if some[0].what == What.CANCEL:
        return partial(_cancel, some=some, database=database)
    if some[0].what != What.ONCE:
        raise InvalidInput(f"what {some[0].what!r}: once and cancel are right")
    task = business_keys.task_of(database, actor, some[0].type)
    asked = business_keys.asked_of(database, task, [_wanted(one) for one in some])
    return partial(_put, some=some, task=task, asked=asked)


def _apply(
    database: Database,
    some: Sequence[Request],
    refused: Callable[[Request, str], object],
    held_up: HeldUp,
) -> None:
    if not some:
        return
    first = some[0]
    actor = Actor(first.by, "code")
    try:
        perform(database, actor, first.why, _work(database, actor, some), waits=False)
    except InvalidInput as error:
        refusal: str | None = str(error)
    except DBAPIError as error:
        if not is_locked(error) and not is_refusal(error):
            raise
        refusal = None if is_locked(error) else sentence(error)
    else:
        return
    if len(some) > 1:
        middle = len(some) // 2
        _apply(database, some[:middle], refused, held_up)
        _apply(database, some[middle:], refused, held_up)
    elif refusal is None or not _refuse(database, first, refusal):
        held_up.add(first)
        database.wariness.passed_over([_name(first)])
    else:
        refused(first, refusal)


def _wanted(one: Request) -> Wanted:
    if one.due_at is not None and not is_time(one.due_at):
        raise InvalidInput(f"due_at {one.due_at}: {why_no_time(one.due_at)}")
    param = None if one.param is None else json_value(one.param)
    if isinstance(param, UnreadableJson):
        raise InvalidInput(f"param: {param}")
    at = None if one.due_at is None else f"{written(one.due_at)}+00:00"
    return Wanted(one.key[1], at, param, one.key[0], one.fire_key)


def _put(connection: Connection, act: Act, some: Sequence[Request], task: Row[Any], asked: dict[Key, Asked]) -> None:
    """Do those that no other scheduler has done: it may have read fewer of them."""
    left = requests.left(connection, [one.id for one in some])
    if keys := [one.key for one in some if one.id in left]:
        business_keys.put_batch(connection, act, task, {key: asked[key] for key in keys})
        requests.remove(connection, left)


def _cancel(connection: Connection, act: Act, some: Sequence[Request], database: Database) -> None:
    left = requests.left(connection, [one.id for one in some])
    some = [one for one in some if one.id in left]
    if not some:
        return
    found = business_keys.standing_of(connection, act, some[0].type, [one.key for one in some])
    live = [one for one in found.values() if not one.is_free]
    for one in live:
        task = (one.task_id, task_name(one.type))
        new = {**_told(one.type, one.key), "instance_id": one.instance_id}
        audit.on_task(connection, act, "key.cancel", task, old=None, new=new)
    if live:
        business_keys.cancel_live(connection, act, live, database.clock.now())
    requests.remove(connection, left)
