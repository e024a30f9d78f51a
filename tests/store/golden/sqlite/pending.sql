-- The idle assigner asks whether there is anything to do.

-- assignments.look
SELECT EXISTS (
    SELECT schedule_instance.id
    FROM schedule_instance
    WHERE schedule_instance.status = :status_1
      AND schedule_instance.schedule_worker_node_id IS NULL
      AND schedule_instance.priority IN (:priority_1, …)
      AND schedule_instance.due_at <= :horizon
) AS anon_1,
    EXISTS (
        SELECT schedule_instance.id
        FROM schedule_instance
        WHERE schedule_instance.status = :status_1
          AND schedule_instance.schedule_worker_node_id IS NULL
          AND schedule_instance.priority IN (:priority_1, …)
          AND schedule_instance.due_at IS NULL
    ) AS anon_2,
    EXISTS (
        SELECT schedule_pause.id
        FROM schedule_pause
        WHERE schedule_pause.is_deleted = :is_deleted_1
    ) AS anon_3,
    EXISTS (
        SELECT schedule_request.id
        FROM schedule_request
        WHERE schedule_request.is_deleted = :is_deleted_2
    ) AS anon_4, EXISTS (SELECT schedule_chain.id FROM schedule_chain) AS anon_5,
    EXISTS (
        SELECT schedule_task.id
        FROM schedule_task
        WHERE schedule_task.max_waiting IS NOT NULL
    ) AS anon_6;

-- The assigner gives rows inserted by SQL their due time.

-- assignments.orphans
SELECT schedule_instance.id, schedule_instance.schedule_datetime
FROM schedule_instance
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id IS NULL
  AND schedule_instance.priority IN (:priority_1, …)
  AND schedule_instance.due_at IS NULL
LIMIT :limit OFFSET :param_1;

-- transitions.giving.adopt
UPDATE schedule_instance
SET due_at=schedule_instance.schedule_datetime
WHERE (schedule_instance.id IN (SELECT value FROM json_each(:ids)))
  AND schedule_instance.due_at IS NULL;

-- The assigner reads a page of what is pending, the most urgent first.

-- assignments._in_order
SELECT schedule_instance.id, schedule_instance.schedule_task_id,
    schedule_instance.schedule_datetime, schedule_instance.due_at, schedule_instance.run_number,
    schedule_instance.fire_key, schedule_instance.priority,
    schedule_instance.param IS NOT NULL AS anon_1,
    length(coalesce(schedule_instance.param, schedule_task.param)) AS length_1,
    coalesce(
        length(
            replace(
                replace(
                    coalesce(schedule_instance.param, schedule_task.param), :replace_1, :replace_2
                ), :replace_3, :replace_4
            )
        ) < length(coalesce(schedule_instance.param, schedule_task.param)), 0
    ) AS coalesce_1, schedule_instance.reason, schedule_instance.lost_by, schedule_task.type,
    schedule_task.is_deleted, schedule_task.required_labels, schedule_instance.origin,
    schedule_instance.attempt, schedule_task.overlap_policy, schedule_task.max_instances,
    schedule_instance.overlap_slot, schedule_task.status, schedule_task.misfire_grace_seconds,
    schedule_task.misfire_policy, schedule_task.misfire_cap, schedule_instance.from_sequence,
    schedule_task.limit_name, schedule_task.run_timeout_seconds, schedule_instance.parent_id,
    schedule_instance.shard_index, schedule_instance.shard_total,
    schedule_instance.only_worker_node_id, schedule_task.spread, schedule_task.shards,
    schedule_instance.gmt_cancel_requested, schedule_task.pool, schedule_task.task_group,
    schedule_task.weight
FROM schedule_instance
LEFT OUTER JOIN schedule_task
  ON schedule_task.id = schedule_instance.schedule_task_id
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id IS NULL
  AND schedule_instance.due_at <= :horizon
  AND schedule_instance.priority IN (:priority_1, …)
ORDER BY schedule_instance.priority, schedule_instance.due_at, schedule_instance.id
LIMIT :limit OFFSET :param_1;

-- The next page, from behind the last row of this one.

-- assignments._in_order
SELECT schedule_instance.id, schedule_instance.schedule_task_id,
    schedule_instance.schedule_datetime, schedule_instance.due_at, schedule_instance.run_number,
    schedule_instance.fire_key, schedule_instance.priority,
    schedule_instance.param IS NOT NULL AS anon_1,
    length(coalesce(schedule_instance.param, schedule_task.param)) AS length_1,
    coalesce(
        length(
            replace(
                replace(
                    coalesce(schedule_instance.param, schedule_task.param), :replace_1, :replace_2
                ), :replace_3, :replace_4
            )
        ) < length(coalesce(schedule_instance.param, schedule_task.param)), 0
    ) AS coalesce_1, schedule_instance.reason, schedule_instance.lost_by, schedule_task.type,
    schedule_task.is_deleted, schedule_task.required_labels, schedule_instance.origin,
    schedule_instance.attempt, schedule_task.overlap_policy, schedule_task.max_instances,
    schedule_instance.overlap_slot, schedule_task.status, schedule_task.misfire_grace_seconds,
    schedule_task.misfire_policy, schedule_task.misfire_cap, schedule_instance.from_sequence,
    schedule_task.limit_name, schedule_task.run_timeout_seconds, schedule_instance.parent_id,
    schedule_instance.shard_index, schedule_instance.shard_total,
    schedule_instance.only_worker_node_id, schedule_task.spread, schedule_task.shards,
    schedule_instance.gmt_cancel_requested, schedule_task.pool, schedule_task.task_group,
    schedule_task.weight
FROM schedule_instance
LEFT OUTER JOIN schedule_task
  ON schedule_task.id = schedule_instance.schedule_task_id
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id IS NULL
  AND schedule_instance.due_at <= :horizon
  AND schedule_instance.priority = :priority
  AND (
      schedule_instance.due_at > :due_at
        OR schedule_instance.due_at = :due_at
        AND schedule_instance.id > :last
  )
ORDER BY schedule_instance.priority, schedule_instance.due_at, schedule_instance.id
LIMIT :limit OFFSET :param_1;

-- assignments._in_order: as above

-- Where that page's instances stand: most of them are known to wait far back in a line.

-- assignments._in_order
SELECT schedule_instance.id, schedule_instance.schedule_task_id, schedule_instance.priority,
    schedule_instance.due_at
FROM schedule_instance
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id IS NULL
  AND schedule_instance.due_at <= :horizon
  AND schedule_instance.priority = :priority
  AND (
      schedule_instance.due_at > :due_at
        OR schedule_instance.due_at = :due_at
        AND schedule_instance.id > :last
  )
ORDER BY schedule_instance.priority, schedule_instance.due_at, schedule_instance.id
LIMIT :limit OFFSET :param_1;

-- assignments._in_order
SELECT schedule_instance.id, schedule_instance.schedule_task_id, schedule_instance.priority,
    schedule_instance.due_at
FROM schedule_instance
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id IS NULL
  AND schedule_instance.due_at <= :horizon
  AND schedule_instance.priority IN (:priority_1, …)
ORDER BY schedule_instance.priority, schedule_instance.due_at, schedule_instance.id
LIMIT :limit OFFSET :param_1;
