-- A worker renews its lease at each heartbeat.

-- workers.heartbeat
UPDATE schedule_worker_beat FORCE INDEX (PRIMARY)
SET gmt_progress=CASE WHEN (
    schedule_worker_beat.started != :starts
) THEN (UTC_TIMESTAMP(6)) ELSE schedule_worker_beat.gmt_progress END, started=:starts,
    last_beat=(UTC_TIMESTAMP(6)), busy=:slots, abandoned=:stuck
WHERE schedule_worker_beat.schedule_worker_node_id = :worker
  AND schedule_worker_beat.gmt_dead IS NULL;

-- A worker compares what stands running with what it runs.

-- recovery.held
SELECT schedule_instance.id, schedule_instance.attempt, schedule_instance.gmt_cancel_requested
FROM schedule_instance
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :schedule_worker_node_id_1;
