-- The reaper looks for the queues in which something is late.

-- unstarted.late_queues
SELECT queue.worker, queue.priority
FROM JSON_TABLE(
    :rows, '$[*]' COLUMNS (worker BIGINT UNSIGNED PATH '$[0]', priority INT PATH '$[1]')
) AS queue
WHERE (
    SELECT schedule_instance.due_at
    FROM schedule_instance FORCE INDEX (ix_schedule_instance_work)
    WHERE schedule_instance.status = :status_1
      AND schedule_instance.schedule_worker_node_id = queue.worker
      AND schedule_instance.priority = queue.priority
      AND schedule_instance.due_at IS NOT NULL
    ORDER BY schedule_instance.schedule_worker_node_id, schedule_instance.priority,
        schedule_instance.due_at
    LIMIT 1
) < :cutoff;

-- It puts back to pending what a worker did not start in time.

-- unstarted.overdue
SELECT schedule_instance.id, schedule_instance.due_at, schedule_instance.gmt_assigned
FROM schedule_instance FORCE INDEX (ix_schedule_instance_work)
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.priority = :priority
  AND schedule_instance.due_at IS NOT NULL
  AND schedule_instance.due_at < :cutoff
ORDER BY schedule_instance.due_at, schedule_instance.id
LIMIT :limit;

-- pools.places
SELECT STRAIGHT_JOIN schedule_pool_place.schedule_instance_id, schedule_pool_place.pool,
    schedule_pool_place.weight
FROM schedule_pool_place FORCE INDEX (PRIMARY)
INNER JOIN schedule_instance
  ON schedule_pool_place.schedule_instance_id = schedule_instance.id
  AND schedule_pool_place.gmt_assigned = schedule_instance.gmt_assigned
WHERE schedule_pool_place.schedule_instance_id IN (:ids);

-- assignments.free_assigned
SELECT STRAIGHT_JOIN schedule_instance.id
FROM schedule_instance FORCE INDEX (PRIMARY)
WHERE (schedule_instance.id IN (:ids))
  AND schedule_instance.status = :param_1
FOR UPDATE SKIP LOCKED;

-- transitions.giving.take_back_unstarted
UPDATE JSON_TABLE(:rows, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]')) AS back
STRAIGHT_JOIN schedule_instance FORCE INDEX (PRIMARY)
SET schedule_instance.status=:status,
    schedule_instance.schedule_worker_node_id=:schedule_worker_node_id,
    schedule_instance.lost_by=coalesce(:avoid, schedule_instance.lost_by),
    schedule_instance.gmt_assigned=:gmt_assigned, schedule_instance.reason=:reason
WHERE schedule_instance.id = back.id
  AND schedule_instance.status = :status_1
  AND schedule_instance.gmt_assigned < :cutoff;

-- It goes on where the look before ended.

-- unstarted.overdue
SELECT schedule_instance.id, schedule_instance.due_at, schedule_instance.gmt_assigned
FROM schedule_instance FORCE INDEX (ix_schedule_instance_work)
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
LIMIT :limit;

-- The reaper, or a worker that stops, puts back what was assigned and is not claimed.

-- assignments.take_back_assigned
SELECT schedule_instance.id
FROM schedule_instance
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :schedule_worker_node_id_1
LIMIT :param_1;

-- assignments.free_assigned: as above

-- transitions.giving.take_back_from
UPDATE JSON_TABLE(:rows, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]')) AS back
STRAIGHT_JOIN schedule_instance FORCE INDEX (PRIMARY)
SET schedule_instance.status=:status,
    schedule_instance.schedule_worker_node_id=:schedule_worker_node_id,
    schedule_instance.gmt_assigned=:gmt_assigned, schedule_instance.reason=:reason
WHERE schedule_instance.id = back.id
  AND schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :worker;
