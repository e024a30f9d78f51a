-- The reaper takes what a dead worker was running.

-- recovery.recover
SELECT schedule_instance.id
FROM schedule_instance
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :worker
LIMIT :param_1;

-- transitions.reporting.locked
SELECT schedule_instance.id, schedule_instance.id AS id__1
FROM schedule_instance
WHERE schedule_instance.id IN (:ids);

-- transitions.reporting.locked
SELECT schedule_instance.id, schedule_instance.id AS id__1
FROM schedule_instance
WHERE schedule_instance.id IN (:ids)
FOR UPDATE SKIP LOCKED;

-- transitions.reporting.locked
SELECT schedule_task_node.schedule_instance_id, schedule_task_node.id
FROM schedule_task_node
WHERE schedule_task_node.schedule_instance_id IN (:ids);

-- transitions.reporting.locked
SELECT schedule_task_node.schedule_instance_id, schedule_task_node.id
FROM schedule_task_node
WHERE schedule_task_node.schedule_instance_id IN (:ids)
FOR UPDATE SKIP LOCKED;

-- recovery.recover
SELECT STRAIGHT_JOIN schedule_instance.id, schedule_instance.attempt,
    schedule_instance.schedule_task_id,
    CAST(schedule_instance.worker_losses AS SIGNED INTEGER) AS worker_losses,
    schedule_instance.gmt_cancel_requested, schedule_instance.reason, (UTC_TIMESTAMP(6)) AS time
FROM schedule_instance FORCE INDEX (PRIMARY)
WHERE (schedule_instance.id IN (:ids))
  AND schedule_instance.status = :param_1
  AND schedule_instance.schedule_worker_node_id = :worker
ORDER BY schedule_instance.id;

-- recovery._last_of
SELECT schedule_worker_node.name, schedule_worker_beat.reason, schedule_worker_beat.culprits
FROM schedule_worker_node
LEFT OUTER JOIN schedule_worker_beat
  ON schedule_worker_beat.schedule_worker_node_id = schedule_worker_node.id
WHERE schedule_worker_node.id = :id_1;

-- recovery._policies
SELECT schedule_task.id, schedule_task.on_worker_lost
FROM schedule_task
WHERE schedule_task.id IN (:id_1, …);

-- recovery._entered_of
SELECT STRAIGHT_JOIN schedule_instance.id, schedule_task_node.id AS id_1,
    schedule_task_node.gmt_started
FROM schedule_instance FORCE INDEX (PRIMARY)
INNER JOIN schedule_task_node
  ON schedule_task_node.schedule_instance_id = schedule_instance.id
  AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
WHERE (schedule_instance.id IN (:ids))
  AND schedule_task_node.status = :status_1
  AND schedule_task_node.gmt_started IS NOT NULL;

-- cleanups._read
SELECT STRAIGHT_JOIN schedule_instance.id, schedule_task_node.id AS id_1, schedule_task_node.status,
    schedule_task_node.failures, schedule_task_node_type.defaults
FROM schedule_instance FORCE INDEX (PRIMARY)
INNER JOIN schedule_task_node
  ON schedule_task_node.schedule_instance_id = schedule_instance.id
  AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
LEFT OUTER JOIN schedule_task_node_type
  ON schedule_task_node_type.id = schedule_task_node.schedule_task_node_type_id
WHERE schedule_instance.id IN (:ids)
ORDER BY schedule_instance.id, schedule_task_node.sequence;

-- transitions.recovering.recover
UPDATE schedule_instance FORCE INDEX (PRIMARY)
SET attempt=schedule_instance.attempt
WHERE schedule_instance.id IN (:ids);

