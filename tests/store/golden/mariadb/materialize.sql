-- The materializer inserts the fires of a batch, pending or given to a worker, and the nodes of the latter.

-- fires.materialize
INSERT IGNORE INTO schedule_instance (
    schedule_task_id, status, schedule_datetime, due_at, run_number, origin, priority, param,
    schedule_worker_node_id, gmt_assigned, reason, creator, modifier
)
SELECT fired.task, CASE WHEN (fired.worker IS NULL) THEN 'pending' ELSE 'assigned' END AS anon_1,
    fired.moment, fired.moment AS moment__1, 0, 'cron', fired.priority, fired.param, fired.worker,
    CASE WHEN (fired.worker IS NOT NULL) THEN (UTC_TIMESTAMP(6)) END AS anon_2, fired.reason,
    'scheduler', 'scheduler'
FROM JSON_TABLE(
    :rows,
    '$[*]' COLUMNS (
        task BIGINT UNSIGNED PATH '$[0]', moment DATETIME(6) PATH '$[1]', priority INT PATH '$[2]',
        param LONGTEXT PATH '$[3]', worker BIGINT UNSIGNED PATH '$[4]',
        reason VARCHAR(1023) PATH '$[5]'
    )
) AS fired;

-- fires.materialize
INSERT IGNORE INTO schedule_task_node (
    schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence, param, creator,
    modifier
)
SELECT STRAIGHT_JOIN schedule_instance.id, schedule_instance.gmt_create, planned.type,
    planned.sequence, planned.param, 'scheduler', 'scheduler'
FROM JSON_TABLE(
    :rows,
    '$[*]' COLUMNS (
        task BIGINT UNSIGNED PATH '$[0]', moment DATETIME(6) PATH '$[1]',
        worker BIGINT UNSIGNED PATH '$[2]', type BIGINT UNSIGNED PATH '$[3]',
        sequence INT PATH '$[4]', param LONGTEXT PATH '$[5]'
    )
) AS planned
INNER JOIN schedule_instance FORCE INDEX (uq_schedule_instance_fire)
  ON schedule_instance.schedule_task_id = planned.task
  AND schedule_instance.schedule_datetime = planned.moment
  AND schedule_instance.fire_key = ''
  AND schedule_instance.run_number = 0
  AND schedule_instance.schedule_worker_node_id = planned.worker
  AND schedule_instance.status = 'assigned';
