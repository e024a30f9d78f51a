"""The order of an instance's nodes: for which others each of them waits. Pure.

A node waits for all nodes before it, unless it says for which (``after``). It can name only nodes before it, so there
is no cycle. A node that runs always runs alone: it waits for all before it, and all behind it wait for it.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.sentences import close_to

After = tuple[str, ...] | None
"""The node types for which a node waits; None: for all before it."""


def checked_after(
    node_type: str, after: Any, before: Sequence[str], prefix: str = "", *, always: bool = False
) -> After:
    """For which nodes a node waits, as it was declared: None, a name, or a list of names. ``before``: the node types
    declared before it. A name may be without the ``prefix`` of their types. ``always``: whether the node runs always.

    Raises InvalidInput for anything else, for a name that none of those before it has, and for a node that runs always.

        checked_after("REPORT_MERGE", ["EU", "US"], ["REPORT_EU", "REPORT_US"], "REPORT_")
        # ("REPORT_EU", "REPORT_US")
    """
    if after is None:
        return None
    if always:
        raise InvalidInput(f"{node_type}: a node that runs always waits for all nodes before it: leave out after")
    names = [after] if isinstance(after, str) else after
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"{node_type}: after {after!r} must be a list of names of nodes before it; [] is for none")
    return tuple(dict.fromkeys(_named(node_type, name, before, prefix) for name in names))


def _named(node_type: str, name: str, before: Sequence[str], prefix: str) -> str:
    found = next((one for one in before if one in (name, f"{prefix}{name}")), None)
    if found is None:
        there = f"declared before it: {', '.join(before)}" if before else "it is the first"
        raise InvalidInput(
            f"{node_type}: after names {name!r}, which is not declared before it{close_to(name, before)}; {there}."
            " A node waits only for nodes before it, so that there is no cycle"
        )
    return found


def waits_for(types: Sequence[str], after: Sequence[After], always: Collection[str] = ()) -> tuple[frozenset[int], ...]:
    """For which places each node waits, directly or by others. Places count from 0, in the order of the nodes.

    ``after``: what each of them says; ``always``: the types that run always.

        waits_for(["EU", "US", "MERGE"], [(), (), None])   # (frozenset(), frozenset(), frozenset({0, 1}))
    """
    found: list[frozenset[int]] = []
    alone = -1
    for place, (own, names) in enumerate(zip(types, after, strict=True)):
        if names is None or own in always:
            direct: Iterable[int] = range(place)
        else:
            direct = [at for at in range(place) if at <= alone or types[at] in names]
        found.append(frozenset(direct).union(*(found[at] for at in direct)))
        alone = place if own in always else alone
    return tuple(found)
