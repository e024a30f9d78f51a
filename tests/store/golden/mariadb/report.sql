-- A worker reports plain steps: a node has succeeded, and the next one of its run starts.

-- transitions.reporting.lock
SELECT STRAIGHT_JOIN count(*) AS count_1
FROM JSON_TABLE(
    :rows, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]', attempt INT PATH '$[1]')
) AS fence
INNER JOIN schedule_instance FORCE INDEX (PRIMARY)
  ON schedule_instance.id = fence.id
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.attempt = fence.attempt
WHERE schedule_instance.status = :param_1
FOR UPDATE;

-- transitions.reporting.proceed
UPDATE schedule_task_node FORCE INDEX (PRIMARY)
SET status=:status, gmt_started=ELT(INTERVAL(schedule_task_node.id, :ids), :started_listed),
    gmt_completed=ELT(INTERVAL(schedule_task_node.id, :ids), :ended_listed),
    execution_result=ELT(INTERVAL(schedule_task_node.id, :ids), :result_listed)
WHERE schedule_task_node.id IN (:ids);

-- transitions.reporting.proceed
UPDATE schedule_task_node FORCE INDEX (PRIMARY)
SET status=:status, gmt_started=ELT(INTERVAL(schedule_task_node.id, :ids), :started_listed),
    gmt_completed=:gmt_completed, execution_result=:execution_result
WHERE schedule_task_node.id IN (:ids);

-- A worker reports plain successes: instances first, since they fence, then their last nodes.

-- transitions.reporting.succeed
UPDATE schedule_instance FORCE INDEX (PRIMARY)
SET status=:status, gmt_started=ELT(INTERVAL(schedule_instance.id, :ids), :started_listed),
    gmt_completed=ELT(INTERVAL(schedule_instance.id, :ids), :ended_listed), reason=:reason,
    execution_result=ELT(INTERVAL(schedule_instance.id, :ids), :result_listed),
    gmt_modified=(UTC_TIMESTAMP(6)), modifier=:modifier
WHERE (schedule_instance.id IN (:ids))
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.attempt = ELT(INTERVAL(schedule_instance.id, :ids), :attempt_listed)
  AND schedule_instance.status = :status_1;

-- transitions.reporting.succeed
UPDATE schedule_task_node FORCE INDEX (PRIMARY)
SET status=:status, gmt_started=ELT(INTERVAL(schedule_task_node.id, :ids), :started_listed),
    gmt_completed=ELT(INTERVAL(schedule_task_node.id, :ids), :ended_listed),
    execution_result=ELT(INTERVAL(schedule_task_node.id, :ids), :result_listed)
WHERE schedule_task_node.id IN (:ids);

-- The same where a run is not the worker's any more: it asks which had ended so.

-- transitions.reporting.succeed: as above

-- transitions.reporting.succeed
SELECT STRAIGHT_JOIN fence.id
FROM JSON_TABLE(
    :rows, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]', attempt INT PATH '$[1]')
) AS fence
INNER JOIN schedule_instance FORCE INDEX (PRIMARY)
  ON schedule_instance.id = fence.id
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.attempt = fence.attempt
WHERE schedule_instance.status = :param_1;

-- A worker reports what else became of its runs: failures, retries, single nodes.

-- transitions.reporting.lock: as above

-- transitions.reporting.report
UPDATE JSON_TABLE(
    :rows,
    '$[*]' COLUMNS (
        id BIGINT UNSIGNED PATH '$[0]', status VARCHAR(1023) PATH '$[1]',
        result LONGTEXT PATH '$[2]', started DATETIME(6) PATH '$[3]',
        completed DATETIME(6) PATH '$[4]', failures INT PATH '$[5]'
    )
) AS done
STRAIGHT_JOIN schedule_task_node FORCE INDEX (PRIMARY)
SET schedule_task_node.status=done.status,
    schedule_task_node.failures=coalesce(done.failures, schedule_task_node.failures),
    schedule_task_node.gmt_started=CASE WHEN (done.completed IS NOT NULL) THEN done.started ELSE coalesce(
        done.started, schedule_task_node.gmt_started
    ) END, schedule_task_node.gmt_completed=done.completed,
    schedule_task_node.execution_result=done.result
WHERE schedule_task_node.id = done.id;

