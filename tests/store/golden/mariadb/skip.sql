-- A claim skips a fire whose predecessor still ran when it was due.

-- runs._read
SELECT STRAIGHT_JOIN schedule_instance.id,
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
    CASE WHEN (schedule_instance.id = :first) THEN (UTC_TIMESTAMP(6)) END AS anon_8,
    schedule_task_node.id AS id_1,
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
FROM schedule_instance FORCE INDEX (PRIMARY)
INNER JOIN schedule_task
  ON schedule_task.id = schedule_instance.schedule_task_id
LEFT OUTER JOIN schedule_task_node
  ON schedule_task_node.schedule_instance_id = schedule_instance.id
  AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
WHERE (schedule_instance.id IN (:ids))
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.status IN (:status_2, …)
ORDER BY schedule_instance.id
LOCK IN SHARE MODE SKIP LOCKED;

-- overlap.overrun
SELECT schedule_instance.id, schedule_instance.gmt_started, schedule_instance.gmt_completed
FROM schedule_instance
INNER JOIN schedule_task
  ON schedule_task.id = schedule_instance.schedule_task_id
WHERE schedule_instance.id IN (:id_1, …)
  AND NOT (
      schedule_instance.origin = 'backfill'
        OR schedule_instance.origin = 'replay'
        OR schedule_instance.priority = 9
        AND schedule_task.priority != 9
  )
  AND schedule_instance.gmt_started IS NOT NULL
  AND schedule_instance.gmt_completed IS NOT NULL;

-- taken_slots.of
SELECT STRAIGHT_JOIN schedule_instance.overlap_key
FROM JSON_TABLE(:rows, '$[*]' COLUMNS (task BIGINT UNSIGNED PATH '$[0]')) AS asked
INNER JOIN schedule_instance FORCE INDEX (uq_schedule_instance_overlap_key)
  ON schedule_instance.overlap_key BETWEEN asked.task * :task_1
  AND asked.task * :task_1 + :param_1;

-- settling._states
SELECT schedule_instance.id, schedule_instance.gmt_cancel_requested, schedule_task.is_deleted,
    schedule_task.status
FROM schedule_instance
INNER JOIN schedule_task
  ON schedule_task.id = schedule_instance.schedule_task_id
WHERE schedule_instance.id IN (:id_1, …)
  AND schedule_instance.schedule_worker_node_id = :schedule_worker_node_id_1
  AND schedule_instance.status = :status_1;

-- settling._holders
SELECT schedule_instance.id, schedule_instance.schedule_task_id,
    schedule_instance.schedule_datetime, schedule_instance.gmt_started, schedule_instance.origin,
    CASE WHEN (
        schedule_instance.origin = 'backfill'
          OR schedule_instance.origin = 'replay'
          OR schedule_instance.priority = 9
          AND schedule_task.priority != 9
    ) THEN 1 ELSE 0 END AS is_of_the_past
FROM schedule_instance
INNER JOIN schedule_task
  ON schedule_task.id = schedule_instance.schedule_task_id
WHERE schedule_instance.overlap_key IN (:overlap_key_1, …);

-- transitions.canceling.skip
UPDATE JSON_TABLE(
    :rows, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]', reason VARCHAR(1023) PATH '$[1]')
) AS canceled
STRAIGHT_JOIN schedule_instance FORCE INDEX (PRIMARY)
SET schedule_instance.status=:status, schedule_instance.gmt_completed=(UTC_TIMESTAMP(6)),
    schedule_instance.reason=canceled.reason, schedule_instance.gmt_modified=(UTC_TIMESTAMP(6)),
    schedule_instance.modifier=:by
WHERE schedule_instance.id = canceled.id
  AND schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :worker;

-- transitions.nodes.follow
UPDATE schedule_task_node
SET status=CASE schedule_task_node.status WHEN :param_1 THEN :param_2 END
WHERE (schedule_task_node.schedule_instance_id IN (:ids))
  AND schedule_task_node.status IN (:status_1, …)
  AND (
      EXISTS (
          SELECT STRAIGHT_JOIN schedule_instance.id
          FROM schedule_instance FORCE INDEX (PRIMARY)
          WHERE schedule_task_node.schedule_instance_id = schedule_instance.id
            AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
            AND schedule_instance.status = :status_2
      )
  );
