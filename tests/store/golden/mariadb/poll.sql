-- A worker asks what it is to run soon.

-- polling.poll
SELECT group_concat(polled.id) AS group_concat_1, polled.priority, polled.due_at,
    EXISTS (
        SELECT 1
        FROM schedule_pool_place FORCE INDEX (ix_schedule_pool_place_worker)
        WHERE schedule_pool_place.schedule_worker_node_id = :worker
          AND schedule_pool_place.pool = :place
          AND schedule_pool_place.weight > 1
    ) AS any_heavy
FROM (
    SELECT schedule_instance.id AS id, schedule_instance.due_at AS due_at,
        schedule_instance.priority AS priority
    FROM schedule_instance
    WHERE schedule_instance.status = :status_1
      AND schedule_instance.schedule_worker_node_id = :worker
      AND schedule_instance.priority IN (:priority_1, …)
      AND schedule_instance.due_at <= :horizon
    ORDER BY schedule_instance.priority, schedule_instance.due_at
    LIMIT :limit
) AS polled
GROUP BY polled.priority, polled.due_at
ORDER BY polled.priority, polled.due_at;

-- Where much is due, it asks of which groups a sample is. Beside a crowd it reads what is of other groups.

-- crowds._members_of
SELECT STRAIGHT_JOIN schedule_instance.id, nullif(schedule_task.task_group, '') AS nullif_1,
    schedule_task.id AS id_1, schedule_task.group_share
FROM schedule_instance FORCE INDEX (PRIMARY)
INNER JOIN schedule_task
  ON schedule_task.id = schedule_instance.schedule_task_id
WHERE schedule_instance.id IN (:ids);

-- crowds.beside
SELECT STRAIGHT_JOIN schedule_instance.id, schedule_instance.due_at, schedule_instance.priority,
    nullif(schedule_task.task_group, '') AS nullif_1, schedule_task.id AS id_1,
    schedule_task.group_share
FROM schedule_instance FORCE INDEX (ix_schedule_instance_work)
INNER JOIN schedule_task
  ON schedule_task.id = schedule_instance.schedule_task_id
WHERE schedule_instance.status = :status_1
  AND schedule_instance.schedule_worker_node_id = :worker
  AND schedule_instance.priority IN (:priority_1, …)
  AND schedule_instance.due_at <= :horizon
  AND schedule_instance.priority = :priority
  AND (
      nullif(schedule_task.task_group, '') IS NULL
        AND NOT (schedule_task.id IN (:tasks))
        OR nullif(schedule_task.task_group, '') IS NOT NULL
        AND NOT (schedule_task.task_group IN (:groups))
  )
ORDER BY schedule_instance.priority, schedule_instance.due_at
LIMIT :limit;
