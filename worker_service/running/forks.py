"""Forks: nodes of one run that run beside each other, since none of them waits for another one of them.

A fork begins where several nodes of a run may begin, and ends when none of its branches runs any more. Each branch is
an ``Active`` of its own, with its own limit, stop and handler. A node that succeeds is reported at once, and those that
have waited for it begin when that is committed. When one has failed, or was stopped, no other begins, and those that
run go on to their ends. Then the run goes on, ends or is retried by the code for a run whose nodes stand in a row.
"""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.store.reports import NodeReport, Report
from rota.shared.store.runs import NodeRun
from rota.worker_service.executors.base import NoThread, Outcome
from rota.worker_service.running import cut_short, endings
from rota.worker_service.running.active import Active, keep_result
from rota.worker_service.running.endings import Ending
from rota.worker_service.running.fork import Ended, Fork, put_in_place, with_others
from rota.worker_service.running.lingering import Lingering
from rota.worker_service.running.outcomes import Outcomes
from rota.worker_service.running.reporter import Reports


class Forks:
    """The forks of one worker's runs.

    forks.begin(active, later=True)              # True: several of its nodes run now
    forks.ended(branch, node, ending, outcome)   # one of them has ended
    """

    def __init__(
        self,
        outcomes: Outcomes,
        reports: Reports,
        lingering: Lingering,
        *,
        lock: threading.Lock,
        start: Callable[[Active, NodeRun, bool], None],
        finish: Callable[[Active, Report], None],
        lose: Callable[[Active], None],
    ) -> None:
        """``start`` starts the node of a branch, ``finish`` reports a run, and ``lose`` drops one that another has."""
        self._outcomes, self._reports, self._lingering = outcomes, reports, lingering
        self._lock, self._start, self._finish, self._lose = lock, start, finish, lose

    def begin(self, active: Active, *, later: bool) -> bool:
        """Start the next nodes of a run beside each other. False: only one can start, or the run is to stop."""
        order, width = active.order, active.of.takes(active.weight)
        if order is None or width == 1 or active.run_end is not None:
            return False
        ready = order.ready(active.run, active.done)[:width]
        if len(ready) < 2:
            return False
        with self._lock:
            if active.stop is not None or active.asked is not None or active.detached:
                return False
            active.fork, active.deadline = Fork(active, active.done), None
            branches = [self._branch(active.fork, node) for node in ready]
        self._report(active, [_begins(node, self._outcomes.now()) for node in ready[1:]])
        self._begin(branches, later=later)
        return True

    def ended(self, branch: Active, node: NodeRun, ending: Ending, outcome: Outcome | None) -> None:
        """A node has ended so. Without an ``outcome`` its handler was not entered."""
        value = _value(ending)
        with self._lock:
            fork = branch.fork
            if fork is None or node.id not in fork.live:
                return
            one = self._note(branch, node, ending, outcome)
            if fork.trunk.detached:
                self._keep(fork, one, value)
                return
            self._leave(fork, node)
            if _goes_on(ending) and (fork.live or fork.ended or fork.not_begun):
                self._succeeded(fork, one, value)
            else:
                fork.ended.append(one)
            join = self._settle(fork)
        join()

    def not_begun(self, branch: Active, node: NodeRun, error: NoThread | None = None) -> None:
        """The handler of a node was not entered: the machine had no thread for it, or the run ends."""
        with self._lock:
            fork = branch.fork
            if fork is None or node.id not in fork.live or fork.trunk.detached:
                return
            self._leave(fork, node)
            fork.not_begun.append(node)
            fork.refusal = fork.refusal or error
            join = self._settle(fork)
        join()

    def hangs(self, branch: Active) -> None:
        """Under the lock: the handler of a branch did not return within its grace."""
        if (fork := branch.fork) is not None:
            branch.deadline = None
            fork.hanging.add(branch.node.id)
            self._settle(fork)()

    def ended_at_the_end(self, branch: Active, node: NodeRun, outcome: Outcome) -> None:
        """Under the lock: a handler has ended while the worker stops. What has succeeded all the same is kept."""
        if (fork := branch.fork) is not None and node.id in fork.live:
            ending = self._outcomes.kept_ending(branch, node, outcome)
            if ending is None:
                fork.not_begun.append(node)
                fork.is_cut = True
                self._keep_end(fork, branch)
            else:
                self._keep(fork, self._note(branch, node, ending, outcome), _value(ending))

    def _branch(self, fork: Fork, node: NodeRun) -> Active:
        fork.live[node.id] = branch = Active.branch_of(fork.trunk, node)
        branch.fork = fork
        return branch

    def _begin(self, branches: Sequence[Active], *, later: bool) -> None:
        """Start branches, until one of them has ended so that no further one begins."""
        for branch in branches:
            if branch.fork is not None and (branch.fork.ended or branch.fork.not_begun or branch.fork.hanging):
                self.not_begun(branch, branch.node)
            else:
                self._start(branch, branch.node, later)

    def _leave(self, fork: Fork, node: NodeRun) -> None:
        del fork.live[node.id]
        fork.hanging.discard(node.id)

    def _note(self, branch: Active, node: NodeRun, ending: Ending, outcome: Outcome | None) -> Ended:
        span, trunk = self._outcomes.span(branch, outcome), branch.trunk
        if branch.entered is not None and (trunk.entered is None or branch.entered < trunk.entered):
            trunk.entered = branch.entered
        return Ended(branch, node, ending, outcome, span)

    def _succeeded(self, fork: Fork, one: Ended, value: object) -> None:
        """Report a node that has succeeded while others run; those that have waited for it begin after the commit."""
        trunk = fork.trunk
        done = self._done(fork, one, value)
        free = trunk.of.takes(trunk.weight) - len(fork.live)
        following: list[NodeRun] = []
        if trunk.order is not None and not fork.ends and free > 0:
            ready = trunk.order.ready(trunk.run, fork.done)
            following = [node for node in ready if node.id not in fork.live][:free]
        branches = [self._branch(fork, node) for node in following]
        self._report(trunk, [done, *(_begins(node, one.span.left) for node in following)], branches)

    def _done(self, fork: Fork, one: Ended, value: object) -> NodeReport:
        """Put a node that has succeeded behind those that have before."""
        put_in_place(fork.trunk, fork.done, [one.node])
        keep_result(fork.trunk, one.node, value)
        fork.done += 1
        return NodeReport(one.node.id, NodeStatus.SUCCEED, one.ending.result, one.span.entered, one.span.left)

    def _report(self, trunk: Active, nodes: list[NodeReport], following: Sequence[Active] = ()) -> None:
        beside = () if trunk.fork is None else tuple(trunk.fork.live)
        report = Report(trunk.run.id, trunk.run.attempt, nodes, beside=beside)
        trunk.partial.append(report)
        self._reports.put(report, partial(self._committed, trunk, report, following))

    def _committed(self, trunk: Active, report: Report, following: Sequence[Active], ours: bool) -> None:
        trunk.partial.remove(report)
        if trunk.detached:
            return
        if ours:
            self._begin(following, later=False)
        else:
            self._lose(trunk)

    def _settle(self, fork: Fork) -> Callable[[], None]:
        """Under the lock: what is to be done now. The fork ends if none of its branches runs, or if all that run hang.

        What ends it is to be done when the lock is free, but for the latter.
        """
        trunk = fork.trunk
        if fork.live:
            if fork.live.keys() <= fork.hanging and not trunk.abandoned:
                self._give_up(fork)
            return _nothing
        if trunk.abandoned:
            return _nothing
        trunk.fork, trunk.deadline, trunk.running = None, trunk.over_at, None
        if trunk.stop is not None and not trunk.stop.canceled:  # what hung has returned
            trunk.stop = None
        return lambda: self._finish(trunk, self._join(fork))

    def _join(self, fork: Fork) -> Report:
        """The report with which the run goes on, ends or is retried."""
        trunk = fork.trunk
        if not fork.ended:
            put_in_place(trunk, fork.done, fork.not_begun[:1])
            trunk.done = fork.done
            report = self._outcomes.not_begun(trunk, fork.refusal or NoThread("a handler beside it hung"))
            return with_others(trunk, report, (), fork.not_begun)
        last, others = self._parted(fork, fork.ended)
        report = self._outcomes.report(trunk, last.node, last.ending, last.outcome)
        return with_others(trunk, report, others, fork.not_begun)

    def _give_up(self, fork: Fork) -> None:
        """All that run hang. The run ends now; a retry waits, ``running``, until they have returned."""
        trunk = fork.trunk
        hung = [self._hung(branch) for branch in fork.live.values()]
        last, others = self._parted(fork, [*fork.ended, *hung])
        trunk.running, trunk.stop = last.branch.running, trunk.stop or last.branch.stop
        report = self._outcomes.report(trunk, last.node, last.ending, last.outcome, moves_on=False)
        if (end := report.instance) is None:  # one that hangs ends its run, or lets it be retried
            return
        if end.status in (InstanceStatus.PENDING, InstanceStatus.RUNNING):
            waiting = cut_short.waiting_for_its_handler(report, end)
            trunk.partial.append(waiting)
            self._reports.put(waiting, partial(self._committed, trunk, waiting, ()))
            return
        trunk.abandoned = True
        for branch in fork.live.values():
            branch.abandoned = True
            self._lingering.abandon(branch)
        report = with_others(trunk, report, others, fork.not_begun)
        self._finish(trunk, self._outcomes.while_handler_runs(report, end, hung[0].node))

    def _hung(self, branch: Active) -> Ended:
        return Ended(branch, branch.node, endings.stopped(branch.stop), None, self._outcomes.span(branch, None))

    def _keep(self, fork: Fork, one: Ended, value: object) -> None:
        """Under the lock: a node has ended by itself while its worker stops. That is reported last."""
        trunk = fork.trunk
        goes_on = _goes_on(one.ending) and (fork.done + 1 < len(trunk.run.nodes) or bool(fork.ended))
        if goes_on:
            kept = () if trunk.last is None else trunk.last.nodes
            trunk.last = Report(trunk.run.id, trunk.run.attempt, [*kept, self._done(fork, one, value)])
        else:
            fork.ended.append(one)
        self._keep_end(fork, one.branch)

    def _keep_end(self, fork: Fork, branch: Active) -> None:
        """Under the lock: this branch has ended while its worker stops. If no other runs, the run may have ended."""
        trunk = fork.trunk
        others = [other for other in fork.live.values() if other is not branch]
        may_end = any(one.ending.status is not NodeStatus.SUCCEED for one in fork.ended) or not fork.is_cut
        if fork.ended and may_end and not any(other.calls for other in others):
            fork.not_begun += [other.node for other in others]
            kept, ended = () if trunk.last is None else trunk.last.nodes, self._join(fork)
            trunk.last = replace(ended, nodes=[*kept, *ended.nodes])
        elif trunk.last is not None and not others and not fork.is_cut:  # the next one is its present node, as in a row
            following = _begins(trunk.run.nodes[fork.done], self._outcomes.now())
            trunk.last = replace(trunk.last, nodes=[*trunk.last.nodes, following])
        self._leave(fork, branch.node)

    def _parted(self, fork: Fork, ended: Sequence[Ended]) -> tuple[Ended, Sequence[Ended]]:
        """With which of these nodes the run goes on, and the others. They stand before it, as if they had ended before.

        It is the first that fails the run for good, else the first that was canceled, else the one that is retried
        last, else the one that ends the run early.
        """
        trunk = fork.trunk
        last = min(ended, key=partial(self._rank, trunk))
        others = [one for one in ended if one is not last]
        put_in_place(trunk, fork.done, [*(one.node for one in others), last.node])
        trunk.done = fork.done + len(others)
        if last.ending.status is NodeStatus.SUCCEED and trunk.done + 1 < len(trunk.run.nodes):
            keep_result(trunk, last.node, _value(last.ending))
        return last, others

    def _rank(self, trunk: Active, one: Ended) -> tuple[int, float]:
        if one.ending.status is NodeStatus.SUCCEED:
            return (3, 0)
        if one.ending.status is NodeStatus.CANCELED:
            return (1, 0)
        at = self._outcomes.retry_at(trunk, one.node, one.ending, one.span)
        return (0, 0) if at is None else (2, -at.timestamp())


def _nothing() -> None: ...


def _goes_on(ending: Ending) -> bool:
    return ending.status is NodeStatus.SUCCEED and not ending.ends_run


def _begins(node: NodeRun, now: datetime) -> NodeReport:
    return NodeReport(node.id, NodeStatus.RUNNING, gmt_started=now)


def _value(ending: Ending) -> object:
    return None if ending.result is None or ending.status is not NodeStatus.SUCCEED else json.loads(ending.result)
