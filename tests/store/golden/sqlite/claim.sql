-- A worker claims what is due within 100 ms: it takes, starts the first nodes, commits, and reads.

-- runs._read
SELECT schedule_instance.id,
    CASE WHEN (
        coalesce(schedule_task_node.sequence, :coalesce_1) = :coalesce_2
    ) THEN schedule_instance.schedule_task_id END AS anon_1,
    CASE WHEN (
        coalesce(schedule_task_node.sequence, :coalesce_1) = :coalesce_2
    ) THEN schedule_instance.schedule_datetime END AS anon_2,
    CASE WHEN (
        coalesce(schedule_task_node.sequence, :coalesce_1) = :coalesce_2
    ) THEN nullif(schedule_instance.due_at, schedule_instance.schedule_datetime) END AS anon_3,
    CASE WHEN (
        coalesce(schedule_task_node.sequence, :coalesce_1) = :coalesce_2
    ) THEN CASE WHEN (length(schedule_instance.param) <= 4096) THEN schedule_instance.param END END AS anon_4,
    CASE WHEN (
        coalesce(schedule_task_node.sequence, :coalesce_1) = :coalesce_2
    ) THEN schedule_task.name END AS anon_5,
    CASE WHEN (coalesce(schedule_task_node.sequence, :coalesce_1) = :coalesce_2) THEN json_array(
        schedule_instance.status, schedule_instance.attempt, schedule_instance.run_number,
        schedule_instance.origin, schedule_instance.failures, schedule_task.status,
        schedule_task.is_deleted, schedule_task.overlap_policy, schedule_task.max_instances,
        schedule_task.timezone,
        CASE WHEN (schedule_task.retries = 0 AND schedule_task.retry_delay_seconds = 10 AND schedule_task.retry_backoff = 'exponential' AND schedule_task.max_retry_delay_seconds IS NULL AND schedule_task.retry_jitter_percent = 0 AND schedule_task.retry_on IS NULL AND schedule_task.never_retry IS NULL AND schedule_task.on_retry = 'resume') THEN NULL ELSE json_array(
            schedule_task.retries, schedule_task.retry_delay_seconds, schedule_task.retry_backoff,
            schedule_task.max_retry_delay_seconds, schedule_task.retry_jitter_percent,
            trim(
                CASE WHEN (length(schedule_task.retry_on) <= 4096) THEN schedule_task.retry_on END
            ),
            trim(
                CASE WHEN (
                    length(schedule_task.never_retry) <= 4096
                ) THEN schedule_task.never_retry END
            ), schedule_task.on_retry
        ) END, schedule_task.on_worker_lost, schedule_task.timeout_seconds,
        schedule_task.run_timeout_seconds, schedule_instance.from_sequence,
        schedule_task.limit_name, schedule_task.weight,
        CASE WHEN (schedule_instance.shard_index IS NOT NULL) THEN json_array(
            schedule_instance.parent_id, schedule_instance.shard_index,
            schedule_instance.shard_total,
            CASE WHEN (schedule_instance.parent_id IS NULL) THEN 1 WHEN (
                EXISTS (
                    SELECT parent.id
                    FROM schedule_instance AS parent
                    WHERE parent.id = schedule_instance.parent_id
                      AND parent.status = :status_1
                )
            ) THEN 1 ELSE 0 END
        ) END,
        coalesce(
            CASE WHEN (
                length(schedule_instance.param) > 4096
            ) THEN length(schedule_instance.param) END, 0
        )
    ) END AS anon_6,
    CASE WHEN (coalesce(schedule_task_node.sequence, :coalesce_1) = :coalesce_2) THEN (
        SELECT count(*) AS count_1
        FROM schedule_task_node AS counted
        WHERE counted.schedule_instance_id = schedule_instance.id
          AND counted.instance_gmt_create = schedule_instance.gmt_create
    ) END AS anon_7,
    CASE WHEN (schedule_instance.id = :first) THEN (
        strftime('%Y-%m-%d %H:%M:%f000', 'now')
    ) END AS anon_8, schedule_task_node.id AS id_1,
    json_array(
        schedule_task_node.schedule_task_node_type_id, schedule_task_node.sequence,
        schedule_task_node.status, schedule_task_node.failures,
        coalesce(CASE WHEN (length(schedule_task_node.param) > 4096) THEN length(schedule_task_node.param) END, 0) + coalesce(
            CASE WHEN (
                length(schedule_task_node.execution_result) > 4096
            ) THEN length(schedule_task_node.execution_result) END, 0
        )
    ) AS json_array_1,
    CASE WHEN (
        length(schedule_task_node.param) <= 4096
    ) THEN schedule_task_node.param END AS anon_9,
    CASE WHEN (
        length(schedule_task_node.execution_result) <= 4096
    ) THEN schedule_task_node.execution_result END AS anon_10
