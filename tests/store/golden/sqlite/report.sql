-- A worker reports plain steps: a node has succeeded, and the next one of its run starts.

-- transitions.reporting.lock
SELECT count(*) AS count_1
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt
    FROM json_each(:rows)
) AS fence
JOIN schedule_instance
  ON schedule_instance.id = fence.id
  AND +schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.attempt = fence.attempt
WHERE +schedule_instance.status = :param_1;

-- transitions.reporting.proceed
UPDATE schedule_task_node NOT INDEXED
SET status=:status, gmt_started=joined.started, gmt_completed=joined.ended,
    execution_result=joined.result
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS result,
        json_extract(value, '$[2]') AS started, json_extract(value, '$[3]') AS ended
    FROM json_each(:rows)
) AS joined
WHERE schedule_task_node.id = joined.id;

-- transitions.reporting.proceed
UPDATE schedule_task_node NOT INDEXED
SET status=:status, gmt_started=joined.started, gmt_completed=:gmt_completed,
    execution_result=:execution_result
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS started
    FROM json_each(:rows)
) AS joined
WHERE schedule_task_node.id = joined.id;

-- A worker reports plain successes: instances first, since they fence, then their last nodes.

-- transitions.reporting.succeed
UPDATE schedule_instance NOT INDEXED
SET status=:status, gmt_started=joined.started, gmt_completed=joined.ended, reason=:reason,
    execution_result=joined.result, gmt_modified=(strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    modifier=:modifier
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt,
        json_extract(value, '$[2]') AS result, json_extract(value, '$[3]') AS started,
        json_extract(value, '$[4]') AS ended
    FROM json_each(:rows)
) AS joined
WHERE schedule_instance.id = joined.id
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.attempt = joined.attempt
  AND schedule_instance.status = :status_1;

-- transitions.reporting.succeed
UPDATE schedule_task_node NOT INDEXED
SET status=:status, gmt_started=joined.started, gmt_completed=joined.ended,
    execution_result=joined.result
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS result,
        json_extract(value, '$[2]') AS started, json_extract(value, '$[3]') AS ended
    FROM json_each(:rows)
) AS joined
WHERE schedule_task_node.id = joined.id;

-- The same where a run is not the worker's any more: it asks which had ended so.

-- transitions.reporting.succeed: as above

-- transitions.reporting.succeed
SELECT fence.id
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt
    FROM json_each(:rows)
) AS fence
JOIN schedule_instance
  ON schedule_instance.id = fence.id
  AND +schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.attempt = fence.attempt
WHERE +schedule_instance.status = :param_1;

-- A worker reports what else became of its runs: failures, retries, single nodes.

-- transitions.reporting.lock: as above

-- transitions.reporting.report
UPDATE schedule_task_node NOT INDEXED
SET status=done.status, failures=coalesce(done.failures, schedule_task_node.failures),
    gmt_started=coalesce(done.started, schedule_task_node.gmt_started),
    gmt_completed=done.completed, execution_result=done.result
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS status,
        json_extract(value, '$[2]') AS result, json_extract(value, '$[3]') AS started,
        json_extract(value, '$[4]') AS completed, json_extract(value, '$[5]') AS failures
    FROM json_each(:rows)
) AS done
WHERE schedule_task_node.id = done.id;

-- transitions.reporting.report
UPDATE schedule_instance NOT INDEXED
SET status=done.status, due_at=coalesce(done.due, schedule_instance.due_at),
    schedule_worker_node_id=CASE WHEN (
        done.status = 'pending'
    ) THEN NULL ELSE schedule_instance.schedule_worker_node_id END,
    failures=coalesce(done.failures, schedule_instance.failures),
    gmt_started=CASE WHEN (done.status = 'pending') THEN NULL ELSE coalesce(
        done.started, schedule_instance.gmt_started
    ) END, gmt_completed=done.completed,
    reason=CASE WHEN (
        done.status = 'canceled'
          OR done.status = 'running'
    ) THEN coalesce(schedule_instance.reason, done.reason) ELSE done.reason END,
    execution_result=done.result,
    failed_attempts=CASE WHEN (done.attempt_end IS NULL) THEN schedule_instance.failed_attempts ELSE json_insert(
        coalesce(
            CASE WHEN json_array_length(schedule_instance.failed_attempts) >= 10 THEN json_remove(
                schedule_instance.failed_attempts, '$[0]'
            ) ELSE schedule_instance.failed_attempts END, '[]'
        ), '$[#]', json(done.attempt_end)
    ) END, gmt_modified=(strftime('%Y-%m-%d %H:%M:%f000', 'now')), modifier=:modifier
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt,
        json_extract(value, '$[2]') AS status, json_extract(value, '$[3]') AS result,
        json_extract(value, '$[4]') AS reason, json_extract(value, '$[5]') AS started,
        json_extract(value, '$[6]') AS completed, json_extract(value, '$[7]') AS failures,
        json_extract(value, '$[8]') AS due, json_extract(value, '$[9]') AS attempt_end
    FROM json_each(:rows)
) AS done
WHERE schedule_instance.id = done.id
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.attempt = done.attempt
  AND schedule_instance.status = :status_1;

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

-- A worker hands back what it will not run.

-- transitions.reporting.lock: as above

-- transitions.reporting.hand_back
UPDATE schedule_instance NOT INDEXED
SET status=done.status, due_at=coalesce(done.due, schedule_instance.due_at),
    schedule_worker_node_id=CASE WHEN (
        done.status = 'pending'
    ) THEN NULL ELSE schedule_instance.schedule_worker_node_id END,
    failures=coalesce(done.failures, schedule_instance.failures),
    gmt_started=CASE WHEN (done.status = 'pending') THEN NULL ELSE coalesce(
        done.started, schedule_instance.gmt_started
    ) END, gmt_completed=done.completed,
    reason=CASE WHEN (
        done.status = 'canceled'
          OR done.status = 'running'
    ) THEN coalesce(schedule_instance.reason, done.reason) ELSE done.reason END,
    execution_result=done.result,
    failed_attempts=CASE WHEN (done.attempt_end IS NULL) THEN schedule_instance.failed_attempts ELSE json_insert(
        coalesce(
            CASE WHEN json_array_length(schedule_instance.failed_attempts) >= 10 THEN json_remove(
                schedule_instance.failed_attempts, '$[0]'
            ) ELSE schedule_instance.failed_attempts END, '[]'
        ), '$[#]', json(done.attempt_end)
    ) END, gmt_modified=(strftime('%Y-%m-%d %H:%M:%f000', 'now')), modifier=:modifier
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt,
        json_extract(value, '$[2]') AS status, json_extract(value, '$[3]') AS result,
        json_extract(value, '$[4]') AS reason, json_extract(value, '$[5]') AS started,
        json_extract(value, '$[6]') AS completed, json_extract(value, '$[7]') AS failures,
        json_extract(value, '$[8]') AS due, json_extract(value, '$[9]') AS attempt_end
    FROM json_each(:rows)
) AS done
WHERE schedule_instance.id = done.id
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.attempt = done.attempt
  AND schedule_instance.status = :status_1;

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
