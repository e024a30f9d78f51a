-- The reaper looks for the queues in which something is late.

-- unstarted.late_queues
SELECT queue.worker, queue.priority
FROM (
    SELECT json_extract(value, '$[0]') AS worker, json_extract(value, '$[1]') AS priority
    FROM json_each(:rows)
) AS queue
WHERE (
    SELECT schedule_instance.due_at
    FROM schedule_instance
    WHERE schedule_instance.status = :status_1
      AND schedule_instance.schedule_worker_node_id = queue.worker
      AND schedule_instance.priority = queue.priority
      AND schedule_instance.due_at IS NOT NULL
    ORDER BY schedule_instance.schedule_worker_node_id, schedule_instance.priority,
        schedule_instance.due_at
    LIMIT 1 OFFSET :param_1
) < :cutoff;

-- It puts back to pending what a worker did not start in time.

-- unstarted.overdue
SELECT schedule_instance.id, schedule_instance.due_at, schedule_instance.gmt_assigned
FROM schedule_instance
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.priority = :priority
  AND schedule_instance.due_at IS NOT NULL
  AND schedule_instance.due_at < :cutoff
ORDER BY schedule_instance.due_at, schedule_instance.id
LIMIT :limit OFFSET :param_1;

-- pools.places
SELECT schedule_pool_place.schedule_instance_id, schedule_pool_place.pool,
    schedule_pool_place.weight
FROM schedule_pool_place
JOIN schedule_instance
  ON schedule_pool_place.schedule_instance_id = schedule_instance.id
  AND schedule_pool_place.gmt_assigned = schedule_instance.gmt_assigned
WHERE schedule_pool_place.schedule_instance_id IN (SELECT value FROM json_each(:ids));

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

-- It goes on where the look before ended.

-- unstarted.overdue
SELECT schedule_instance.id, schedule_instance.due_at, schedule_instance.gmt_assigned
FROM schedule_instance
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.priority = :priority
  AND schedule_instance.due_at IS NOT NULL
  AND schedule_instance.due_at < :cutoff
  AND (
      schedule_instance.due_at > :due_at
        OR schedule_instance.due_at = :due_at
        AND schedule_instance.id > :last
  )
ORDER BY schedule_instance.due_at, schedule_instance.id
LIMIT :limit OFFSET :param_1;

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
