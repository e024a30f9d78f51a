"""The rows of one worker. Every write is fenced by the worker's id: each start of a worker gets a new id."""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.shared.clock import FAR_SECONDS
from rota.shared.database.later import Unexpected
from rota.shared.database.refusals import is_locked, is_refusal, sentence
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import DatabaseProblem
from rota.shared.domain.states import REASON_LIMIT
from rota.shared.store import assignments, crowds, handing_on, polling, recovery, reports, runs
from rota.shared.store.claims import Claims
from rota.shared.store.crowds import Beside
from rota.shared.store.node_types import NodeTypeNames
from rota.shared.store.overlap import SkipCandidate
from rota.shared.store.polling import Polled, Queue
from rota.shared.store.reports import Report
from rota.shared.store.runs import Claim, Wanted
from rota.shared.store.transitions import canceling, keeping
from rota.shared.waking.schedulers import wake_schedulers

log = logging.getLogger(__name__)


CLAIM_LIMIT = timedelta(seconds=0.25)
CLAIM_LIMIT_ROUND_TRIPS = 10
"""Nothing is claimed longer before it is due, by the database's clock, than this and so many round trips. Workers claim
later (``pacing.claim_before``)."""

Held = tuple[int, int]
"""An instance that is ``running`` under this worker: id and attempt."""


