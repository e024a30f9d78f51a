"""The trigger of a task that fires when other tasks have ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.sentences import close_to
from rota.shared.domain.states import OnEnd
from rota.shared.domain.triggers.inputs import TriggerInputs

MOST_BEFORE = 100
"""A task follows so many others at most."""

_EXAMPLE = {"extract": OnEnd.SUCCESS.value}
_ENDS = {OnEnd.SUCCESS: "succeeds", OnEnd.FAILURE: "fails", OnEnd.ALWAYS: "ends"}


def read_after(value: Any) -> dict[str, str]:
    """The tasks that a task follows, by their names, each with its end, as ``trigger_spec`` has them.

    Raises InvalidInput.

        read_after(["extract", "load"])      # {"extract": "success", "load": "success"}
        read_after({"extract": "failure"})   # the same
    """
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Sequence):
        value = dict.fromkeys(value, OnEnd.SUCCESS) if all(isinstance(one, str) for one in value) else value
    if not isinstance(value, Mapping) or not value:
        raise InvalidInput(f"after {value!r:.60}: name a task, a list of tasks, or tasks and their ends as {_EXAMPLE}")
    if len(value) > MOST_BEFORE:
        raise InvalidInput(f"after names {len(value)} tasks; a task follows at most {MOST_BEFORE}")
    return {_name(name): _end(name, end) for name, end in value.items()}


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > 63 or any("\ud800" <= c <= "\udfff" for c in name):
        raise InvalidInput(f"after {name!r:.80}: that is no name of a task; rota task list shows them")
    return name


def _end(name: str, end: Any) -> str:
    try:
        return OnEnd(end).value
    except ValueError:
        words = [word.value for word in OnEnd]
        near = close_to(end, words) if isinstance(end, str) else ""
        raise InvalidInput(f"after {name!r}: {end!r:.60} is none of {', '.join(words)}{near}") from None


@dataclass(frozen=True, slots=True)
class AfterTrigger:
    """Fires when the runs of other tasks for one and the same time have ended, and all have ended as it asks.

    Nobody knows ahead when that is: it has no moments. A scheduler writes its fires when it follows up those ends
    (``rota.scheduler_service.duties.chains``).
    """

    ends: tuple[tuple[str, OnEnd], ...]
    """The tasks that it follows, by name, each with the end that it waits for."""

    @classmethod
    def of(cls, inputs: TriggerInputs) -> Self:
        """The trigger that ``after`` in ``trigger_spec`` describes.

        Raises InvalidInput.
        """
        found = read_after(inputs.spec_value("after", _EXAMPLE))
        if inputs.jitter_seconds:
            raise InvalidInput("jitter_seconds does not go with after: such a task has no times of its own")
        return cls(tuple((name, OnEnd(end)) for name, end in found.items()))

    def next_after(self, moment: datetime) -> None:
        """None: nobody knows when it fires."""

    def latest_at_or_before(self, moment: datetime) -> None:
        """None: only its rows tell when it fired."""

    def describe(self) -> str:
        """The ends in plain English: ``after extract succeeds and load ends``."""
        said = [f"{name} {_ENDS[end]}" for name, end in self.ends]
        return f"after {', '.join(said[:-1])} and {said[-1]}" if len(said) > 1 else f"after {said[0]}"

    def label(self) -> str:
        """The tasks that it follows: ``after extract, load``."""
        return f"after {', '.join(name for name, _ in self.ends)}"
