"""What the tests of the executors give as `done`."""

from rota.worker_service.executors.base import Outcome, Running
from tests.harness.processes import wait_until

DEADLINE = 30


class Told:
    """A `done` that keeps what it is told."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.running: Running | None = None

    def __call__(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    @property
    def one(self) -> Outcome:
        """The outcome, once there is one; fails if it was told more than once."""
        wait_until(lambda: self.outcomes, DEADLINE, "the call's end")
        assert len(self.outcomes) == 1
        return self.outcomes[0]

    @property
    def entered(self) -> float:
        """When the handler was entered, once the call has ended."""
        assert self.one.entered is not None
        return self.one.entered

    def stop(self) -> None:
        """Stop the call."""
        assert self.running is not None
        self.running.stop()

    def kill(self) -> None:
        """Kill the call."""
        assert self.running is not None
        self.running.kill()

    @property
    def failure(self) -> tuple[str, str]:
        """The type and the sentence of its failure."""
        assert self.one.failure is not None
        assert not self.one.stopped
        return self.one.failure.type, self.one.failure.error
