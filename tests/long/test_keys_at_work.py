"""Eight programs ask for one-off work of a hundred keys at once, and cancel some, while others run it."""

import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from typing import Any

from tests.harness.cluster import Cluster
from tests.harness.keyed_calls import KEYS
from tests.harness.processes import ROOT, wait_until

CALLERS, CALLS = 8, 1000
LIVE = ("pending", "assigned", "running")
TWO_LIVE = """SELECT JSON_VALUE(param, '$.key') AS name FROM schedule_instance
    WHERE status IN ('pending', 'assigned', 'running') GROUP BY name HAVING COUNT(*) > 1"""


def test_no_key_has_two_live_runs_and_the_last_call_of_each_has_won(cluster: Cluster) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    for _ in range(2):
        cluster.scheduler()
    for name in ("a", "b"):
        cluster.worker(name)
    cluster.wait_live("a", "b")
    callers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.harness.keyed_calls", cluster.url, str(number), str(CALLS), str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(CALLERS)
    ]

    def all_have_ended() -> bool:
        assert not cluster.rows(TWO_LIVE)
        return all(caller.poll() is not None for caller in callers)

    wait_until(all_have_ended, 240, "the callers to end")
    said = [caller.communicate(timeout=10)[0] for caller in callers]
    assert [(caller.returncode, text) for caller, text in zip(callers, said, strict=True)] == [(0, "")] * CALLERS
    near = "number IN (" + ", ".join(f"'key-{key}'" for key in range(0, KEYS, 2)) + ")"
    wait_until(lambda: not cluster.rows(f"SELECT id FROM schedule_business_key WHERE {near}"), 60, "near keys to end")

    runs = cluster.rows("SELECT id, status, due_at, param FROM schedule_instance ORDER BY id")
    of_key: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        run["param"] = json.loads(run["param"])
        of_key[run["param"]["key"]].append(run)
    live_at_once(cluster, {run["id"]: run["param"]["key"] for run in runs})
    acts = cluster.rows("SELECT action, new_values FROM schedule_audit WHERE action LIKE 'key.%%' ORDER BY id")
    print(Counter((act["action"], json.loads(act["new_values"]).get("done")) for act in acts))
    assert len(acts) > CALLERS * CALLS * 0.85
    last = {json.loads(act["new_values"])["key"]: act for act in acts}
    assert len(last) == KEYS
    for key, act in last.items():
        asked = json.loads(act["new_values"])
        live = [run for run in of_key[key] if run["status"] in LIVE]
        is_near = int(key.removeprefix("key-")) % 2 == 0
        if act["action"] == "key.cancel" or is_near:
            assert live == [], key
        else:
            assert [run["param"] for run in live] == [asked["param"]], key
        if act["action"] == "key.once" and is_near:
            ran = [run for run in of_key[key] if run["param"] == asked["param"]]
            assert [run["status"] for run in ran] == ["succeed"], key
    rows = cluster.rows("SELECT number, next_at FROM schedule_business_key")
    assert {row["number"] for row in rows} == {key for key in last if any(r["status"] in LIVE for r in of_key[key])}


def live_at_once(cluster: Cluster, keys: dict[int, str]) -> None:
    """By the journal of all changes: a key gets a new run only after its last one has ended, or in its place."""
    live: dict[str, int] = {}
    coming: dict[str, int] = {}
    for change in cluster.journal():
        instance, status = change["instance"], change["becomes"]
        key = keys[instance]
        if change["was"] is None:
            assert key not in coming, f"{key}: {instance} began to wait beside {coming[key]}"
            (coming if key in live else live)[key] = instance
        elif status not in LIVE:
            assert live.pop(key) == instance
            if key in coming:
                assert status == "canceled", f"{key}: {instance} ended as {status}, and {coming[key]} took its place"
                live[key] = coming.pop(key)
        else:
            assert live[key] == instance, f"{key}: {instance} went on before it took the place of {live[key]}"
