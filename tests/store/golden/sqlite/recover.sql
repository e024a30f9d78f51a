-- The reaper takes what a dead worker was running.

-- recovery.recover
SELECT schedule_instance.id
FROM schedule_instance
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :worker
LIMIT :param_1 OFFSET :param_2;

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

-- recovery.recover
SELECT schedule_instance.id, schedule_instance.attempt, schedule_instance.schedule_task_id,
    CAST(schedule_instance.worker_losses AS INTEGER) AS worker_losses,
    schedule_instance.gmt_cancel_requested, schedule_instance.reason,
    (strftime('%Y-%m-%d %H:%M:%f000', 'now')) AS time
FROM schedule_instance
WHERE (schedule_instance.id IN (SELECT value FROM json_each(:ids)))
  AND +schedule_instance.status = :param_1
  AND +schedule_instance.schedule_worker_node_id = :worker
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
SELECT schedule_instance.id, schedule_task_node.id AS id_1, schedule_task_node.gmt_started
FROM schedule_instance
JOIN schedule_task_node
  ON schedule_task_node.schedule_instance_id = schedule_instance.id
  AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
WHERE (schedule_instance.id IN (SELECT value FROM json_each(:ids)))
  AND schedule_task_node.status = :status_1
  AND schedule_task_node.gmt_started IS NOT NULL;

-- cleanups._read
SELECT schedule_instance.id, schedule_task_node.id AS id_1, schedule_task_node.status,
    schedule_task_node.failures, schedule_task_node_type.defaults
FROM schedule_instance
JOIN schedule_task_node
  ON schedule_task_node.schedule_instance_id = schedule_instance.id
  AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
LEFT OUTER JOIN schedule_task_node_type
  ON schedule_task_node_type.id = schedule_task_node.schedule_task_node_type_id
WHERE schedule_instance.id IN (SELECT value FROM json_each(:ids))
ORDER BY schedule_instance.id, schedule_task_node.sequence;

-- transitions.recovering.recover
UPDATE schedule_instance
SET attempt=schedule_instance.attempt
WHERE schedule_instance.id IN (SELECT value FROM json_each(:ids));

-- transitions.recovering.recover
UPDATE schedule_instance NOT INDEXED
SET status=lost.status,
    schedule_worker_node_id=CASE WHEN (
        lost.status != 'pending'
    ) THEN schedule_instance.schedule_worker_node_id END,
    worker_losses=CASE WHEN (
        CAST(schedule_instance.worker_losses AS INTEGER) < :param_1
    ) THEN CAST(schedule_instance.worker_losses AS INTEGER) + lost.losses ELSE CAST(schedule_instance.worker_losses AS INTEGER) END,
    lost_by=CASE WHEN (lost.status != 'pending') THEN schedule_instance.lost_by ELSE :worker END,
    gmt_assigned=CASE WHEN (lost.status != 'pending') THEN schedule_instance.gmt_assigned END,
    gmt_started=CASE WHEN (lost.status != 'pending') THEN schedule_instance.gmt_started END,
    gmt_completed=CASE WHEN (lost.status != 'pending') THEN (
        strftime('%Y-%m-%d %H:%M:%f000', 'now')
    ) END,
    gmt_cancel_requested=CASE WHEN (
        lost.status != 'pending'
          OR lost.waits = :waits_1
    ) THEN schedule_instance.gmt_cancel_requested END, reason=lost.reason,
    execution_result=lost.result,
    failed_attempts=CASE WHEN (lost.attempt_end IS NULL) THEN schedule_instance.failed_attempts ELSE json_insert(
        coalesce(
            CASE WHEN json_valid(schedule_instance.failed_attempts) THEN CASE WHEN json_array_length(schedule_instance.failed_attempts) >= 10 THEN json_remove(
                schedule_instance.failed_attempts, '$[0]'
            ) ELSE schedule_instance.failed_attempts END END, '[]'
        ), '$[#]', json(lost.attempt_end)
    ) END, gmt_modified=(strftime('%Y-%m-%d %H:%M:%f000', 'now')), modifier=:by
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt,
        json_extract(value, '$[2]') AS requested, json_extract(value, '$[3]') AS waits,
        json_extract(value, '$[4]') AS status, json_extract(value, '$[5]') AS losses,
        json_extract(value, '$[6]') AS reason, json_extract(value, '$[7]') AS result,
        json_extract(value, '$[8]') AS attempt_end
    FROM json_each(:rows)
) AS lost
WHERE schedule_instance.id = lost.id
  AND +schedule_instance.status = :param_2
  AND +schedule_instance.schedule_worker_node_id IS :holder
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
WHERE (schedule_task_node.schedule_instance_id IN (SELECT value FROM json_each(:ids)))
  AND schedule_task_node.status IN (:status_2, …)
  AND (
      EXISTS (
          SELECT schedule_instance.id
          FROM schedule_instance
          WHERE schedule_task_node.schedule_instance_id = schedule_instance.id
            AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
            AND schedule_instance.status = :status_3
      )
  );

-- transitions.nodes.follow
UPDATE schedule_task_node
SET gmt_completed=CASE WHEN (
    schedule_task_node.status IN (:status_1, …)
) THEN (strftime('%Y-%m-%d %H:%M:%f000', 'now')) ELSE schedule_task_node.gmt_completed END,
    status=CASE schedule_task_node.status WHEN :param_1 THEN :param_2 WHEN :param_3 THEN :param_4 END
WHERE (schedule_task_node.schedule_instance_id IN (SELECT value FROM json_each(:ids)))
  AND schedule_task_node.status IN (:status_2, …)
  AND (
      EXISTS (
          SELECT schedule_instance.id
          FROM schedule_instance
          WHERE schedule_task_node.schedule_instance_id = schedule_instance.id
            AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
            AND schedule_instance.status = :status_3
      )
  );
