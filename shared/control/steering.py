"""Steering one task: which fires are next, skip the next one, or set it to another time."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control import audit
from rota.shared.control.actor import Actor
from rota.shared.control.acts import Act, perform
from rota.shared.control.documents import Document, fires_after, plain, plan_of
from rota.shared.control.tasks import Outcome
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, NotPossible, RotaError
from rota.shared.domain.planning import Skipped
from rota.shared.domain.states import InstanceStatus, SkipReason
from rota.shared.domain.steering import NextFire, Written, passed_over, upcoming
from rota.shared.domain.times import read_time, written_local, written_utc, zone_of
from rota.shared.store import follow_ups, skips, steering, tasks
from rota.shared.store.steering import Steered, WrittenFires

FIRES_SHOWN = 5


def next_fires(database: Database, name: str) -> Document:
    """The next fires of a task, with those that were skipped or set by hand; and why there are none.

    Raises NotFound.
    """
    now = database.clock.now()
    row, written = database.read(lambda connection: _read(connection, name))
    return _document(row, written, now)


def skip(database: Database, actor: Actor, name: str, *, fire: str | None = None, why: str | None = None) -> Outcome:
    """Skip the next fire of a task that has not begun; returns the fires after it.

    ``fire``: its time. If another is the next, nothing is done. Raises NotFound, NotPossible, InvalidInput.
    """
    return _steer(database, actor, name, (None, fire), why)


def set_at(
    database: Database, actor: Actor, name: str, at: str, *, fire: str | None = None, why: str | None = None
) -> Outcome:
    """Let the next fire of a task run at another time; fires of the plan up to that time are skipped.

    ``fire``: its time as planned. If another is the next, nothing is done. Raises NotFound, NotPossible, InvalidInput.
    """
    return _steer(database, actor, name, (at, fire), why)


def _steer(
    database: Database, actor: Actor, name: str, asked: tuple[str | None, str | None], why: str | None
) -> Outcome:
    """The fire is chosen before the act. So two people who ask for the same at the same time do it once."""
    now = database.clock.now()
    row, written = database.read(lambda connection: _read(connection, name))
    zone = zone_of(row.timezone)
    (at, remark), (expected, _) = ((None, None) if text is None else read_time(text, zone) for text in asked)
    if at is not None and at <= now:
        raise InvalidInput(f"at {written_local(at, zone)}: it has passed; rota task run {name} --at runs it now")
    chosen = _chosen(row, written, now, expected)

    def work(connection: Connection, act: Act) -> bool:
        task, present = _read(connection, name)
        return _write(connection, act, task, present, (chosen, at))

    changed = perform(database, actor, why, work)
    told = {"fire": _time(chosen, row), "at": None if at is None else _time(at, row), "changed": changed}
    return Outcome(next_fires(database, name) | told, [remark] if remark else [])


def _chosen(row: Row[Any], written: Mapping[datetime, Written], now: datetime, expected: datetime | None) -> datetime:
    """The own time of the next fire."""
    found = upcoming(fires_after(row, plan_of(row), now), written, now, 1)
    if expected is not None and _is_skipped(written.get(expected)):
        return expected
    if not found:
        raise NotPossible(f"{row.name!r} has no next fire; rota task run {row.name} --at runs it at a time")
    if expected not in (None, found[0].moment):
        shown = written_local(found[0].moment, zone_of(row.timezone))
        raise NotPossible(f"the next fire of {row.name!r} that has not begun is {shown}; nothing was changed")
    return found[0].moment


def _write(
    connection: Connection, act: Act, row: Row[Any], written: WrittenFires, asked: tuple[datetime, datetime | None]
) -> bool:
    """Steer a fire: its own time, and when it is to run (None: not at all). False if it is so already."""
    moment, at = asked
    one = written.get(moment)
    if at is None and _is_skipped(one):
        return False
    if one is not None and not one.waits:
        shown = written_local(moment, zone_of(row.timezone))
        raise NotPossible(f"the fire of {shown} is {one.status} already (instance {one.id}); nothing was changed")
    inputs, by = plan_of(row), _name(act.actor)
    later = () if inputs.follows_ends else inputs.fires_after(moment)
    others = [] if at is None else passed_over(later, written, at)
    reasons = dict.fromkeys(others, "skipped: the fire before it was set to a later time")
    reasons[moment] = "skipped by hand" if at is None else "set by hand to another time"
    there = {each: written[each].id for each in reasons if each in written}
    fires = {each: Steered(at if each == moment else None, reason, there.get(each)) for each, reason in reasons.items()}
    following = None if inputs.follows_ends else inputs.next_after(max(fires))
    steering.put(connection, row, fires, following, by)
    if inputs.follows_ends:
        follow_ups.mark(connection, [(row.id, moment)])
    if dropped := others if at is not None else [moment]:
        stretch = Skipped(SkipReason.BY_HAND, min(dropped), max(dropped), len(dropped))
        skips.record(connection, [(row.id, stretch)])
    new = {"fire": plain(moment), **({} if at is None else {"at": plain(at)}), "skipped": len(dropped)}
    audit.on_task(connection, act, "task.skip" if at is None else "task.next", (row.id, row.name), old=None, new=new)
    return True


def _name(actor: Actor) -> str:
    """Who is written beside the fire. A person named as the schedulers' rows are would be taken for a scheduler."""
    return f"{actor.name} ({actor.face})" if actor.name == "scheduler" else actor.name


def _is_skipped(one: Written | None) -> bool:
    return one is not None and one.status == InstanceStatus.CANCELED and one.attempt == 0


def _read(connection: Connection, name: str) -> tuple[Row[Any], WrittenFires]:
    row = tasks.find(connection, name)
    return row, steering.newest(connection, row.id)


def _time(moment: datetime, row: Row[Any]) -> Document:
    return {"utc": written_utc(moment), "local": written_local(moment, zone_of(row.timezone))}


def _document(row: Row[Any], written: Mapping[datetime, Written], now: datetime) -> Document:
    remark = row.plan_error
    found: list[NextFire] = []
    try:
        found = upcoming(fires_after(row, plan_of(row), now), written, now, FIRES_SHOWN)
    except RotaError as error:
        remark = f"it cannot fire: {error}"
    skipped = {moment: one for moment, one in written.items() if moment > now and _is_skipped(one)}
    lines = [_fire(row, fire) for fire in found]
    lines += [_fire(row, NextFire(moment, moment, one)) for moment, one in skipped.items()]
    lines.sort(key=lambda line: (line["due"]["utc"], line["fire"]["utc"]))
    if not found and remark is None:
        remark = "it has no next fire"
    return {"name": row.name, "status": row.status, "timezone": row.timezone, "next_fires": lines, "remark": remark}


def _fire(row: Row[Any], fire: NextFire) -> Document:
    one = fire.written
    return {
        "fire": _time(fire.moment, row),
        "due": _time(fire.due_at, row),
        "instance": None if one is None else one.id,
        "status": "planned" if one is None else one.status,
        "reason": None if one is None else one.reason,
    }
