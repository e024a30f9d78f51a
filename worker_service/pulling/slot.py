"""The slot of an instance that a worker holds, or its slots, and how far the instance has come."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rota.shared.domain.groups import Group

if TYPE_CHECKING:
    from rota.worker_service.pulling.slots import Slots

CLAIMED, STARTED, BETWEEN, ENDED, GONE = range(5)
"""How far an instance has come in this process. ``STARTED``: it has a slot. ``BETWEEN``: it has lent its slot, and gets
one again for its next node. From no other stage it goes back. ``ENDED``: the last handler has ended, and the report is
not written yet. ``GONE``: this process no longer holds the instance."""


@dataclass(slots=True, eq=False)
class Slot:
    """The slot of one instance. Only ``Slots`` changes it."""

    group: Group = field(default=None, kw_only=True)
    """The group of the instance, as far as groups take turns."""

    of: "Slots" = field(init=False)
    """Those of which it is one, from its claim on: the worker's own, or a pool's."""

    stage: int = field(default=CLAIMED, init=False)
    since: float = field(default=0.0, init=False)
    """When the instance got its slot, in seconds of the timer's ``monotonic``."""

    had: float = field(default=0.0, init=False)
    """For how many seconds it had slots before."""

    size: int = field(default=0, init=False)
    """About how many bytes the results are that it keeps for its next nodes."""

    weight: int = field(default=1, init=False)
    """How many slots it takes: it starts when so many are free."""

    large: int = field(default=0, init=False)
    """How many bytes of large params and results it was claimed with."""
