-- The reaper puts back to pending what a worker did not start in time.

-- assignments.overdue
SELECT queue.worker, queue.priority
FROM (
    SELECT json_extract(value, '$[0]') AS worker, json_extract(value, '$[1]') AS priority
    FROM json_each(:rows)
) AS queue
WHERE (
    SELECT CASE WHEN (
        schedule_instance.due_at < :cutoff
    ) THEN schedule_instance.gmt_assigned END AS anon_1
    FROM schedule_instance
    WHERE schedule_instance.status = :status_1
      AND schedule_instance.schedule_worker_node_id = queue.worker
      AND schedule_instance.priority = queue.priority
      AND schedule_instance.gmt_assigned IS NOT NULL
    ORDER BY schedule_instance.due_at
    LIMIT 1 OFFSET :param_1
) < :cutoff;

-- assignments.overdue
SELECT front.id
FROM (
    SELECT schedule_instance.id AS id, schedule_instance.gmt_assigned AS gmt_assigned
    FROM schedule_instance
    WHERE schedule_instance.status = :status_1
      AND schedule_instance.schedule_worker_node_id = :worker
      AND schedule_instance.priority = :priority
      AND schedule_instance.gmt_assigned IS NOT NULL
      AND schedule_instance.due_at < :cutoff
    ORDER BY schedule_instance.due_at
    LIMIT :limit OFFSET :param_1
) AS front
WHERE front.gmt_assigned < :cutoff;

-- assignments.free_assigned
SELECT schedule_instance.id
FROM schedule_instance
WHERE (schedule_instance.id IN (SELECT value FROM json_each(:ids)))
  AND +schedule_instance.status = :param_1;

-- transitions.giving.take_back_unstarted
UPDATE schedule_instance NOT INDEXED
SET status=:status, schedule_worker_node_id=:schedule_worker_node_id,
    lost_by=coalesce(:avoid, schedule_instance.lost_by), gmt_assigned=:gmt_assigned, reason=:reason
FROM (SELECT json_extract(value, '$[0]') AS id FROM json_each(:rows)) AS back
WHERE schedule_instance.id = back.id
  AND schedule_instance.status = :status_1
  AND schedule_instance.gmt_assigned < :cutoff;

-- The reaper, or a worker that stops, puts back what was assigned and is not claimed.

-- assignments.take_back_assigned
SELECT schedule_instance.id
FROM schedule_instance
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :schedule_worker_node_id_1
LIMIT :param_1 OFFSET :param_2;

-- assignments.free_assigned: as above

-- transitions.giving.take_back_from
UPDATE schedule_instance NOT INDEXED
SET status=:status, schedule_worker_node_id=:schedule_worker_node_id, gmt_assigned=:gmt_assigned,
    reason=:reason
FROM (SELECT json_extract(value, '$[0]') AS id FROM json_each(:rows)) AS back
WHERE schedule_instance.id = back.id
  AND schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :worker;
