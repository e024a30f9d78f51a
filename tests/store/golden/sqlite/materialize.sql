-- The materializer inserts the fires of a batch, pending or given to a worker, and the nodes of the latter.

-- fires.materialize
INSERT
  OR IGNORE INTO schedule_instance (
      schedule_task_id, status, schedule_datetime, due_at, run_number, origin, priority, param,
      schedule_worker_node_id, gmt_assigned, reason, creator, modifier
  )
SELECT fired.task, CASE WHEN (fired.worker IS NULL) THEN 'pending' ELSE 'assigned' END AS anon_1,
    fired.moment, fired.moment AS moment__1, 0, 'cron', fired.priority, fired.param, fired.worker,
    CASE WHEN (fired.worker IS NOT NULL) THEN (
        strftime('%Y-%m-%d %H:%M:%f000', 'now')
    ) END AS anon_2, fired.reason, 'scheduler', 'scheduler'
FROM (
    SELECT json_extract(value, '$[0]') AS task, json_extract(value, '$[1]') AS moment,
        json_extract(value, '$[2]') AS priority, json_extract(value, '$[3]') AS param,
        json_extract(value, '$[4]') AS worker, json_extract(value, '$[5]') AS reason
    FROM json_each(:rows)
) AS fired;

-- fires.materialize
INSERT
  OR IGNORE INTO schedule_task_node (
      schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence, param,
      creator, modifier
  )
SELECT schedule_instance.id, schedule_instance.gmt_create, planned.type, planned.sequence,
    planned.param, 'scheduler', 'scheduler'
FROM (
    SELECT json_extract(value, '$[0]') AS task, json_extract(value, '$[1]') AS moment,
        json_extract(value, '$[2]') AS worker, json_extract(value, '$[3]') AS type,
        json_extract(value, '$[4]') AS sequence, json_extract(value, '$[5]') AS param
    FROM json_each(:rows)
) AS planned
JOIN schedule_instance
  ON schedule_instance.schedule_task_id = planned.task
  AND schedule_instance.schedule_datetime = planned.moment
  AND schedule_instance.fire_key = ''
  AND schedule_instance.run_number = 0
  AND +schedule_instance.schedule_worker_node_id = planned.worker
  AND +schedule_instance.status = 'assigned';
