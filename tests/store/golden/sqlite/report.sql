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
    gmt_started=CASE WHEN (done.completed IS NOT NULL) THEN done.started ELSE coalesce(
        done.started, schedule_task_node.gmt_started
    ) END, gmt_completed=done.completed, execution_result=done.result
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS status,
        json_extract(value, '$[2]') AS result, json_extract(value, '$[3]') AS started,
        json_extract(value, '$[4]') AS completed, json_extract(value, '$[5]') AS failures
    FROM json_each(:rows)
) AS done
WHERE schedule_task_node.id = done.id;

-- transitions.reporting.report
UPDATE schedule_instance NOT INDEXED
SET failed_attempts=CASE WHEN (CASE WHEN (done.status = 'running' AND schedule_instance.reason = done.reason) THEN NULL ELSE done.attempt_end END IS NULL) THEN schedule_instance.failed_attempts ELSE json_insert(
    coalesce(
        CASE WHEN json_valid(schedule_instance.failed_attempts) THEN CASE WHEN json_array_length(schedule_instance.failed_attempts) >= 10 THEN json_remove(
            schedule_instance.failed_attempts, '$[0]'
        ) ELSE schedule_instance.failed_attempts END END, '[]'
    ), '$[#]',
    json(
        CASE WHEN (
            done.status = 'running'
              AND schedule_instance.reason = done.reason
        ) THEN NULL ELSE done.attempt_end END
    )
) END, status=done.status, execution_result=done.result,
    reason=CASE WHEN (done.status = 'canceled') THEN coalesce(
        schedule_instance.reason, done.reason
    ) WHEN (done.status = 'running') THEN coalesce(done.reason, schedule_instance.reason) ELSE done.reason END,
    gmt_started=CASE WHEN (done.status = 'pending') THEN NULL ELSE coalesce(
        done.started, schedule_instance.gmt_started
    ) END, gmt_completed=done.completed,
    failures=coalesce(done.failures, schedule_instance.failures),
    due_at=CASE WHEN (
        done.status = 'pending'
          AND schedule_instance.gmt_cancel_requested IS NOT NULL
    ) THEN (strftime('%Y-%m-%d %H:%M:%f000', 'now')) ELSE coalesce(done.due, schedule_instance.due_at) END,
    schedule_worker_node_id=CASE WHEN (
        done.status = 'pending'
    ) THEN NULL ELSE schedule_instance.schedule_worker_node_id END,
    gmt_modified=(strftime('%Y-%m-%d %H:%M:%f000', 'now')), modifier=:modifier
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

-- Among others a run of a task that runs one at a time has ended: the worker claims the next one, too.

-- transitions.reporting.succeed: as above

-- transitions.reporting.succeed: as above

