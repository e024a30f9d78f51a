"""What must hold in a cluster's tables, whatever happened to its processes.

``rows_agree`` asks the product (``rota doctor --data``), at the end of each test. ``check`` asks also what only a test
can know: from the evidence of the handlers, from the journal of the states, and after all has ended.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise

from rota.shared.database.transactions import opened
from rota.shared.domain.states import TRANSITIONS, InstanceStatus
from rota.shared.store.invariants import INVARIANTS, breaches
from tests.harness.cluster import Cluster, Entry, Row

EVERY_SECOND = ("* * * * * *", "*/1 * * * * *")

CLOCK_TOLERANCE = timedelta(milliseconds=20)
"""How well the evidence's clock and the database's are compared; the columns are compared exactly."""

Instances = Mapping[int, Row]

MENDED_BY_A_SCHEDULER = ("assigned-worker", "running-worker")


def rows_agree(url: str, *, scheduled: bool) -> Iterator[str]:
    """The product's invariants; where no scheduler is left, nobody takes back what a lost worker held."""
    asked = [i for i in INVARIANTS if scheduled or i.name not in MENDED_BY_A_SCHEDULER]
    with opened(url) as database:
        for invariant in asked:
            if ids := database.read(partial(breaches, invariant=invariant)):
                yield f"{invariant.table} {ids}, {invariant.name}: {invariant.rule}"


def check(cluster: Cluster) -> None:
    """Assert all of them; says every breach, not only the first."""
    instances = {row["id"]: row for row in cluster.rows("SELECT * FROM schedule_instance")}
    evidence = cluster.evidence()
    faults = [
        *rows_agree(cluster.url, scheduled=cluster.is_scheduled),
        *fires_are_unique(instances.values()),
        *times_agree(instances.values(), cluster.clocks_differ + cluster.clocks_late),
        *holders_are_alive(cluster),
        *nodes_agree(cluster, instances),
        *transitions_are_legal(cluster.journal()),
        *each_run_is_alone(evidence, cluster.killed, restarting(cluster)),
        *results_have_evidence(cluster, evidence),
        *handlers_were_not_early(cluster, instances, evidence),
        *no_fire_is_missing(cluster),
        *nobody_complained(cluster),
    ]
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:40])


def fires_are_unique(instances: Iterable[Row]) -> Iterator[str]:
    """Law 1: no two instances of one fire."""
    fires = Counter(
        (row["schedule_task_id"], str(row["schedule_datetime"]), row["fire_key"], row["run_number"])
        for row in instances
        if row["run_number"] is not None
    )
    yield from (f"fire {fire} has {count} instances" for fire, count in fires.items() if count > 1)


def times_agree(instances: Iterable[Row], clocks_may_differ: timedelta) -> Iterator[str]:
    """Nothing ended before it started: the database's clock is not set back here, where it could be so."""
    for row in instances:
        times = (row["gmt_started"], row["gmt_completed"])
        if None not in times and times[1] < times[0] - clocks_may_differ:
            yield f"instance {row['id']} completed before it started"


def holders_are_alive(cluster: Cluster) -> Iterator[str]:
    """Nothing is left under a worker that is dead, or that never was: not even for the time a scheduler would need."""
    rows = cluster.rows(
        """SELECT i.id, i.status, w.name, w.state FROM schedule_instance i
        LEFT JOIN schedule_worker_node w ON w.id = i.schedule_worker_node_id
        WHERE i.status IN ('assigned', 'running') AND (w.state IS NULL OR w.state = 'dead')
        AND i.schedule_worker_node_id <> 0"""
    )
    yield from (f"instance {row['id']} is {row['status']} under {row['name']!r}, {row['state']}" for row in rows)


IN_A_ROW = ("succeed", "running", "failed", "pending", "canceled", "skipped")
"""Nodes that need not wait for each other are checked as if those of one state were one, and had run in a row."""


