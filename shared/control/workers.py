"""Workers: list, show, drain and resume them, and compare the versions of the task types that they carry."""

from collections import Counter, defaultdict

from sqlalchemy import Connection

from rota.shared.control import audit
from rota.shared.control.actor import Actor
from rota.shared.control.acts import Act, perform
from rota.shared.control.documents import Document, worker_document
from rota.shared.database.backend import Check
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import NotPossible
from rota.shared.domain.states import WorkerState
from rota.shared.store import loads, node_types, pools, roster, weights, workers


def listed(database: Database, limit: int, *, all_states: bool = False) -> list[Document]:
    """At most ``limit`` workers, the newest first; without dead ones unless ``all_states``."""

    def read(connection: Connection) -> list[Document]:
        rows = roster.listed(connection, limit, all_states=all_states)
        held = pools.held(connection, [row.id for row in rows if row.pools])
        return [worker_document(row, held.get(row.id, {})) for row in rows]

    return database.read(read)


def show(database: Database, name: str) -> Document:
    """A worker that is not dead, with ``task_types``: each that it carries, the version, and its nodes in order.

    Raises NotFound.
    """

    def read(connection: Connection) -> Document:
        row = roster.find(connection, name)
        carried = sorted(node_types.read_versions(row.type_versions).items())
        lists = node_types.lists(connection, set(carried))
        types = [{"type": one[0], "version": one[1], "nodes": lists.get(one, [])} for one in carried]
        held = pools.held(connection, [row.id] if row.pools else [])
        return worker_document(row, held.get(row.id, {})) | {"task_types": types}

    return database.read(read)


def drain(database: Database, actor: Actor, name: str, why: str | None = None) -> Document:
    """Let a worker finish what it runs and take no more; says whether that was changed, and its ``load``.

    What it was assigned goes to other workers. A worker that is ``stopping`` does so by itself. Raises NotFound.
    """
    return _steer(database, actor, name, WorkerState.DRAINING, why)


def resume(database: Database, actor: Actor, name: str, why: str | None = None) -> Document:
    """Let a draining worker take instances again. Raises NotFound, or NotPossible for one that stops."""
    return _steer(database, actor, name, WorkerState.LIVE, why)


def _steer(database: Database, actor: Actor, name: str, state: WorkerState, why: str | None) -> Document:
    def work(connection: Connection, act: Act) -> Document:
        row = roster.find(connection, name)
        stops = row.state == WorkerState.DRAINING and row.reason == workers.STOPPING
        if stops and state is not WorkerState.DRAINING:
            raise NotPossible(f"worker {name!r} is stopping; its process takes no more")
        if changed := row.state != state:
            drains = state is WorkerState.DRAINING
            reason = (why or f"drained by {actor.name}") if drains else None
            workers.steer(connection, row, state, reason, actor.name)
            action = "worker.drain" if drains else "worker.resume"
            audit.on_worker(connection, act, action, row, old={"state": row.state}, new={"state": state.value})
        return {"name": name, "state": state.value, "changed": changed, "stopping": stops, "load": row.current_load}

    return perform(database, actor, why, work)


def check_versions(database: Database) -> Check:
    """Tell which task types live workers carry in several versions, and how many workers each. It only informs."""
    carried: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for worker in database.read(loads.fleet):
        for category, version in worker.versions.items():
            carried[category][version] += 1
    several = {category: versions for category, versions in sorted(carried.items()) if len(versions) > 1}
    if not several:
        return Check("versions", ok=True, found="one of each task type", wanted="one of each task type")
    told = "; ".join(
        f"{category}: {', '.join(f'{version} on {count}' for version, count in versions.most_common())}"
        for category, versions in several.items()
    )
    advice = "a deploy or a canary is under way; rota worker show NAME lists the nodes of a worker"
    return Check("versions", ok=None, found=told, wanted="one of each task type", help=advice)


def check_weights(database: Database) -> Check:
    """Tell which tasks take more slots than any live worker has, or threads of their pool. It only informs."""
    heavy, live = database.read(lambda c: (weights.heavy(c), loads.fleet(c)))
    told = []
    for pool, weight, first, number in heavy:
        sizes = [one.capacity if pool is None else one.pools.get(pool, 0) for one in live]
        if weight > max(sizes, default=0):
            what = "slots" if pool is None else f"threads in its pool {pool!r}"
            names = first + (", …" if number > 1 else "")
            told.append(f"no live worker has {weight} {what}, which {number} task(s) take: {names}")
    wanted = "a live worker with the slots that each task takes"
    if not told:
        return Check("weights", ok=True, found=wanted, wanted=wanted)
    advice = "start a worker with a larger --capacity or pool, or take fewer slots: rota task set NAME --weight N"
    return Check("weights", ok=None, found="; ".join(told), wanted=wanted, help=advice)


def check_pools(database: Database) -> Check:
    """Tell which pools tasks name that no live worker has. It only informs."""
    named, there = database.read(lambda c: (pools.named(c), {pool for one in loads.fleet(c) for pool in one.pools}))
    told = [
        f"no live worker has {pool!r}, which {number} task(s) name: {first}" + (", …" if number > 1 else "")
        for pool, (first, number) in named.items()
        if pool not in there
    ]
    wanted = "a live worker with each pool that a task names"
    if not told:
        return Check("pools", ok=True, found=wanted, wanted=wanted)
    advice = "start a worker whose app declares the pool with app.pool, or clear it: rota task set NAME --no-pool"
    return Check("pools", ok=None, found="; ".join(told), wanted=wanted, help=advice)
