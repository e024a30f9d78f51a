-- The assigner asks what it may give: without what somebody else has locked.

-- transitions.giving.free_pending
SELECT STRAIGHT_JOIN schedule_instance.id, schedule_instance.attempt
FROM schedule_instance FORCE INDEX (PRIMARY)
WHERE (schedule_instance.id IN (:ids))
  AND schedule_instance.status = :param_1
FOR UPDATE SKIP LOCKED;

-- The assigner asks for the last run number of each fire on its page.

-- run_numbers.last_of
SELECT STRAIGHT_JOIN schedule_instance.schedule_task_id, schedule_instance.schedule_datetime,
    schedule_instance.fire_key, max(schedule_instance.run_number) AS max_1
FROM JSON_TABLE(
    :rows,
    '$[*]' COLUMNS (
        task BIGINT UNSIGNED PATH '$[0]', moment DATETIME(6) PATH '$[1]',
        fire_key VARCHAR(1023) PATH '$[2]'
    )
) AS asked
INNER JOIN schedule_instance FORCE INDEX (uq_schedule_instance_fire)
  ON schedule_instance.schedule_task_id = asked.task
  AND schedule_instance.schedule_datetime = asked.moment
  AND schedule_instance.fire_key = asked.fire_key
GROUP BY schedule_instance.schedule_task_id, schedule_instance.schedule_datetime,
    schedule_instance.fire_key;

-- The assigner asks which instances have their nodes from an earlier assignment.

-- fires.pinned
SELECT STRAIGHT_JOIN schedule_instance.id, schedule_task_node.status,
    schedule_task_node_type.id AS id_1, schedule_task_node_type.type, schedule_task_node.sequence
FROM schedule_instance FORCE INDEX (PRIMARY)
INNER JOIN schedule_task_node
  ON schedule_task_node.schedule_instance_id = schedule_instance.id
  AND schedule_task_node.instance_gmt_create = schedule_instance.gmt_create
INNER JOIN schedule_task_node_type
  ON schedule_task_node_type.id = schedule_task_node.schedule_task_node_type_id
WHERE schedule_instance.id IN (:ids)
ORDER BY schedule_instance.id, schedule_task_node.sequence;

-- The assigner gives pending instances to workers.

-- transitions.giving.give
UPDATE IGNORE JSON_TABLE(
    :rows,
    '$[*]' COLUMNS (
        id BIGINT UNSIGNED PATH '$[0]', worker BIGINT UNSIGNED PATH '$[1]',
        run_number INT PATH '$[2]', param LONGTEXT PATH '$[3]'
    )
) AS given
STRAIGHT_JOIN schedule_instance FORCE INDEX (PRIMARY)
SET schedule_instance.status=:status,
    schedule_instance.run_number=coalesce(schedule_instance.run_number, given.run_number),
    schedule_instance.param=coalesce(schedule_instance.param, given.param),
    schedule_instance.schedule_worker_node_id=given.worker,
    schedule_instance.gmt_assigned=(UTC_TIMESTAMP(6)), schedule_instance.reason=:reason
WHERE schedule_instance.id = given.id
  AND schedule_instance.status = :status_1;

-- The assigner pins the nodes of what it gave.

-- fires.pin_nodes
INSERT IGNORE INTO schedule_task_node (
    schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence, param, creator,
    modifier
)
SELECT STRAIGHT_JOIN schedule_instance.id, schedule_instance.gmt_create, pinned.type,
    pinned.sequence, pinned.param, 'scheduler', 'scheduler'
FROM JSON_TABLE(
    :rows,
    '$[*]' COLUMNS (
        instance BIGINT UNSIGNED PATH '$[0]', type BIGINT UNSIGNED PATH '$[1]',
        sequence INT PATH '$[2]', param LONGTEXT PATH '$[3]'
    )
) AS pinned
INNER JOIN schedule_instance FORCE INDEX (PRIMARY)
  ON schedule_instance.id = pinned.instance
  AND schedule_instance.status = 'assigned';
