"""Reconciling: the worker compares the rows that are ``running`` under its id with the instances that it runs.

They differ when the database has committed a claim and the answer was lost. The same rows also tell the worker which
runs somebody asked to cancel.
"""

import logging
from collections.abc import Set
from typing import Protocol

from rota.shared.clock import Timer
from rota.worker_service.rows import WorkerRows
from rota.worker_service.running.runner import Runner

log = logging.getLogger(__name__)


class Claiming(Protocol):
    """What the claims of a worker say of themselves: a backlog, or all of its lanes."""

    def give_up(self, instance_ids: Set[int]) -> Set[int]:
        """Claim these no more; returns them without those in a claim that has not returned yet.

        The rows of those may be ``running``, although nothing runs yet.
        """
        ...

    @property
    def closed(self) -> bool:
        """Whether nothing more is claimed."""
        ...


class Reconciler:
    """Compares every ``period`` seconds, on the thread that polls."""

    def __init__(self, rows: WorkerRows, runner: Runner, claims: Claiming, timer: Timer, period: float) -> None:
        self._rows = rows
        self._runner = runner
        self._claims = claims
        self._timer = timer
        self._period = period
        self._compared = float("-inf")

    def compare_when_due(self) -> None:
        """Compare, unless the last comparison was less than a period ago."""
        if self._timer.monotonic() - self._compared >= self._period:
            self.compare()
            self._compared = self._timer.monotonic()

    def compare(self) -> None:
        """Stop the runs that somebody canceled, and give up the strangers.

        A stranger is an instance that the database says this worker runs, and it does not. Strangers are handed back,
        but those that may run at most once fail. An instance in a claim that has not returned is no stranger. One that
        waits here for its claim is: nothing claims it any more, or the worker might begin what it hands back.
        """
        held = self._rows.held()
        known = self._runner.held
        given_up = self._claims.give_up({i for i, attempt, _ in held if (i, attempt) not in known})
        known = self._runner.held  # a claim may have returned meanwhile
        strangers = [(i, attempt) for i, attempt, _ in held if i in given_up and (i, attempt) not in known]
        if canceled := [(i, attempt) for i, attempt, is_canceled in held if is_canceled]:
            reasons = self._rows.why_canceled([i for i, _ in canceled])
            for instance_id, attempt in canceled:
                self._runner.stop(instance_id, attempt, reasons.get(instance_id, "canceled"), canceled=True)
        if strangers and not self._claims.closed:  # else the worker is stopping, and detaches its runs
            failed, back = self._rows.disown(strangers, "its worker held it but did not run it")
            if failed or back:  # else they ended between the two reads
                log.warning("worker: held but did not run: %d instances handed back, %d failed", back, failed)