def nodes_agree(cluster: Cluster, instances: Instances) -> Iterator[str]:
    """The states of the nodes, in their order, are those that the state of their instance allows."""
    nodes: dict[int, list[str]] = defaultdict(list)
    early: list[str] = []
    cleaning: set[int] = set()
    beside: set[int] = set()
    for row in cluster.rows(
        """SELECT n.schedule_instance_id, n.status, LOCATE('"always"', t.defaults) > 0 AS runs_always,
        LOCATE('"after"', t.defaults) > 0 AS runs_beside
        FROM schedule_task_node n LEFT JOIN schedule_task_node_type t ON t.id = n.schedule_task_node_type_id
        ORDER BY n.schedule_instance_id, n.sequence"""
    ):
        found = nodes[row["schedule_instance_id"]]
        begun = row["status"] in ("running", "succeed", "failed")
        if begun and not row["runs_beside"] and not row["runs_always"] and set(found) - {"succeed"}:
            early.append(f"a node of instance {row['schedule_instance_id']} is {row['status']} behind {found}")
        found.append(row["status"])
        if row["runs_always"]:
            cleaning.add(row["schedule_instance_id"])
        if row["runs_beside"]:
            beside.add(row["schedule_instance_id"])
    yield from early
    for instance_id, row in instances.items():
        found = nodes.get(instance_id, [])
        if instance_id in beside:
            found = sorted(set(found), key=IN_A_ROW.index)
        fits = _nodes_fit_with_always if instance_id in cleaning else _nodes_fit
        if row["schedule_worker_node_id"] == 0:  # it runs as its shards
            if found:
                yield f"instance {instance_id} runs as its shards, and has nodes: {found}"
        elif not fits(row["status"], found):
            yield f"instance {instance_id} is {row['status']} ({row['reason']}), its nodes are {found}"


def _nodes_fit(status: str, nodes: Sequence[str]) -> bool:
    after = list(nodes)
    while after and after[0] == "succeed":
        del after[0]
    match status:
        case "succeed":
            return nodes[:1] == ["succeed"] and set(after) <= {"skipped"}
        case "running":
            return after[:1] == ["running"] and set(after[1:]) <= {"pending"}
        case "assigned":
            return bool(after) and set(after) == {"pending"}
        case "pending":
            return set(after) <= {"pending"}
        case "failed":
            return after[:1] == ["failed"] and set(after[1:]) <= {"canceled"}
        case _:
            return set(after) <= {"canceled", "failed"}


def _nodes_fit_with_always(status: str, nodes: Sequence[str]) -> bool:
    """As ``_nodes_fit``, where some of the nodes run always: behind one that has ended the run, too."""
    live = [node for node in nodes if node in ("pending", "running")]
    ends = [node for node in nodes if node in ("failed", "canceled", "skipped")]
    match status:
        case "succeed":
            return not live and set(ends) <= {"skipped"}
        case "failed":
            return not live and "failed" in ends
        case "canceled":
            return not live and (not ends or ends[0] != "skipped")
        case "running":
            return live.count("running") == 1 and live[0] == "running"
        case _:
            return set(live) <= {"pending"}


def transitions_are_legal(journal: Iterable[Row]) -> Iterator[str]:
    """Each change is one that ``TRANSITIONS`` knows; what has ended changes no more; ``attempt`` only grows."""
    states: dict[int, tuple[str, int]] = {}
    for row in journal:
        instance_id, was, becomes = row["instance"], row["was"], row["becomes"]
        if becomes is None:
            if was not in ("pending", "assigned"):
                yield f"instance {instance_id} was deleted while {was}"
            continue
        if was is not None:
            before, attempt = states.get(instance_id, (was, 0))
            claimed = becomes == "running"
            if was != before or InstanceStatus(becomes) not in TRANSITIONS[InstanceStatus(was)]:
                yield f"instance {instance_id} went from {was} to {becomes} at {row['at']}"
            if row["attempt"] != attempt + claimed:
                yield f"instance {instance_id} went from attempt {attempt} to {row['attempt']}, {was} to {becomes}"
        states[instance_id] = (becomes, row["attempt"])


def restarting(cluster: Cluster) -> set[str]:
    """The names of the tasks whose further attempts begin with the first node again."""
    return {row["name"] for row in cluster.rows("SELECT name FROM schedule_task WHERE on_retry = 'restart'")}


