"""The bounds that go with an overlap policy."""

from typing import Any

from rota.shared.domain.states import OverlapPolicy


def require_policy(bound: str, policy: OverlapPolicy, max_instances: Any) -> None:
    """Require that ``bound``, ``max_instances`` or ``max_waiting``, counts under this policy.

    Raises ValueError, which says what it goes with.
    """
    if bound == "max_instances" and policy != OverlapPolicy.ALLOW:
        raise ValueError(f"max_instances goes with overlap_policy allow, not {policy}")
    if bound == "max_waiting" and policy != OverlapPolicy.QUEUE and max_instances is None:
        raise ValueError(f"max_waiting goes with overlap_policy queue, or allow with max_instances, not {policy}")
