"""The tasks that an app declares: when its worker starts, and again when a newer version of the app is gone."""

import logging
from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType

from sqlalchemy.exc import DBAPIError

from rota.shared.control import limits, tasks
from rota.shared.control.actor import Actor
from rota.shared.database.refusals import is_locked
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, TooHeavy, UnknownTask, UnknownType
from rota.shared.domain.limits import LimitDefinition, unknown_limit
from rota.shared.domain.pools import unknown_pool
from rota.shared.domain.task import TaskDefinition
from rota.shared.domain.versions import version_of
from rota.shared.domain.weights import too_heavy
from rota.shared.settings import Settings
from rota.shared.store import chains, declarations, node_types, pools, shared_limits, weights
from rota.worker_service.authoring import Rota

log = logging.getLogger(__name__)

MISSING = (UnknownType, UnknownTask, TooHeavy)
"""What a task may wait for."""


NO_POOLS: Mapping[str, int] = MappingProxyType({})


class Declarations:
    """Declares an app's tasks. Those that yield to a newer declaration are declared again until they are in force.

    It also watches which versions of apps live workers carry. When one is gone, a canary or a deploy that was rolled
    back, for example, it declares all tasks again: those that the gone version had declared otherwise go back.

    A task of a type that nobody has registered waits until a worker registers it: another app may be deployed later.
    So does one that follows a task which is not there, or that takes more slots than any worker has. Of its own tasks
    those that are followed are declared first. ``own`` are the versions of the app's own task types, by which params
    are checked. ``own_limits`` and ``own_pools`` are the limits and pools that the app declares. Raises InvalidInput
    for tasks that follow each other in a circle.
    """

    def __init__(
        self,
        database: Database,
        definitions: Sequence[TaskDefinition],
        by: str,
        settings: Settings,
        own: Mapping[str, str] = node_types.NO_VERSIONS,
        *,
        own_limits: Sequence[LimitDefinition] = (),
        own_pools: Mapping[str, int] = NO_POOLS,
    ) -> None:
        self._database = database
        self._definitions = followed_first(definitions)
        self._own = own
        self._own_limits, self._own_pools = own_limits, own_pools
        self._actor = Actor(by, "code")
        self._capacity, self._limit = settings.capacity, settings.liveness_seconds
        self._again = settings.heartbeat_seconds
        self._carried: set[str] = set()
        self._yielding: list[TaskDefinition] = []
        self._waiting: dict[str, InvalidInput] = {}
        self._locked: list[TaskDefinition] = []
        self._locked_limits: Sequence[LimitDefinition] = own_limits
        """Those that are still to be declared, since somebody has locked their rows."""

    @property
    def versions(self) -> dict[str, str]:
        """The version of each task's declaration, by the task's name."""
        return {one.name: version_of(one.declared()) for one in self._definitions}

    def declare(self) -> None:
        """Declare the limits, and all tasks but those that wait for what is not there, or that somebody has locked.

        Raises InvalidInput for a task whose param does not fit its type, or whose limit or pool is not there.
        """
        self._carried = self._read_carried()
        fitting = self.check()
        self._declare_limits()
        for name, error in self._waiting.items():
            log.warning("worker: task %r: %s; it is declared when %s", name, error, _until(error))
        self._declare(fitting)
        for one in self._yielding:
            log.warning("worker: task %r: a live worker carries a newer declaration, which stays in force", one.name)

    def check(self) -> list[TaskDefinition]:
        """The tasks whose types are registered, and which follow tasks that are there.

        Raises InvalidInput for a task whose param does not fit its type, or whose limit or pool is not there.
        """
        fitting = self._fitting()
        for name, error in self._waiting.items():
            if not isinstance(error, MISSING):
                raise InvalidInput(f"task {name!r}: {error}") from error
        return fitting

    def look(self) -> float:
        """Declare again what must be; returns the seconds to rest."""
        carried = self._read_carried()
        waited = self._waiting
        fitting = self._fitting() if waited else self._definitions
        is_gone = bool(self._carried - carried)
        undeclared = {one.name for one in (*self._yielding, *self._locked)} | waited.keys()
        try:
            self._declare_limits()
            for one in fitting:
                if is_gone or one.name in undeclared:
                    self._declare_again(one, waited.get(one.name))
        except BaseException:  # of none may be forgotten that it is still to be declared
            self._waiting = waited | self._waiting
            raise
        self._carried = carried
        return self._again if self._yielding or self._locked or self._locked_limits else self._limit

    def _fitting(self) -> list[TaskDefinition]:
        """The tasks that can be declared; the others wait. A type that was registered meanwhile may refuse a param."""
        named = {one.limit_name for one in self._definitions if one.limit_name is not None}
        followed = {name for one in self._definitions for name in one.after or ()}
        catalog, there, known = self._database.read(
            lambda c: (node_types.catalog(c, self._own), shared_limits.there(c, named), chains.there(c, followed))
        )
        there |= {limit.name for limit in self._own_limits}
        pool_names, largest = self._known_pools(), self._largest()
        waited, self._waiting = self._waiting, {}
        fitting = []
        for one in self._definitions:
            try:
                catalog.check(one.type, one.param)
                _check_limit(one, there)
                _check_pool(one, pool_names)
                _check_weight(one, largest)
                _check_followed(one, known)
                fitting.append(one)
                known.add(one.name)
            except InvalidInput as error:
                self._waiting[one.name] = error
                if isinstance(waited.get(one.name), MISSING) and not isinstance(error, MISSING):
                    log.warning("worker: task %r cannot be declared: %s", one.name, error)
        return fitting

    def _known_pools(self) -> set[str]:
        """The pools that the tasks may name: the app's own, and if there are others, those that workers have."""
        named = {one.pool for one in self._definitions if one.pool is not None}
        others = self._database.read(pools.registered) if named - set(self._own_pools) else set()
        return others.union(self._own_pools)

    def _largest(self) -> dict[str | None, int]:
        """The slots of this worker (None), and the threads of its pools; if a task takes more, those of the largest."""
        own: dict[str | None, int] = {None: self._capacity}
        own.update(self._own_pools.items())
        if all(one.weight <= own.get(one.pool, 1) for one in self._definitions):
            return own
        others = self._database.read(weights.largest)
        return {pool: max(own.get(pool, 0), others.get(pool, 0)) for pool in own.keys() | others.keys()}

    def _declare_limits(self) -> None:
        self._locked_limits = [one for one in self._locked_limits if not self._is_limit_declared(one)]

    def _is_limit_declared(self, one: LimitDefinition) -> bool:
        """Declare a limit; False if somebody has locked it."""
        try:
            limits.declare(self._database, self._actor, one)
        except DBAPIError as error:
            if not is_locked(error):
                raise
            self._database.wariness.passed_over([f"the declaration of limit {one.name!r}"])
            return False
        return True

    def _declare(self, definitions: Sequence[TaskDefinition]) -> None:
        for one in definitions:
            if self._locked or self._locked_limits:  # it may need one of those, and then waits for that
                self._declare_again(one, None)
            elif not self._is_declared(one):
                self._yielding.append(one)

    def _declare_again(self, one: TaskDefinition, waited: InvalidInput | None) -> None:
        """Declare a task while the worker runs. One that is refused by what others have written holds up no other."""
        self._yielding = [other for other in self._yielding if other is not one]
        self._locked = [other for other in self._locked if other is not one]
        try:
            if not self._is_declared(one):
                self._yielding.append(one)
        except InvalidInput as error:
            if str(waited) != str(error):
                log.warning("worker: task %r cannot be declared: %s", one.name, error)
            self._waiting[one.name] = error
        except BaseException:
            self._locked.append(one)
            raise

    def _is_declared(self, one: TaskDefinition) -> bool:
        """Declare a task; False if it yields. One that somebody has locked is noted."""
        try:
            return tasks.declare(self._database, self._actor, one, liveness_seconds=self._limit)
        except DBAPIError as error:
            if not is_locked(error):
                raise
            self._database.wariness.passed_over([f"the declaration of task {one.name!r}"])
            self._locked.append(one)
            return True

    def _read_carried(self) -> set[str]:
        return self._database.read(lambda c: declarations.apps_carried(c, self._limit))


