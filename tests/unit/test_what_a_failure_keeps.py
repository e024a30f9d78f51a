"""What is kept of an exception: in full where it is short, and bounded where it is not."""

import json
from typing import Any

from rota.shared.domain.errors import DetailedError
from rota.worker_service.executors.base import ERROR_CHARACTERS, TRACEBACK_CHARACTERS, Failure, Outcome
from rota.worker_service.running import endings


def kept(error: Exception) -> dict[str, Any]:
    """The JSON that a node's row has after this failure."""
    outcome = Outcome(0, 0, failure=Failure.of(error))
    result = endings.succeeded_or_failed("REPORT_SEND", outcome, 1000).result
    assert result is not None
    found: dict[str, Any] = json.loads(result)
    return found


def test_details_of_an_error_are_kept_beside_its_sentence() -> None:
    found = kept(DetailedError("it ended with exit code 3", {"exit_code": 3, "stdout": "out\n"}))
    assert (found["exit_code"], found["stdout"]) == (3, "out\n")
    assert found["error"] == "DetailedError: it ended with exit code 3"


def test_a_long_message_is_bounded() -> None:
    found = kept(ValueError("x" * 1_000_000))
    assert len(found["error"]) == ERROR_CHARACTERS
    assert len(found["traceback"]) == TRACEBACK_CHARACTERS
