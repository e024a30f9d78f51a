-- The assigner asks which tasks have all their overlap slots taken.

-- taken_slots.of
SELECT STRAIGHT_JOIN schedule_instance.overlap_key
FROM JSON_TABLE(:rows, '$[*]' COLUMNS (task BIGINT UNSIGNED PATH '$[0]')) AS asked
INNER JOIN schedule_instance FORCE INDEX (uq_schedule_instance_overlap_key)
  ON schedule_instance.overlap_key BETWEEN asked.task * :task_1
  AND asked.task * :task_1 + :param_1;

-- The assigner writes why instances stay pending.

-- transitions.giving.explain
UPDATE JSON_TABLE(
    :rows, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]', reason VARCHAR(1023) PATH '$[1]')
) AS explained
STRAIGHT_JOIN schedule_instance FORCE INDEX (PRIMARY)
SET schedule_instance.reason=explained.reason
WHERE schedule_instance.id = explained.id
  AND schedule_instance.status = :status_1;

-- The assigner cancels what can never run.

-- transitions.canceling.refuse
UPDATE JSON_TABLE(
    :rows, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]', reason VARCHAR(1023) PATH '$[1]')
) AS canceled
STRAIGHT_JOIN schedule_instance FORCE INDEX (PRIMARY)
SET schedule_instance.status=:status, schedule_instance.gmt_completed=(UTC_TIMESTAMP(6)),
    schedule_instance.reason=canceled.reason, schedule_instance.gmt_modified=(UTC_TIMESTAMP(6)),
    schedule_instance.modifier=:by
WHERE schedule_instance.id = canceled.id
  AND schedule_instance.status = :status_1;

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
