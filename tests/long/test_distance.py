"""Services whose database is in another zone: every fire runs, whatever the distance, and none is canceled."""

from collections import Counter
from datetime import timedelta

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.databases import run_sql
from tests.harness.distance import far
from tests.harness.processes import wait_until

TASKS, SECONDS = 100, 10
ENDED = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status NOT IN ('pending', 'assigned', 'running')"


@pytest.mark.parametrize("round_trip_seconds", [0.1, 0.3])
def test_tasks_that_fire_every_second_from_afar_run_each_time_and_none_is_skipped(
    cluster: Cluster, round_trip_seconds: float
) -> None:
    with far(cluster.url, round_trip_seconds) as cluster.reached_by:
        cluster.scheduler()
        cluster.worker("a")
        cluster.worker("b")
        cluster.wait_live("a", "b", deadline=60)
        first = cluster.now().replace(microsecond=0) + timedelta(seconds=8)
        last = first + timedelta(seconds=SECONDS - 1)
        run_sql(
            cluster.url,
            "INSERT INTO schedule_task (name, type, cron, cron_seconds, trigger_kind, starts_at, ends_at)"
            f" SELECT CONCAT('task ', seq), 'NOTE', '* * * * * *', 1, 'cron', '{first}', '{last}'"
            f" FROM seq_1_to_{TASKS}",
        )
        wait_until(lambda: cluster.row(ENDED)["n"] >= TASKS * SECONDS, 60, f"{TASKS * SECONDS} instances to end")
        rows = cluster.rows("SELECT schedule_datetime AS moment, status, reason, gmt_started FROM schedule_instance")
        assert Counter((row["status"], row["reason"]) for row in rows) == {("succeed", None): TASKS * SECONDS}
        assert Counter(row["moment"] for row in rows) == {first + timedelta(seconds=n): TASKS for n in range(SECONDS)}
        late = sorted((row["gmt_started"] - row["moment"]).total_seconds() for row in rows)
        print(
            "seconds late:", *(f"{100 * part:.0f} %: {late[int(part * len(late)) - 1]:.3f}" for part in (0.5, 0.95, 1))
        )
        invariants.check(cluster)
        for process in cluster.processes:
            process.discard()