-- transitions.recovering.recover
UPDATE JSON_TABLE(
    :rows,
    '$[*]' COLUMNS (
        id BIGINT UNSIGNED PATH '$[0]', attempt INT PATH '$[1]', requested INT PATH '$[2]',
        waits INT PATH '$[3]', status VARCHAR(1023) PATH '$[4]', losses INT PATH '$[5]',
        reason VARCHAR(1023) PATH '$[6]', result LONGTEXT PATH '$[7]',
        attempt_end LONGTEXT PATH '$[8]'
    )
) AS lost
STRAIGHT_JOIN schedule_instance FORCE INDEX (PRIMARY)
SET schedule_instance.status=lost.status,
    schedule_instance.schedule_worker_node_id=CASE WHEN (
        lost.status != 'pending'
    ) THEN schedule_instance.schedule_worker_node_id END,
    schedule_instance.worker_losses=CASE WHEN (
        CAST(schedule_instance.worker_losses AS SIGNED INTEGER) < :param_1
    ) THEN CAST(schedule_instance.worker_losses AS SIGNED INTEGER) + lost.losses ELSE CAST(schedule_instance.worker_losses AS SIGNED INTEGER) END,
    schedule_instance.lost_by=CASE WHEN (
        lost.status != 'pending'
    ) THEN schedule_instance.lost_by ELSE :worker END,
    schedule_instance.gmt_assigned=CASE WHEN (
        lost.status != 'pending'
    ) THEN schedule_instance.gmt_assigned END,
    schedule_instance.gmt_started=CASE WHEN (
        lost.status != 'pending'
    ) THEN schedule_instance.gmt_started END,
    schedule_instance.gmt_completed=CASE WHEN (
        lost.status != 'pending'
    ) THEN (UTC_TIMESTAMP(6)) END,
    schedule_instance.gmt_cancel_requested=CASE WHEN (
        lost.status != 'pending'
          OR lost.waits = :waits_1
    ) THEN schedule_instance.gmt_cancel_requested END, schedule_instance.reason=lost.reason,
    schedule_instance.execution_result=lost.result,
    schedule_instance.failed_attempts=CASE WHEN (lost.attempt_end IS NULL) THEN schedule_instance.failed_attempts ELSE JSON_ARRAY_APPEND(
        COALESCE(
            CASE WHEN JSON_VALID(schedule_instance.failed_attempts) THEN CASE WHEN JSON_LENGTH(schedule_instance.failed_attempts) >= 10 THEN JSON_REMOVE(
                schedule_instance.failed_attempts, '$[0]'
            ) ELSE schedule_instance.failed_attempts END END, JSON_ARRAY()
        ), '$', JSON_EXTRACT(lost.attempt_end, '$')
    ) END, schedule_instance.gmt_modified=(UTC_TIMESTAMP(6)), schedule_instance.modifier=:by
WHERE schedule_instance.id = lost.id
  AND schedule_instance.status = :param_2
  AND schedule_instance.schedule_worker_node_id <=> :holder
  AND schedule_instance.attempt = lost.attempt
  AND CASE WHEN (
      schedule_instance.gmt_cancel_requested IS NULL
  ) THEN :param_3 ELSE :param_4 END = lost.requested
  AND (
      lost.waits = :waits_2
        OR NOT (
            EXISTS (
                SELECT schedule_task_node.id
                FROM schedule_task_node
                WHERE schedule_task_node.schedule_instance_id = schedule_instance.id
                  AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
                  AND schedule_task_node.status = :status_1
                  AND schedule_task_node.gmt_started IS NOT NULL
            )
        )
  );

-- transitions.nodes.follow
UPDATE schedule_task_node
SET gmt_started=CASE WHEN (
    schedule_task_node.status IN (:status_1, …)
) THEN NULL ELSE schedule_task_node.gmt_started END,
    status=CASE schedule_task_node.status WHEN :param_1 THEN :param_2 END
WHERE (schedule_task_node.schedule_instance_id IN (:ids))
  AND schedule_task_node.status IN (:status_2, …)
  AND (
      EXISTS (
          SELECT STRAIGHT_JOIN schedule_instance.id
          FROM schedule_instance FORCE INDEX (PRIMARY)
          WHERE schedule_task_node.schedule_instance_id = schedule_instance.id
            AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
            AND schedule_instance.status = :status_3
      )
  );

-- transitions.nodes.follow
UPDATE schedule_task_node
SET gmt_completed=CASE WHEN (
    schedule_task_node.status IN (:status_1, …)
) THEN (UTC_TIMESTAMP(6)) ELSE schedule_task_node.gmt_completed END,
    status=CASE schedule_task_node.status WHEN :param_1 THEN :param_2 WHEN :param_3 THEN :param_4 END
WHERE (schedule_task_node.schedule_instance_id IN (:ids))
  AND schedule_task_node.status IN (:status_2, …)
  AND (
      EXISTS (
          SELECT STRAIGHT_JOIN schedule_instance.id
          FROM schedule_instance FORCE INDEX (PRIMARY)
          WHERE schedule_task_node.schedule_instance_id = schedule_instance.id
            AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
            AND schedule_instance.status = :status_3
      )
  );