def each_run_is_alone(evidence: Iterable[Entry], killed: set[str], restarting: Collection[str]) -> Iterator[str]:
    """A handler is entered once for each attempt, and never while another attempt runs or after one returned.

    Except after a worker that was killed or frozen: what it had begun may begin again. And except in the further
    attempts of tasks that are ``restarting``.
    """
    runs: dict[tuple[int, str], list[Entry]] = defaultdict(list)
    for entry in evidence:
        runs[entry.instance, entry.node].append(entry)
    for (instance_id, node), entries in runs.items():
        who = f"{node} of instance {instance_id} ({entries[0].task})"
        entered = Counter(e.attempt for e in entries if e.event == "enter")
        yield from (f"{who} ran {count} times in attempt {a}" for a, count in entered.items() if count > 1)
        sound = [e for e in entries if e.service not in killed]
        again = entries[0].task in restarting
        returned = Counter(e.attempt if again else 0 for e in sound if e.event == "exit")
        if any(count > 1 for count in returned.values()):
            yield f"{who} returned more than once: {[e for e in sound if e.event == 'exit']}"
        for before, after in pairwise(sound):
            may_follow = again and before.event == "exit" and before.attempt < after.attempt
            if after.event == "enter" and before.event in ("enter", "exit") and not may_follow:
                yield f"{who} was entered after {before.event} of attempt {before.attempt}: {after}"


def results_have_evidence(cluster: Cluster, evidence: Iterable[Entry]) -> Iterator[str]:
    """Each node that is said to have succeeded did return, and each that returned is known."""
    returned = Counter((e.instance, e.node) for e in evidence if e.event == "exit")
    rows = cluster.rows(
        """SELECT n.schedule_instance_id AS instance, t.type, n.status FROM schedule_task_node n
        JOIN schedule_task_node_type t ON t.id = n.schedule_task_node_type_id"""
    )
    for row in rows:
        if row["status"] == "succeed" and not returned[row["instance"], row["type"]]:
            yield f"{row['type']} of instance {row['instance']} succeeded, and its handler never returned"
    known = {(row["instance"], row["type"]) for row in rows}
    yield from (f"{node} of instance {i} ran, and has no row" for i, node in returned.keys() - known)


def handlers_were_not_early(cluster: Cluster, instances: Instances, evidence: Iterable[Entry]) -> Iterator[str]:
    """No handler was entered before its instance was due, by the evidence."""
    boot = cluster.boot()
    for entry in evidence:
        row = instances.get(entry.instance)
        entered = boot + timedelta(seconds=entry.boottime)
        if row is None or entry.event != "enter" or entry.attempt != row["attempt"]:
            continue  # a retry is due later than the attempt before it
        if entered < row["due_at"] - CLOCK_TOLERANCE - cluster.clocks_differ:
            yield f"instance {entry.instance} was entered at {entered}, before it was due {row['due_at']}"


def no_fire_is_missing(cluster: Cluster) -> Iterator[str]:
    """Of a task that fires each second, each second from its first fire to its last has a row or was counted."""
    for task in cluster.rows("SELECT * FROM schedule_task WHERE cron IN %s", EVERY_SECOND):
        fires = [
            row["schedule_datetime"]
            for row in cluster.instances_of(task["id"])
            if row["origin"] == "cron" and row["run_number"] == 0
        ]
        gaps = [(a, b) for a, b in pairwise(fires) if b - a != timedelta(seconds=1)]
        missing = sum(round((b - a).total_seconds()) - 1 for a, b in gaps)
        counted = task["misfires"] + task["fires_held_back"]
        if missing > counted:
            yield f"task {task['name']} misses {missing} fires and counts {counted}: {gaps}"


def nobody_complained(cluster: Cluster) -> Iterator[str]:
    """While the database is there no process meets an error of its own, even one that it recovers from."""
    if cluster.database_failed:
        return
    for process in cluster.processes:
        lines = [line for line in process.log.splitlines() if "Traceback" in line or " ERROR " in line]
        yield from (f"{process} logged: {line}" for line in lines[:3])
