"""The steps of stopping a worker."""

import logging
from typing import NoReturn

import pytest

from rota.shared.domain.errors import DatabaseProblem
from rota.supervise.parent import AFTER_GRACE_SECONDS
from rota.worker_service import guardian, liveness
from rota.worker_service.engine import CLOSING_SECONDS, attempt
from rota.worker_service.executors import event_loop


@pytest.mark.parametrize(("error", "is_expected"), [(DatabaseProblem("away"), True), (OSError("read-only"), False)])
def test_a_step_that_fails_stops_no_other_and_shows_a_traceback_if_it_was_not_expected(
    caplog: pytest.LogCaptureFixture, error: Exception, is_expected: bool
) -> None:
    def fail() -> NoReturn:
        raise error

    with caplog.at_level(logging.WARNING):
        attempt(fail)
    [record] = caplog.records
    assert record.getMessage() == f"worker: while stopping: {error}"
    assert bool(record.exc_info) is not is_expected


def test_nobody_is_killed_while_it_hands_back_what_it_ran() -> None:
    worker = 3 * CLOSING_SECONDS + event_loop.CLOSING_SECONDS  # the poll, the handlers, the reports; then the executors
    assert worker + guardian.GROUPS_SECONDS + liveness.LAST_BEAT_SECONDS < AFTER_GRACE_SECONDS