class WorkerRows:
    """The store's verbs for one worker. Each may raise DatabaseProblem, when the database does not come back in time.

    rows = WorkerRows(database, worker_id)
    rows.claim({7}, clock.now())
    """

    def __init__(self, database: Database, worker_id: int) -> None:
        self._database = database
        self.worker_id = worker_id
        self._types = NodeTypeNames()
        self._kept = database.kept()

    @property
    def away(self) -> bool:
        """Whether the database is away, as far as this process has seen."""
        return self._database.outage.lasts

    def queue(self, *, pool: str | None = None, pools: Iterable[str] = ()) -> "QueueRows":
        """What is assigned to the worker: all, or what it was given beside these pools, or for this pool."""
        return QueueRows(self._database, Queue(self.worker_id, pool, tuple(pools)))

    def claim(
        self,
        ids: Collection[int],
        now: datetime,
        skip_candidates: Mapping[int, SkipCandidate] = runs.NO_SKIP_CANDIDATES,
        *,
        room: float = math.inf,
    ) -> Iterator[Claim]:
        """Claim assigned instances, in one round trip or two, and then those whose claim needs several.

        The runs of each claim are to be started before the next one is asked for. ``room``: for how many bytes of large
        params and results the worker has room.
        """
        round_trip = self._database.clock.round_trip()
        ahead = CLAIM_LIMIT + CLAIM_LIMIT_ROUND_TRIPS * timedelta(seconds=round_trip)
        is_far = round_trip >= FAR_SECONDS
        claims = Claims(self._database, self.worker_id, self._types, ahead, from_afar=is_far, room=room)
        return claims.claim(ids, now, skip_candidates)

    def skip(self, instance_id: int, reason: str) -> bool:
        """Cancel an instance that is assigned to the worker and that no claim can start.

        Returns whether that is done: it is not while somebody has locked the instance.
        """

        def work(connection: Connection, instance_ids: Sequence[int]) -> None:
            canceling.skip(connection, self.worker_id, dict.fromkeys(instance_ids, reason[:REASON_LIMIT]))

        return not self._by_halves([instance_id], work)

    def held(self) -> list[tuple[int, int, bool]]:
        """The instances ``running`` under the worker: id, attempt, whether somebody asked to cancel it."""
        return self._database.read(lambda c: recovery.held(c, self.worker_id))

    def why_canceled(self, instance_ids: Sequence[int]) -> dict[int, str]:
        """Why somebody asked to cancel each of these instances, which run, as far as he has said so."""
        return self._database.read(lambda c: recovery.why_canceled(c, instance_ids))

    def report(self, batch: Sequence[Report]) -> set[int]:
        """Write reports; returns the ids of instances that do not belong to the worker any more.

        It raises for what somebody has locked, as ``Database.write_if_free`` does.
        """
        work = partial(reports.report, worker_id=self.worker_id, reports=batch)
        try:  # in one packet, relying on the worker's holding all of its runs; else in several steps
            lost = self._database.write_if_free(partial(work, at_once=True))
        except Unexpected:
            lost = self._database.write_if_free(work)
        self._wake_for_retries(batch)
        return lost

    def report_last(self, batch: Sequence[Report]) -> tuple[set[int], set[int]]:
        """Write the last reports of a worker that ends; returns the ids of ``report``, and those of the instances of
        which nothing could be written.

        It waits for what somebody has locked when the others are written.
        """
        of_runs: dict[int, list[Report]] = {}
        for report in batch:
            of_runs.setdefault(report.instance_id, []).append(report)
        lost: set[int] = set()
        refused: set[int] = set()

        def write(connection: Connection, some: Sequence[int]) -> None:
            lost.difference_update(some)
            lost.update(reports.report(connection, self.worker_id, [one for i in some for one in of_runs[i]]))

        def refuse(instance_id: int, error: DBAPIError) -> None:
            log.error("the last report of instance %d could not be stored: %s", instance_id, sentence(error))
            refused.add(instance_id)

        left = self._database.write_by_halves(sorted(of_runs), write, refuse, "the last report of instance {}".format)
        lost.difference_update(left, refused)
        if left:
            try:
                self._database.write(partial(write, some=left))
                left = []
            except (DatabaseProblem, DBAPIError) as error:
                log.warning("the last reports of instances %s could not be written: %s", left, sentence(error))
        self._wake_for_retries(batch)
        return lost, refused.union(left)

    def note_lock(self) -> None:
        """Somebody has still locked what a report writes: for another minute no report waits for a lock."""
        self._database.wariness.met()

    def report_and_hand_on(self, batch: Sequence[Report], following: Sequence[Wanted]) -> tuple[set[int], set[int]]:
        """Write reports, and claim what follows their runs; returns the ids of ``report``, and of what it claimed.

        For one thread alone, which calls ``give_back`` when it rests.
        """
        if handing_on.is_one_turn(batch, following):
            if self._turned(batch, following):
                return set(), {following[0].id}
            return self.report(batch), set()
        try:
            work = partial(handing_on.report, worker_id=self.worker_id, batch=batch, following=following)
            started = self._database.write_undisturbed(work, self._kept)
        except Unexpected:
            started = None
        if started is None:  # somebody holds a row of what follows: the reports do not wait for that
            return self.report(batch), set()
        self._wake_for_retries(batch)
        return set(), {row.id for row, node in zip(following, started, strict=True) if node.rows}

    def give_back(self) -> None:
        """Give back the connection that is kept while ``report_and_hand_on`` is called again and again."""
        if self._kept is not None:
            self._kept.give_back()

    def _turned(self, batch: Sequence[Report], following: Sequence[Wanted]) -> bool:
        """Write the success of one run together with the claim of what follows, if that can be done."""
        work = partial(handing_on.succeed, worker_id=self.worker_id, batch=batch, following=following)
        try:
            return bool(self._database.write_undisturbed(work, self._kept))
        except Unexpected:
            return False
        except DBAPIError as error:
            if not is_refusal(error):
                raise
            return False  # the first slot is another's; or the result is refused, which the report alone says

    def _wake_for_retries(self, batch: Sequence[Report]) -> None:
        """Wake the schedulers if runs of these reports are to be retried soon."""
        retries = [at for report in batch if (at := report.retry_at) is not None]
        if retries:
            wake_schedulers(self._database, min(retries))

    def locked(self, instance_ids: Collection[int]) -> set[int]:
        """Those of the instances whose rows, or whose nodes' rows, somebody else has locked now."""
        return self._database.read(lambda c: reports.locked(c, instance_ids))

    def hand_back(self, held: Sequence[Held], reason: str, *, unstarted: bool = False, waits: bool = False) -> int:
        """Make these pending again, with a reason; returns how many of them still belonged to the worker.

        ``unstarted``: the worker has entered no handler of theirs. Unless it ``waits`` for what somebody has locked,
        that stays ``running``, and ``held`` tells it.
        """
        if not held:
            return 0
        back = partial(reports.hand_back, worker_id=self.worker_id, reason=reason, unstarted=unstarted)
        try:
            return self._database.write_if_free(partial(back, held=held, at_once=True))
        except Unexpected:  # the worker has lost some of them
            pass
        except DBAPIError as error:
            if not is_locked(error):
                raise
        attempts, done = dict(sorted(held)), dict[int, int]()

        def work(connection: Connection, some: Sequence[int]) -> None:
            done[some[0]] = back(connection, held=[(i, attempts[i]) for i in some])

        left = self._by_halves(list(attempts), work)
        for one in left:
            done.pop(one, None)
        if left and waits:
            self._database.write(partial(work, some=left))
        return sum(done.values())

    def free_slots(self, instance_ids: Collection[int]) -> Collection[int]:
        """Free the overlap slots that these ended instances kept while this worker's threads ran.

        Returns those of which somebody has locked something: they keep theirs.
        """
        return self._by_halves(sorted(instance_ids), lambda c, some: keeping.free_own(c, self.worker_id, some))

    def disown(self, strangers: Sequence[Held], reason: str) -> tuple[int, int]:
        """Fail the strangers that may run at most once, and hand back the others; returns how many of each.

        What somebody has locked stays ``running``.
        """
        attempts, ended = dict(sorted(strangers)), set[int]()

        def work(connection: Connection, some: Sequence[int]) -> None:
            ended.difference_update(some)
            ended.update(recovery.disown(connection, self.worker_id, [(i, attempts[i]) for i in some], reason))

        left = self._by_halves(list(attempts), work)
        ended.difference_update(left)
        return len(ended), self.hand_back([one for one in strangers if one[0] not in {*ended, *left}], reason)

    def _by_halves(self, instance_ids: Sequence[int], work: Callable[[Connection, Sequence[int]], object]) -> list[int]:
        """Write of these instances; returns those of which somebody has locked something, and nothing is written."""
        return self._database.write_by_halves(instance_ids, work, None, "instance {}".format)

    def hand_back_assigned(self, batch: int) -> None:
        """Hand back all instances that are assigned to the worker and not claimed, a batch at a time."""
        while (
            self._database.write(lambda c: assignments.take_back_assigned(c, worker_id=self.worker_id, limit=batch))
            == batch
        ):
            pass


class QueueRows:
    """What is assigned to a worker, for its own slots or for a pool of its. Each verb may raise DatabaseProblem."""

    def __init__(self, database: Database, queue: Queue) -> None:
        self._database = database
        self._queue = queue

    def poll(self, horizon: datetime, limit: int) -> Polled:
        """The instances that are due by ``horizon`` (naive UTC), at most ``limit``."""
        return self._database.read(lambda c: polling.poll(c, self._queue, horizon, limit))

    def beside(self, waiting: Sequence[int], priority: int, horizon: datetime) -> Beside:
        """What waits beside crowds; ``waiting``: the ids of those of a priority that have waited longest."""
        return self._database.read(lambda c: crowds.beside(c, self._queue, waiting, priority, horizon))
