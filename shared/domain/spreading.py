"""Spreading a fire over workers: one instance, the parent, runs as several, its shards. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import UnreadableJson, json_text, json_value
from rota.shared.domain.states import REASON_LIMIT, InstanceStatus, Spread

RIGHT = "spread is shards, with the number in shards, or workers, or broadcast"

ITS_SHARDS = 0
"""``schedule_worker_node_id`` of an instance that runs as its shards, and on no worker."""

MOST_SHARDS = 1000
"""One fire runs as so many shards at most."""

PARAM_BYTES = 64 * 1024 * 1024
"""Each shard has its param. Those of one fire have so many bytes at most, since one transaction writes them."""

RESULTS_BYTES = 256 * 1024
"""The parent's result has the results of its shards up to so many bytes. The others stand in their own rows alone."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard; ``result`` is JSON text, None if it has none, or if nobody has asked for it."""

    id: int
    index: int
    status: str
    worker: str | None
    reason: str | None
    result: str | None = None
    has_large_result: bool = False
    """Whether it has a result that stands in its own row alone."""

    is_to_stop: bool = False
    """Whether somebody has asked to cancel it."""

    gmt_completed: datetime | None = None
    """When it ended, naive UTC."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What becomes of a parent whose shards have all ended: its status, why, and its result as JSON text.

    ``gmt_completed``: when the last of them ended, naive UTC; None where SQL has ended or deleted one, so that nobody
    can tell.
    """

    status: InstanceStatus
    reason: str | None
    result: str
    gmt_completed: datetime | None = None


def with_shards(spread: Spread | None, shards: int | None) -> Spread | None:
    """The spread of a task. Raises ValueError if it does not go with its number of shards."""
    if shards is None and spread == Spread.SHARDS:
        raise ValueError(f"spread shards: say how many with shards, from 1 to {MOST_SHARDS}")
    if shards is not None and spread != Spread.SHARDS:
        raise ValueError(f"shards goes with spread shards, not {spread}")
    return spread


def together(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of a task's fields, with what follows for ``spread`` from ``shards``, and the other way round.

    together({"shards": 8})             # {"shards": 8, "spread": "shards"}
    together({"spread": "broadcast"})   # {"spread": "broadcast", "shards": None}
    """
    changed = dict(changes)
    if changed.get("shards") is not None:
        changed.setdefault("spread", Spread.SHARDS.value)
    elif "spread" in changed and changed["spread"] != Spread.SHARDS:
        changed["shards"] = None
    return changed


def workers_of(spread: str, shards: int | None, fitting: Sequence[int]) -> list[int | None]:
    """For each shard the only worker that may run it; None: any that fits. Empty: no worker fits, and one must.

    workers_of("broadcast", None, [7, 9])   # [7, 9]
    workers_of("workers", None, [7, 9])     # [None, None]
    workers_of("shards", 3, [7])            # [None, None, None]
    workers_of("shards", 3, [])             # []

    Raises InvalidInput for what SQL has made of them.
    """
    if spread not in set(Spread) or (spread == Spread.SHARDS and not (isinstance(shards, int) and shards > 0)):
        raise InvalidInput(f"its task has spread {spread!r} with shards {shards!r}; {RIGHT}")
    if spread == Spread.BROADCAST:
        return [*sorted(fitting)[:MOST_SHARDS]]
    number = shards if spread == Spread.SHARDS and fitting else len(fitting)
    return [None] * min(number or 0, MOST_SHARDS)


def check_size(param_bytes: int, shards: int) -> None:
    """Check that so many shards may each have a param of so many bytes.

    Raises InvalidInput.
    """
    if param_bytes * shards > PARAM_BYTES:
        raise InvalidInput(
            f"its param of {param_bytes:,} bytes in each of {shards} shards would be more than {PARAM_BYTES:,} bytes:"
            " let the param name where the data is"
        )


def gathered(shards: Sequence[Shard], total: int | None, *, is_cancel_requested: bool, reason: str | None) -> Gathered:
    """What becomes of the parent: it succeeds if all of its shards have.

    ``total``: how many there were; of those whose rows are gone nobody can tell. ``reason``: the parent's own, which
    says why it was canceled.
    """
    result = json_text(_results(shards))
    wrong = [shard for shard in shards if shard.status != InstanceStatus.SUCCEED]
    missing = max(0, (total or 0) - len(shards))
    ends = [shard.gmt_completed for shard in shards if shard.gmt_completed is not None]
    ended = max(ends) if ends and len(ends) == len(shards) and not missing else None
    if is_cancel_requested:
        return Gathered(InstanceStatus.CANCELED, reason or "canceled", result, ended)
    if not wrong and not missing and shards:
        return Gathered(InstanceStatus.SUCCEED, None, result, ended)
    number = max(total or 0, len(shards))
    return Gathered(InstanceStatus.FAILED, _why(wrong, missing, number)[:REASON_LIMIT], result, ended)


def _why(wrong: Sequence[Shard], missing: int, total: int) -> str:
    if not total:
        return "it has no shards: somebody made it running by SQL"
    counts = Counter(shard.status for shard in wrong)
    said = [f"{number} of {total} shards {_DID.get(status, status)}" for status, number in sorted(counts.items())]
    if missing:
        said.append(f"the rows of {missing} of {total} shards are gone")
    if wrong:
        first = min(wrong, key=lambda shard: shard.index)
        why = f": {first.reason}" if first.reason else ""
        said.append(f"the first is shard {first.index}, instance {first.id}{why}")
    return "; ".join(said)


_DID: Mapping[str, str] = {InstanceStatus.FAILED: "failed", InstanceStatus.CANCELED: "were canceled"}


def _results(shards: Sequence[Shard]) -> list[dict[str, Any]]:
    """The list of what became of each shard, in their order, with results as far as there is room."""
    room, results = RESULTS_BYTES, []
    for shard in sorted(shards, key=lambda one: one.index):
        said: dict[str, Any] = {
            "shard": shard.index, "instance": shard.id, "worker": shard.worker, "status": shard.status,
        }  # fmt: skip
        if shard.status == InstanceStatus.SUCCEED and not shard.has_large_result:
            text = shard.result or "null"
            value = json_value(text)
            if len(text) <= room and not isinstance(value, UnreadableJson):
                room -= len(text)
                said["result"] = value
        elif shard.status != InstanceStatus.SUCCEED and shard.reason is not None:
            said["reason"] = shard.reason[:200]
        results.append(said)
    return results
