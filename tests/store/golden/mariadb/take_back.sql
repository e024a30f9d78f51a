-- The reaper puts back to pending what a worker did not start in time.

-- assignments.overdue
SELECT queue.worker, queue.priority
FROM JSON_TABLE(
    :rows, '$[*]' COLUMNS (worker BIGINT UNSIGNED PATH '$[0]', priority INT PATH '$[1]')
) AS queue
WHERE (
    SELECT CASE WHEN (
        schedule_instance.due_at < :cutoff
    ) THEN schedule_instance.gmt_assigned END AS anon_1
    FROM schedule_instance FORCE INDEX (ix_schedule_instance_work)
    WHERE schedule_instance.status = :status_1
      AND schedule_instance.schedule_worker_node_id = queue.worker
      AND schedule_instance.priority = queue.priority
      AND schedule_instance.gmt_assigned IS NOT NULL
    ORDER BY schedule_instance.due_at
    LIMIT 1
) < :cutoff;

-- assignments.overdue
SELECT front.id
FROM (
    SELECT schedule_instance.id AS id, schedule_instance.gmt_assigned AS gmt_assigned
    FROM schedule_instance FORCE INDEX (ix_schedule_instance_work)
    WHERE schedule_instance.status = :status_1
      AND schedule_instance.schedule_worker_node_id = :worker
      AND schedule_instance.priority = :priority
      AND schedule_instance.gmt_assigned IS NOT NULL
      AND schedule_instance.due_at < :cutoff
    ORDER BY schedule_instance.due_at
    LIMIT :limit
) AS front
WHERE front.gmt_assigned < :cutoff;

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