-- transitions.reporting.report
UPDATE JSON_TABLE(
    :rows,
    '$[*]' COLUMNS (
        id BIGINT UNSIGNED PATH '$[0]', attempt INT PATH '$[1]', status VARCHAR(1023) PATH '$[2]',
        result LONGTEXT PATH '$[3]', reason VARCHAR(1023) PATH '$[4]',
        started DATETIME(6) PATH '$[5]', completed DATETIME(6) PATH '$[6]',
        failures INT PATH '$[7]', due DATETIME(6) PATH '$[8]', attempt_end LONGTEXT PATH '$[9]'
    )
) AS done
STRAIGHT_JOIN schedule_instance FORCE INDEX (PRIMARY)
SET schedule_instance.failed_attempts=CASE WHEN (CASE WHEN (done.status = 'running' AND schedule_instance.reason = done.reason) THEN NULL ELSE done.attempt_end END IS NULL) THEN schedule_instance.failed_attempts ELSE JSON_ARRAY_APPEND(
    COALESCE(
        CASE WHEN JSON_VALID(schedule_instance.failed_attempts) THEN CASE WHEN JSON_LENGTH(schedule_instance.failed_attempts) >= 10 THEN JSON_REMOVE(
            schedule_instance.failed_attempts, '$[0]'
        ) ELSE schedule_instance.failed_attempts END END, JSON_ARRAY()
    ), '$',
    JSON_EXTRACT(
        CASE WHEN (
            done.status = 'running'
              AND schedule_instance.reason = done.reason
        ) THEN NULL ELSE done.attempt_end END, '$'
    )
) END, schedule_instance.status=done.status, schedule_instance.execution_result=done.result,
    schedule_instance.reason=CASE WHEN (done.status = 'canceled') THEN coalesce(
        schedule_instance.reason, done.reason
    ) WHEN (done.status = 'running') THEN coalesce(done.reason, schedule_instance.reason) ELSE done.reason END,
    schedule_instance.gmt_started=CASE WHEN (done.status = 'pending') THEN NULL ELSE coalesce(
        done.started, schedule_instance.gmt_started
    ) END, schedule_instance.gmt_completed=done.completed,
    schedule_instance.failures=coalesce(done.failures, schedule_instance.failures),
    schedule_instance.due_at=CASE WHEN (
        done.status = 'pending'
          AND schedule_instance.gmt_cancel_requested IS NOT NULL
    ) THEN (UTC_TIMESTAMP(6)) ELSE coalesce(done.due, schedule_instance.due_at) END,
    schedule_instance.schedule_worker_node_id=CASE WHEN (
        done.status = 'pending'
    ) THEN NULL ELSE schedule_instance.schedule_worker_node_id END,
    schedule_instance.gmt_modified=(UTC_TIMESTAMP(6)), schedule_instance.modifier=:modifier
WHERE schedule_instance.id = done.id
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.attempt = done.attempt
  AND schedule_instance.status = :status_1;

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

-- Among others a run of a task that runs one at a time has ended: the worker claims the next one, too.

-- transitions.reporting.succeed: as above

-- transitions.reporting.succeed: as above

-- transitions.following.claim_following
SELECT (
    SELECT STRAIGHT_JOIN schedule_instance.status = :param_1
      AND schedule_instance.schedule_worker_node_id = :worker
      AND schedule_instance.gmt_cancel_requested IS NULL
      AND schedule_instance.attempt < :attempt_1
      AND TIMESTAMPADD(
          MICROSECOND, -1000000 * :ahead, schedule_instance.due_at
      ) <= (UTC_TIMESTAMP(6))
      AND TIMESTAMPADD(
          MICROSECOND, -1000000 * :ahead, schedule_instance.schedule_datetime
      ) IS NOT NULL
      AND schedule_instance.attempt = :attempt_read
      AND schedule_instance.schedule_task_id = :task AS anon_2
    FROM schedule_instance FORCE INDEX (PRIMARY)
    WHERE schedule_instance.id = :next
    FOR UPDATE SKIP LOCKED
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
      LOCK IN SHARE MODE SKIP LOCKED
  )
  AND (
      SELECT min(waiting.id) AS min_1
      FROM schedule_instance AS waiting FORCE INDEX (ix_schedule_instance_turn)
      WHERE waiting.turn_key = :task
        AND waiting.due_at = (
            SELECT min(earliest.due_at) AS min_2
            FROM schedule_instance AS earliest FORCE INDEX (ix_schedule_instance_turn)
            WHERE earliest.turn_key = :task
        )
  ) = :next
  AND (
      SELECT min(holder.overlap_key) AS min_3
      FROM schedule_instance AS holder FORCE INDEX (uq_schedule_instance_overlap_key)
      WHERE holder.overlap_key BETWEEN :second_key AND :last_key
  ) IS NULL AS anon_1 INTO @rota_answer;