-- transitions.following.claim_following
SELECT (
    SELECT +schedule_instance.status = :param_1
      AND +schedule_instance.schedule_worker_node_id = :worker
      AND schedule_instance.gmt_cancel_requested IS NULL
      AND schedule_instance.attempt < :attempt_1
      AND strftime(
          '%Y-%m-%d %H:%M:%f000', schedule_instance.due_at, (-1 * :ahead) || ' seconds'
      ) <= (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
      AND strftime(
          '%Y-%m-%d %H:%M:%f000', schedule_instance.schedule_datetime, (-1 * :ahead) || ' seconds'
      ) IS NOT NULL
      AND schedule_instance.attempt = :attempt_read
      AND schedule_instance.schedule_task_id = :task AS anon_2
    FROM schedule_instance
    WHERE schedule_instance.id = :next
)
  AND (
      SELECT schedule_task.is_deleted = :is_deleted_1
        AND (schedule_task.status = :status_1 OR (:of_origin NOT IN (:param_2, …)))
        AND schedule_task.limit_name IS NULL
        AND (
            schedule_task.overlap_policy = :overlap_policy_1
              OR schedule_task.overlap_policy = :overlap_policy_2
              AND schedule_task.max_instances = :max_instances_1
        ) AS anon_3
      FROM schedule_task
      WHERE schedule_task.id = :task
  )
  AND (
      SELECT min(waiting.id) AS min_1
      FROM schedule_instance AS waiting
      WHERE waiting.turn_key = :task
        AND waiting.due_at = (
            SELECT min(earliest.due_at) AS min_2
            FROM schedule_instance AS earliest
            WHERE earliest.turn_key = :task
        )
  ) = :next
  AND (
      SELECT min(holder.overlap_key) AS min_3
      FROM schedule_instance AS holder
      WHERE holder.overlap_key BETWEEN :second_key AND :last_key
  ) IS NULL AS anon_1;

-- transitions.following.claim_following
UPDATE
  OR IGNORE schedule_instance
SET status=:status, attempt=(schedule_instance.attempt + :attempt_1), overlap_slot=0,
    gmt_started=CASE WHEN (
        schedule_instance.due_at > (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
    ) THEN schedule_instance.due_at ELSE (strftime('%Y-%m-%d %H:%M:%f000', 'now')) END,
    reason=:reason
WHERE schedule_instance.id = :next
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.status = :status_1
  AND schedule_instance.attempt = :attempt_read
  AND :answer = 1;

-- transitions.following.claim_following
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

-- It has succeeded, and no other is to be reported.

-- transitions.following.hand_on
SELECT (
    SELECT schedule_instance.schedule_worker_node_id = :worker
      AND schedule_instance.status = :status_1
      AND schedule_instance.attempt = :attempt_done AS anon_2
    FROM schedule_instance
    WHERE schedule_instance.id = :done
)
  AND (
      SELECT +schedule_instance.status = :param_1
        AND +schedule_instance.schedule_worker_node_id = :worker
        AND schedule_instance.gmt_cancel_requested IS NULL
        AND schedule_instance.attempt < :attempt_1
        AND strftime(
            '%Y-%m-%d %H:%M:%f000', schedule_instance.due_at, (-1 * :ahead) || ' seconds'
        ) <= (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
        AND strftime(
            '%Y-%m-%d %H:%M:%f000', schedule_instance.schedule_datetime, (-1 * :ahead) || ' seconds'
        ) IS NOT NULL
        AND schedule_instance.attempt = :attempt_read
        AND schedule_instance.schedule_task_id = :task AS anon_3
      FROM schedule_instance
      WHERE schedule_instance.id = :next
  )
  AND (
      SELECT schedule_task.is_deleted = :is_deleted_1
        AND (schedule_task.status = :status_2 OR (:of_origin NOT IN (:param_2, …)))
        AND schedule_task.limit_name IS NULL
        AND (
            schedule_task.overlap_policy = :overlap_policy_1
              OR schedule_task.overlap_policy = :overlap_policy_2
              AND schedule_task.max_instances = :max_instances_1
        ) AS anon_4
      FROM schedule_task
      WHERE schedule_task.id = :task
  )
  AND (
      SELECT min(waiting.id) AS min_1
      FROM schedule_instance AS waiting
      WHERE waiting.turn_key = :task
        AND waiting.due_at = (
            SELECT min(earliest.due_at) AS min_2
            FROM schedule_instance AS earliest
            WHERE earliest.turn_key = :task
        )
  ) = :next
  AND (
      SELECT min(holder.overlap_key) AS min_3
      FROM schedule_instance AS holder
      WHERE holder.overlap_key BETWEEN :second_key AND :last_key
  ) IS NULL AS anon_1;

-- transitions.following.hand_on
UPDATE schedule_instance
SET status=CASE WHEN (schedule_instance.id = :next) THEN :param_1 ELSE :param_2 END,
    attempt=CASE WHEN (
        schedule_instance.id = :next
    ) THEN schedule_instance.attempt + :attempt_1 ELSE schedule_instance.attempt END,
    overlap_slot=CASE WHEN (
        schedule_instance.id = :next
    ) THEN 0 ELSE schedule_instance.overlap_slot END,
    gmt_started=CASE WHEN (schedule_instance.id = :next) THEN CASE WHEN (
        schedule_instance.due_at > (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
    ) THEN schedule_instance.due_at ELSE (strftime('%Y-%m-%d %H:%M:%f000', 'now')) END ELSE :started END,
    gmt_completed=CASE WHEN (schedule_instance.id = :next) THEN NULL ELSE :ended END,
    reason=:reason,
    execution_result=CASE WHEN (
        schedule_instance.id = :next
    ) THEN schedule_instance.execution_result ELSE :result END,
    gmt_modified=CASE WHEN (schedule_instance.id = :next) THEN schedule_instance.gmt_modified ELSE (
        strftime('%Y-%m-%d %H:%M:%f000', 'now')
    ) END,
    modifier=CASE WHEN (
        schedule_instance.id = :next
    ) THEN schedule_instance.modifier ELSE :param_3 END
WHERE schedule_instance.id IN (:done, :next)
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.status = CASE WHEN (
      schedule_instance.id = :next
  ) THEN :param_4 ELSE :param_5 END
  AND schedule_instance.attempt = CASE WHEN (
      schedule_instance.id = :next
  ) THEN :attempt_read ELSE :attempt_done END
  AND :answer = 1;

-- transitions.following.hand_on
UPDATE schedule_task_node
SET status=CASE WHEN (schedule_task_node.id = :next_node) THEN :param_1 ELSE :param_2 END,
    gmt_started=CASE WHEN (schedule_task_node.id = :next_node) THEN (
        strftime('%Y-%m-%d %H:%M:%f000', 'now')
    ) ELSE :node_started END,
    gmt_completed=CASE WHEN (schedule_task_node.id = :next_node) THEN NULL ELSE :node_ended END,
    execution_result=CASE WHEN (
        schedule_task_node.id = :next_node
    ) THEN schedule_task_node.execution_result ELSE :node_result END
WHERE schedule_task_node.id IN (:node, :next_node)
  AND schedule_task_node.schedule_instance_id IN (:done, :next);

-- A worker hands back what it will not run.

-- transitions.reporting.lock: as above

-- transitions.reporting.hand_back
UPDATE schedule_instance NOT INDEXED
SET failed_attempts=CASE WHEN (CASE WHEN (done.status = 'running' AND schedule_instance.reason = done.reason) THEN NULL ELSE done.attempt_end END IS NULL) THEN schedule_instance.failed_attempts ELSE json_insert(
    coalesce(
        CASE WHEN json_valid(schedule_instance.failed_attempts) THEN CASE WHEN json_array_length(schedule_instance.failed_attempts) >= 10 THEN json_remove(
            schedule_instance.failed_attempts, '$[0]'
        ) ELSE schedule_instance.failed_attempts END END, '[]'
    ), '$[#]',
    json(
        CASE WHEN (
            done.status = 'running'
              AND schedule_instance.reason = done.reason
        ) THEN NULL ELSE done.attempt_end END
    )
) END, status=done.status, execution_result=done.result,
    reason=CASE WHEN (done.status = 'canceled') THEN coalesce(
        schedule_instance.reason, done.reason
    ) WHEN (done.status = 'running') THEN coalesce(done.reason, schedule_instance.reason) ELSE done.reason END,
    gmt_started=CASE WHEN (done.status = 'pending') THEN NULL ELSE coalesce(
        done.started, schedule_instance.gmt_started
    ) END, gmt_completed=done.completed,
    failures=coalesce(done.failures, schedule_instance.failures),
    due_at=CASE WHEN (
        done.status = 'pending'
          AND schedule_instance.gmt_cancel_requested IS NOT NULL
    ) THEN (strftime('%Y-%m-%d %H:%M:%f000', 'now')) ELSE coalesce(done.due, schedule_instance.due_at) END,
    schedule_worker_node_id=CASE WHEN (
        done.status = 'pending'
    ) THEN NULL ELSE schedule_instance.schedule_worker_node_id END,
    gmt_modified=(strftime('%Y-%m-%d %H:%M:%f000', 'now')), modifier=:modifier
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
