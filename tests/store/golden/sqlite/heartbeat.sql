-- A worker renews its lease at each heartbeat.

-- workers.heartbeat
UPDATE schedule_worker_beat
SET gmt_progress=CASE WHEN (
    schedule_worker_beat.started != :starts
) THEN (strftime('%Y-%m-%d %H:%M:%f000', 'now')) ELSE schedule_worker_beat.gmt_progress END,
    started=:starts, last_beat=(strftime('%Y-%m-%d %H:%M:%f000', 'now')), busy=:slots,
    abandoned=:stuck
WHERE schedule_worker_beat.schedule_worker_node_id = :worker
  AND schedule_worker_beat.gmt_dead IS NULL;

-- A worker compares what stands running with what it runs.

-- recovery.held
SELECT schedule_instance.id, schedule_instance.attempt, schedule_instance.gmt_cancel_requested
FROM schedule_instance
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :schedule_worker_node_id_1;
