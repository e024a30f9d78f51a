"""The instances of a worker's backlog that wait for limits of their tasks.

Of each limit only one of them, the probe, asks again and again whether there is a free slot. When it gets one there may
be more: twice as many are tried next, until one fails. And each run that ends here lets the next one be tried at once.
"""

from collections.abc import Collection

WIDEST = 64
"""At most so many are tried at once because another one has got a slot."""


class LimitLines:
    """The lines, one for each limit, in the order in which the instances were tried.

    if not lines.join("warehouse", 7): ...   # it is no probe: there is no hurry
    lines.leave([7])                         # [8, 9]: these may have luck, too
    lines.next_of("warehouse")               # a run has ended
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, None]] = {}
        self._limits: dict[int, str] = {}
        self._probes: dict[str, int] = {}
        self._widths: dict[str, int] = {}

    def join(self, limit: str, instance_id: int) -> bool:
        """This one was tried in vain, and waits; whether it is the probe, which is to be tried soon."""
        self._lines.setdefault(limit, {})[instance_id] = None
        self._limits[instance_id] = limit
        is_probe = self._probes.setdefault(limit, instance_id) == instance_id
        if is_probe:
            self._widths[limit] = 1
        return is_probe

    def leave(self, instance_ids: Collection[int]) -> list[int]:
        """These wait no more. Returns those to be tried now, because a probe is among them: the first is the next
        probe."""
        if not self._limits:
            return []
        without_probe: list[str] = []
        for instance_id in instance_ids:
            limit = self._limits.pop(instance_id, None)
            if limit is not None:
                self._lines.get(limit, {}).pop(instance_id, None)
                if self._probes.get(limit) == instance_id:
                    without_probe.append(limit)
        return [following for limit in without_probe for following in self._widen(limit)]

    def _widen(self, limit: str) -> list[int]:
        """The probe of this line has got a slot: those to be tried now."""
        del self._probes[limit]
        width = self._widths[limit] = min(2 * self._widths.get(limit, 1), WIDEST)
        following = list(self._lines.get(limit, {}))[:width]
        if following:
            self._probes[limit] = following[0]
        else:
            self._forget(limit)
        return following

    def next_of(self, limit: str) -> int | None:
        """The next one to be tried, as a run of this limit has ended; None if none waits."""
        line = self._lines.get(limit)
        if not line:
            return None
        first = next(iter(line))
        del line[first]
        return first

    def retain(self, there: Collection[int]) -> None:
        """Forget all that are not there any more."""
        self._limits = {i: limit for i, limit in self._limits.items() if i in there}
        self._lines = {limit: dict.fromkeys(i for i in line if i in there) for limit, line in self._lines.items()}
        self._probes = {limit: i for limit, i in self._probes.items() if i in there}
        for limit in [limit for limit, line in self._lines.items() if not line and limit not in self._probes]:
            self._forget(limit)

    def _forget(self, limit: str) -> None:
        self._lines.pop(limit, None)
        self._widths.pop(limit, None)