-- transitions.following.claim_following
UPDATE IGNORE schedule_instance FORCE INDEX (PRIMARY)
SET status=:status, attempt=(schedule_instance.attempt + :attempt_1), overlap_slot=0,
    gmt_started=CASE WHEN (
        schedule_instance.due_at > (UTC_TIMESTAMP(6))
    ) THEN schedule_instance.due_at ELSE (UTC_TIMESTAMP(6)) END, reason=:reason
WHERE schedule_instance.id = :next
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.status = :status_1
  AND schedule_instance.attempt = :attempt_read
  AND @rota_answer = 1;

-- transitions.following.claim_following
UPDATE schedule_task_node FORCE INDEX (PRIMARY)
SET status=:status, gmt_started=(UTC_TIMESTAMP(6)), gmt_completed=:gmt_completed
WHERE (schedule_task_node.id IN (:nodes))
  AND (
      EXISTS (
          SELECT STRAIGHT_JOIN schedule_instance.id
          FROM schedule_instance FORCE INDEX (PRIMARY)
          WHERE schedule_task_node.schedule_instance_id = schedule_instance.id
            AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
            AND schedule_instance.status = :param_1
            AND schedule_instance.schedule_worker_node_id = :worker
      )
  );

-- It has succeeded, and no other is to be reported.

-- transitions.following.hand_on
SELECT (
    SELECT STRAIGHT_JOIN schedule_instance.schedule_worker_node_id = :worker
      AND schedule_instance.status = :status_1
      AND schedule_instance.attempt = :attempt_done AS anon_2
    FROM schedule_instance FORCE INDEX (PRIMARY)
    WHERE schedule_instance.id = :done
    FOR UPDATE SKIP LOCKED
)
  AND (
      SELECT STRAIGHT_JOIN schedule_instance.status = :param_1
        AND schedule_instance.schedule_worker_node_id = :worker
        AND schedule_instance.gmt_cancel_requested IS NULL
        AND schedule_instance.attempt < :attempt_1
        AND TIMESTAMPADD(
            MICROSECOND, -1000000 * :ahead, schedule_instance.due_at
        ) <= (UTC_TIMESTAMP(6))
        AND TIMESTAMPADD(
            MICROSECOND, -1000000 * :ahead, schedule_instance.schedule_datetime
        ) IS NOT NULL
        AND schedule_instance.attempt = :attempt_read
        AND schedule_instance.schedule_task_id = :task AS anon_3
      FROM schedule_instance FORCE INDEX (PRIMARY)
      WHERE schedule_instance.id = :next
      FOR UPDATE SKIP LOCKED
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
      LOCK IN SHARE MODE SKIP LOCKED
  )
  AND (
      SELECT min(waiting.id) AS min_1
      FROM schedule_instance AS waiting FORCE INDEX (ix_schedule_instance_turn)
      WHERE waiting.turn_key = :task
        AND waiting.due_at = (
            SELECT min(earliest.due_at) AS min_2
            FROM schedule_instance AS earliest FORCE INDEX (ix_schedule_instance_turn)
            WHERE earliest.turn_key = :task
        )
  ) = :next
  AND (
      SELECT min(holder.overlap_key) AS min_3
      FROM schedule_instance AS holder FORCE INDEX (uq_schedule_instance_overlap_key)
      WHERE holder.overlap_key BETWEEN :second_key AND :last_key
  ) IS NULL AS anon_1 INTO @rota_answer;

