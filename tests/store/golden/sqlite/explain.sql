-- The assigner asks which tasks have all their overlap slots taken.

-- taken_slots.of
SELECT schedule_instance.overlap_key
FROM (SELECT json_extract(value, '$[0]') AS task FROM json_each(:rows)) AS asked
JOIN schedule_instance
  ON schedule_instance.overlap_key BETWEEN asked.task * :task_1
  AND asked.task * :task_1 + :param_1;

-- The assigner writes why instances stay pending.

-- transitions.giving.explain
UPDATE schedule_instance NOT INDEXED
SET reason=explained.reason
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS reason
    FROM json_each(:rows)
) AS explained
WHERE schedule_instance.id = explained.id
  AND schedule_instance.status = :status_1;

-- The assigner cancels what can never run.

-- transitions.canceling.refuse
UPDATE schedule_instance NOT INDEXED
SET status=:status, gmt_completed=(strftime('%Y-%m-%d %H:%M:%f000', 'now')), reason=canceled.reason,
    gmt_modified=(strftime('%Y-%m-%d %H:%M:%f000', 'now')), modifier=:by
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS reason
    FROM json_each(:rows)
) AS canceled
WHERE schedule_instance.id = canceled.id
  AND schedule_instance.status = :status_1;

-- transitions.nodes.follow
UPDATE schedule_task_node
SET status=CASE schedule_task_node.status WHEN :param_1 THEN :param_2 END
WHERE (schedule_task_node.schedule_instance_id IN (SELECT value FROM json_each(:ids)))
  AND schedule_task_node.status IN (:status_1, …)
  AND (
      EXISTS (
          SELECT schedule_instance.id
          FROM schedule_instance
          WHERE schedule_task_node.schedule_instance_id = schedule_instance.id
            AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
            AND schedule_instance.status = :status_2
      )
  );
