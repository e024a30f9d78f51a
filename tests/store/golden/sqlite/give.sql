-- The assigner asks what it may give: without what somebody else has locked.

-- transitions.giving.free_pending
SELECT schedule_instance.id, schedule_instance.attempt
FROM schedule_instance
WHERE (schedule_instance.id IN (SELECT value FROM json_each(:ids)))
  AND +schedule_instance.status = :param_1;

-- The assigner asks for the last run number of each fire on its page.

-- run_numbers.last_of
SELECT schedule_instance.schedule_task_id, schedule_instance.schedule_datetime,
    schedule_instance.fire_key, max(schedule_instance.run_number) AS max_1
FROM (
    SELECT json_extract(value, '$[0]') AS task, json_extract(value, '$[1]') AS moment,
        json_extract(value, '$[2]') AS fire_key
    FROM json_each(:rows)
) AS asked
JOIN schedule_instance
  ON schedule_instance.schedule_task_id = asked.task
  AND schedule_instance.schedule_datetime = asked.moment
  AND schedule_instance.fire_key = asked.fire_key
GROUP BY schedule_instance.schedule_task_id, schedule_instance.schedule_datetime,
    schedule_instance.fire_key;

-- The assigner asks which instances have their nodes from an earlier assignment.

-- fires.pinned
SELECT schedule_instance.id, schedule_task_node.status, schedule_task_node_type.id AS id_1,
    schedule_task_node_type.type, schedule_task_node.sequence
FROM schedule_instance
JOIN schedule_task_node
  ON schedule_task_node.schedule_instance_id = schedule_instance.id
  AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
JOIN schedule_task_node_type
  ON schedule_task_node_type.id = schedule_task_node.schedule_task_node_type_id
WHERE schedule_instance.id IN (SELECT value FROM json_each(:ids))
ORDER BY schedule_instance.id, schedule_task_node.sequence;

-- The assigner gives pending instances to workers.

-- transitions.giving.give
UPDATE
  OR IGNORE schedule_instance NOT INDEXED
SET status=:status, run_number=coalesce(schedule_instance.run_number, given.run_number),
    param=coalesce(schedule_instance.param, given.param), schedule_worker_node_id=given.worker,
    gmt_assigned=(strftime('%Y-%m-%d %H:%M:%f000', 'now')), reason=:reason
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS worker,
        json_extract(value, '$[2]') AS run_number, json_extract(value, '$[3]') AS param
    FROM json_each(:rows)
) AS given
WHERE schedule_instance.id = given.id
  AND schedule_instance.status = :status_1;

-- The assigner pins the nodes of what it gave.

-- fires.pin_nodes
INSERT
  OR IGNORE INTO schedule_task_node (
      schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence, param,
      creator, modifier
  )
SELECT schedule_instance.id, schedule_instance.gmt_create, pinned.type, pinned.sequence,
    pinned.param, 'scheduler', 'scheduler'
FROM (
    SELECT json_extract(value, '$[0]') AS instance, json_extract(value, '$[1]') AS type,
        json_extract(value, '$[2]') AS sequence, json_extract(value, '$[3]') AS param
    FROM json_each(:rows)
) AS pinned
JOIN schedule_instance
  ON schedule_instance.id = pinned.instance
  AND +schedule_instance.status = 'assigned';