-- transitions.following.hand_on
UPDATE schedule_instance FORCE INDEX (PRIMARY)
SET status=CASE WHEN (schedule_instance.id = :next) THEN :param_1 ELSE :param_2 END,
    attempt=CASE WHEN (
        schedule_instance.id = :next
    ) THEN schedule_instance.attempt + :attempt_1 ELSE schedule_instance.attempt END,
    overlap_slot=CASE WHEN (
        schedule_instance.id = :next
    ) THEN 0 ELSE schedule_instance.overlap_slot END,
    gmt_started=CASE WHEN (schedule_instance.id = :next) THEN CASE WHEN (
        schedule_instance.due_at > (UTC_TIMESTAMP(6))
    ) THEN schedule_instance.due_at ELSE (UTC_TIMESTAMP(6)) END ELSE :started END,
    gmt_completed=CASE WHEN (schedule_instance.id = :next) THEN NULL ELSE :ended END,
    reason=:reason,
    execution_result=CASE WHEN (
        schedule_instance.id = :next
    ) THEN schedule_instance.execution_result ELSE :result END,
    gmt_modified=CASE WHEN (
        schedule_instance.id = :next
    ) THEN schedule_instance.gmt_modified ELSE (UTC_TIMESTAMP(6)) END,
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
  AND @rota_answer = 1;

-- transitions.following.hand_on
UPDATE schedule_task_node FORCE INDEX (PRIMARY)
SET status=CASE WHEN (schedule_task_node.id = :next_node) THEN :param_1 ELSE :param_2 END,
    gmt_started=CASE WHEN (
        schedule_task_node.id = :next_node
    ) THEN (UTC_TIMESTAMP(6)) ELSE :node_started END,
    gmt_completed=CASE WHEN (schedule_task_node.id = :next_node) THEN NULL ELSE :node_ended END,
    execution_result=CASE WHEN (
        schedule_task_node.id = :next_node
    ) THEN schedule_task_node.execution_result ELSE :node_result END
WHERE schedule_task_node.id IN (:node, :next_node)
  AND schedule_task_node.schedule_instance_id IN (:done, :next);

-- A worker hands back what it will not run.

-- transitions.reporting.lock: as above

-- transitions.reporting.hand_back
UPDATE JSON_TABLE(
    :rows,
    '$[*]' COLUMNS (
        id BIGINT UNSIGNED PATH '$[0]', attempt INT PATH '$[1]', status VARCHAR(1023) PATH '$[2]',
        result LONGTEXT PATH '$[3]', reason VARCHAR(1023) PATH '$[4]',
        started DATETIME(6) PATH '$[5]', completed DATETIME(6) PATH '$[6]',
        failures INT PATH '$[7]', due DATETIME(6) PATH '$[8]', attempt_end LONGTEXT PATH '$[9]'
    )
) AS done
STRAIGHT_JOIN schedule_instance FORCE INDEX (PRIMARY)
SET schedule_instance.failed_attempts=CASE WHEN (CASE WHEN (done.status = 'running' AND schedule_instance.reason = done.reason) THEN NULL ELSE done.attempt_end END IS NULL) THEN schedule_instance.failed_attempts ELSE JSON_ARRAY_APPEND(
    COALESCE(
        CASE WHEN JSON_VALID(schedule_instance.failed_attempts) THEN CASE WHEN JSON_LENGTH(schedule_instance.failed_attempts) >= 10 THEN JSON_REMOVE(
            schedule_instance.failed_attempts, '$[0]'
        ) ELSE schedule_instance.failed_attempts END END, JSON_ARRAY()
    ), '$',
    JSON_EXTRACT(
        CASE WHEN (
            done.status = 'running'
              AND schedule_instance.reason = done.reason
        ) THEN NULL ELSE done.attempt_end END, '$'
    )
) END, schedule_instance.status=done.status, schedule_instance.execution_result=done.result,
    schedule_instance.reason=CASE WHEN (done.status = 'canceled') THEN coalesce(
        schedule_instance.reason, done.reason
    ) WHEN (done.status = 'running') THEN coalesce(done.reason, schedule_instance.reason) ELSE done.reason END,
    schedule_instance.gmt_started=CASE WHEN (done.status = 'pending') THEN NULL ELSE coalesce(
        done.started, schedule_instance.gmt_started
    ) END, schedule_instance.gmt_completed=done.completed,
    schedule_instance.failures=coalesce(done.failures, schedule_instance.failures),
    schedule_instance.due_at=CASE WHEN (
        done.status = 'pending'
          AND schedule_instance.gmt_cancel_requested IS NOT NULL
    ) THEN (UTC_TIMESTAMP(6)) ELSE coalesce(done.due, schedule_instance.due_at) END,
    schedule_instance.schedule_worker_node_id=CASE WHEN (
        done.status = 'pending'
    ) THEN NULL ELSE schedule_instance.schedule_worker_node_id END,
    schedule_instance.gmt_modified=(UTC_TIMESTAMP(6)), schedule_instance.modifier=:modifier
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
