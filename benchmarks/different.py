"""Tasks that differ in everything that may differ, and are due at one moment all the same.

Each has a cron expression of its own. They are read in 12 time zones, have 20 task types of one to three nodes, a param
each, and all overlap policies, retries, timeouts and priorities. Which task has what follows from its number.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

ZONES = (
    *("UTC", "Europe/Berlin", "Europe/London", "America/New_York", "America/Los_Angeles", "America/Sao_Paulo"),
    *("Asia/Shanghai", "Asia/Kolkata", "Asia/Tokyo", "Australia/Sydney", "Africa/Lagos", "Pacific/Auckland"),
)
KINDS = {f"BENCH_KIND{number}": [f"N{at}" for at in range(1, 2 + number % 3)] for number in range(20)}
"""The nodes of each task type."""

ON_THREADS = 4
"""The handlers of one task type of so many are plain functions, those of the others coroutines."""

OVERLAPS = ("skip", "skip", "skip", "allow", "queue", "replace")
TIMEOUTS = (None, 60, 300)


@dataclass(frozen=True, slots=True)
class DifferentTask:
    """One of them: its name, its nodes, and its columns."""

    name: str
    nodes: list[str]
    columns: dict[str, Any]


def task(number: int, moment: datetime) -> DifferentTask:
    """The task of that number, which fires at this moment (naive UTC) and then at others of its own.

    task(7, datetime(2026, 11, 23, 12)).columns["cron"]   # "0 0,17 21,22 * * ..." in Asia/Kolkata
    """
    kind = f"BENCH_KIND{number % len(KINDS)}"
    zone = ZONES[number % len(ZONES)]
    overlap = OVERLAPS[number % len(OVERLAPS)]
    columns = {
        "name": f"d{number}",
        "type": kind,
        "cron": _cron(number, moment.replace(tzinfo=UTC).astimezone(ZoneInfo(zone))),
        "cron_seconds": 1,
        "timezone": zone,
        "next_fire_at": moment.strftime("%Y-%m-%d %H:%M:%S.%f"),
        "param": json.dumps({"number": number, "region": f"r{number % 50}"}),
        "overlap_policy": overlap,
        "max_instances": 1 + number % 4 if overlap == "allow" and number % 2 else None,
        "retries": number % 4,
        "timeout_seconds": TIMEOUTS[number % len(TIMEOUTS)],
        "on_worker_lost": "fail" if number % 10 == 9 else "retry",
        "priority": 3 + number % 5,
    }
    return DifferentTask(f"d{number}", KINDS[kind], columns)


def _cron(number: int, local: datetime) -> str:
    """An expression that no other number up to 58,880 has, and that names the local time of the moment.

    It fires on no other second of that minute, nor in the minutes close to it.
    """
    minute = (local.minute + 10 + number % 40) % 60
    hour = (local.hour + 1 + number // 40 % 23) % 24
    others = [day for day in range(7) if day != local.isoweekday() % 7]
    days = [day for at, day in enumerate(others) if number // 920 % 64 >> at & 1]
    fields = ([local.second], [local.minute, minute], [local.hour, hour])
    times = " ".join(",".join(map(str, sorted(field))) for field in fields)
    return f"{times} * * {','.join(map(str, sorted([local.isoweekday() % 7, *days])))}"