def _until(missing: InvalidInput) -> str:
    if isinstance(missing, UnknownType):
        return "a worker has registered its type"
    return "such a worker has registered" if isinstance(missing, TooHeavy) else "that is declared"


def _check_limit(task: TaskDefinition, there: Collection[str]) -> None:
    if task.limit_name is not None and task.limit_name not in there:
        raise InvalidInput(f"{unknown_limit(task.limit_name, there)}, or app.limit")


def _check_pool(task: TaskDefinition, known: Collection[str]) -> None:
    if task.pool is not None and task.pool not in known:
        raise InvalidInput(unknown_pool(task.pool, known))


def _check_weight(task: TaskDefinition, largest: Mapping[str | None, int]) -> None:
    if task.weight > (most := largest.get(task.pool, 1)):
        raise TooHeavy(too_heavy(task.weight, most, task.pool))


def _check_followed(task: TaskDefinition, known: Collection[str]) -> None:
    if missing := [name for name in task.after or () if name not in known]:
        raise UnknownTask(f"after {missing[0]!r}: there is no such task")


def followed_first(definitions: Sequence[TaskDefinition]) -> list[TaskDefinition]:
    """The tasks, each behind those of them that it follows.

    Raises InvalidInput if they follow each other in a circle.
    """
    by_name = {one.name: one for one in definitions}
    order = TopologicalSorter({one.name: [n for n in one.after or () if n in by_name] for one in definitions})
    try:
        return [by_name[name] for name in order.static_order()]
    except CycleError as error:
        circle = " after ".join(reversed(error.args[1]))
        raise InvalidInput(f"after: the tasks would follow each other in a circle: {circle}") from None


def check_tasks(database: Database, app: Rota, by: str, settings: Settings) -> None:
    """Check what an app declares, as its workers do when they start: one that is refused would be started for ever.

    It registers the app's node types. Raises InvalidInput for a task whose param does not fit its type, or whose limit
    or pool is not there.
    """
    own = [node.declaration() for node in app.nodes.values()]
    database.write(lambda c: node_types.register(c, own, by))
    declarations_of(app, database, by, settings, node_types.versions_of(own)).check()


def declarations_of(app: Rota, database: Database, by: str, settings: Settings, own: Mapping[str, str]) -> Declarations:
    """What an app declares, with its limits and pools. ``own``: the versions of its task types."""
    return Declarations(database, app.schedules, by, settings, own, own_limits=app.limits, own_pools=app.pools)
