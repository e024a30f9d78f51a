"""Groups: whose instances take turns where many wait.

The group of an instance is that of its task (``task_group``). A task without one is a group of its own. ``group_share``
says how many of a task's instances count as one of another group.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Group = str | int | None
"""The name of a group, or the id of a task that is in none. None: it is not known."""

MOST_SHARE = 100


class Member(NamedTuple):
    """The group of an instance, and the share of its task."""

    group: Group = None
    share: int = 1
    """How many instances of the task count as one instance of another group."""


Groups = Mapping[int, Group]
"""By the ids of instances."""

NO_GROUPS: Groups = MappingProxyType({})
Members = Mapping[int, Member]
"""By the ids of instances."""

NO_MEMBERS: Members = MappingProxyType({})

CROWD_PART = 0.1
"""A group is a crowd if it is so much of what waits, and if all crowds together are half of it."""


def group_of(task_group: str | None, task_id: int) -> Group:
    """The group of the instances of a task: ``group_of("shop 7", 3) == "shop 7"``, ``group_of(None, 3) == 3``."""
    return task_group or task_id


def share_in(value: Any) -> int:
    """The share that a row has; 1, where SQL has spoiled it.

    share_in(3) == 3; share_in(0) == 1
    """
    return value if type(value) is int and 1 <= value <= MOST_SHARE else 1


def crowds_of(groups: Collection[Group]) -> set[Group]:
    """The groups that are crowds among what waits, of which these are the groups; none, if most are of small ones.

    One instance alone is no crowd.

    crowds_of(["a", "a", "a", "b"]) == {"a", "b"}; crowds_of(range(100)) == set()
    """
    counted = Counter(groups)
    found = {group for group, number in counted.items() if number >= max(2, CROWD_PART * len(groups))}
    return found if 2 * sum(counted[group] for group in found) >= len(groups) else set()