FROM schedule_instance
JOIN schedule_task
  ON schedule_task.id = schedule_instance.schedule_task_id
LEFT OUTER JOIN schedule_task_node
  ON schedule_task_node.schedule_instance_id = schedule_instance.id
  AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
WHERE (schedule_instance.id IN (SELECT value FROM json_each(:ids)))
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.status IN (:status_2, …)
ORDER BY schedule_instance.id;

-- transitions.claiming.claim_read
UPDATE
  OR IGNORE schedule_instance
SET status=:status, attempt=(schedule_instance.attempt + :attempt_1), overlap_slot=:slot,
    gmt_started=CASE WHEN (
        schedule_instance.due_at > (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
    ) THEN schedule_instance.due_at ELSE (strftime('%Y-%m-%d %H:%M:%f000', 'now')) END,
    reason=:reason
WHERE (schedule_instance.id IN (SELECT value FROM json_each(:ids)))
  AND +schedule_instance.status = :param_1
  AND +schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.gmt_cancel_requested IS NULL
  AND schedule_instance.attempt = :attempt_read
  AND (
      EXISTS (
          SELECT schedule_task.id
          FROM schedule_task
          WHERE schedule_task.id = schedule_instance.schedule_task_id
            AND schedule_task.is_deleted = :is_deleted_1
            AND (
                schedule_task.status = :status_1
                  OR (schedule_instance.origin NOT IN (:origin_1, …))
            )
            AND schedule_task.limit_name IS NULL
      )
  );

-- transitions.claiming.claim_read: as above

-- transitions.claiming.claim_read
UPDATE schedule_task_node
SET status=:status, gmt_started=(strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    gmt_completed=:gmt_completed
WHERE (schedule_task_node.id IN (SELECT value FROM json_each(:nodes)))
  AND (
      EXISTS (
          SELECT schedule_instance.id
          FROM schedule_instance
          WHERE schedule_task_node.schedule_instance_id = schedule_instance.id
            AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
            AND +schedule_instance.status = :param_1
            AND +schedule_instance.schedule_worker_node_id = :worker
      )
  );

-- The same of a task with max_instances: it asks which slots are free.

-- runs._read: as above

-- taken_slots.of
SELECT schedule_instance.overlap_key
FROM (SELECT json_extract(value, '$[0]') AS task FROM json_each(:rows)) AS asked
JOIN schedule_instance
  ON schedule_instance.overlap_key BETWEEN asked.task * :task_1
  AND asked.task * :task_1 + :param_1;

-- turns._places
SELECT asked.task,
    (
        SELECT json_array(waiting.due_at, waiting.id) AS json_array_1
        FROM schedule_instance AS waiting
        WHERE waiting.due_at IS NOT NULL
          AND waiting.turn_key = asked.task
        ORDER BY waiting.turn_key, waiting.due_at, waiting.id
        LIMIT :param_1 OFFSET :before
    ) AS anon_1
FROM (SELECT json_extract(value, '$[0]') AS task FROM json_each(:rows)) AS asked;

-- transitions.claiming.claim_read: as above

-- transitions.claiming.claim_read: as above

-- The same where a predecessor still runs: the unique overlap key refuses it, and it waits or is skipped.

-- runs._read: as above

-- transitions.claiming.claim_read: as above

-- transitions.claiming.claim_read: as above

-- runs._read
SELECT schedule_instance.id, schedule_instance.schedule_task_id,
    schedule_instance.schedule_datetime,
    nullif(schedule_instance.due_at, schedule_instance.schedule_datetime) AS nullif_1,
    CASE WHEN (length(schedule_instance.param) <= 4096) THEN schedule_instance.param END AS anon_1,
    schedule_task.name,
    json_array(
        schedule_instance.status, schedule_instance.attempt, schedule_instance.run_number,
        schedule_instance.origin, schedule_instance.failures, schedule_task.status,
        schedule_task.is_deleted, schedule_task.overlap_policy, schedule_task.max_instances,
        schedule_task.timezone,
        CASE WHEN (schedule_task.retries = 0 AND schedule_task.retry_delay_seconds = 10 AND schedule_task.retry_backoff = 'exponential' AND schedule_task.max_retry_delay_seconds IS NULL AND schedule_task.retry_jitter_percent = 0 AND schedule_task.retry_on IS NULL AND schedule_task.never_retry IS NULL AND schedule_task.on_retry = 'resume') THEN NULL ELSE json_array(
            schedule_task.retries, schedule_task.retry_delay_seconds, schedule_task.retry_backoff,
            schedule_task.max_retry_delay_seconds, schedule_task.retry_jitter_percent,
            trim(
                CASE WHEN (length(schedule_task.retry_on) <= 4096) THEN schedule_task.retry_on END
            ),
            trim(
                CASE WHEN (
                    length(schedule_task.never_retry) <= 4096
                ) THEN schedule_task.never_retry END
            ), schedule_task.on_retry
        ) END, schedule_task.on_worker_lost, schedule_task.timeout_seconds,
        schedule_task.run_timeout_seconds, schedule_instance.from_sequence,
        schedule_task.limit_name, schedule_task.weight,
        CASE WHEN (schedule_instance.shard_index IS NOT NULL) THEN json_array(
            schedule_instance.parent_id, schedule_instance.shard_index,
            schedule_instance.shard_total,
            CASE WHEN (schedule_instance.parent_id IS NULL) THEN 1 WHEN (
                EXISTS (
                    SELECT parent.id
                    FROM schedule_instance AS parent
                    WHERE parent.id = schedule_instance.parent_id
                      AND parent.status = :status_1
                )
            ) THEN 1 ELSE 0 END
        ) END,
        coalesce(
            CASE WHEN (
                length(schedule_instance.param) > 4096
            ) THEN length(schedule_instance.param) END, 0
        )
    ) AS json_array_1,
    CASE WHEN (schedule_instance.status = :param_1) THEN (
        SELECT holder.id
        FROM schedule_instance AS holder
        WHERE holder.overlap_key = schedule_instance.schedule_task_id * :schedule_task_id_1
    ) END AS anon_2,
    CASE WHEN (schedule_instance.id = :first) THEN (
        strftime('%Y-%m-%d %H:%M:%f000', 'now')
    ) END AS anon_3, schedule_task_node.id AS id_1,
    json_array(
        schedule_task_node.schedule_task_node_type_id, schedule_task_node.sequence,
        schedule_task_node.status, schedule_task_node.failures,
        coalesce(CASE WHEN (length(schedule_task_node.param) > 4096) THEN length(schedule_task_node.param) END, 0) + coalesce(
            CASE WHEN (
                length(schedule_task_node.execution_result) > 4096
            ) THEN length(schedule_task_node.execution_result) END, 0
        )
    ) AS json_array_2,
    CASE WHEN (
        length(schedule_task_node.param) <= 4096
    ) THEN schedule_task_node.param END AS anon_4,
    CASE WHEN (
        length(schedule_task_node.execution_result) <= 4096
    ) THEN schedule_task_node.execution_result END AS anon_5
FROM schedule_instance
JOIN schedule_task
  ON schedule_task.id = schedule_instance.schedule_task_id
LEFT OUTER JOIN schedule_task_node
  ON schedule_task_node.schedule_instance_id = schedule_instance.id
  AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
WHERE (schedule_instance.id IN (SELECT value FROM json_each(:ids)))
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.status IN (:status_2, …)
ORDER BY schedule_instance.id;

-- transitions.reporting.locked
SELECT schedule_instance.id, schedule_instance.id AS id__1
FROM schedule_instance
WHERE schedule_instance.id IN (SELECT value FROM json_each(:ids));

-- transitions.reporting.locked: as above

-- transitions.reporting.locked
SELECT schedule_task_node.schedule_instance_id, schedule_task_node.id
FROM schedule_task_node
WHERE schedule_task_node.schedule_instance_id IN (SELECT value FROM json_each(:ids));

-- transitions.reporting.locked: as above
