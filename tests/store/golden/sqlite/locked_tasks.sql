-- The materializer reads the tasks that it has leased.

-- plans.locked
SELECT schedule_task.id, schedule_task.name, schedule_task.next_fire_at,
    CASE WHEN (length(schedule_task.param) <= 4096) THEN schedule_task.param END AS anon_1,
    CASE WHEN (length(schedule_task.param) > 4096) THEN length(schedule_task.param) END AS anon_2,
    schedule_task.task_group,
    json_array(
        schedule_task.plan_inputs,
        CASE WHEN (schedule_task.plan_stale = 1) THEN schedule_task.planned_inputs END,
        schedule_task.type, coalesce(schedule_task.plan_stale, 0),
        CASE WHEN (schedule_task.planned_inputs IS NULL) THEN schedule_task.gmt_create END,
        schedule_task.misfire_policy, schedule_task.misfire_grace_seconds, schedule_task.priority,
        CAST(schedule_task.required_labels AS VARCHAR), schedule_task.overlap_policy,
        schedule_task.max_instances, schedule_task.limit_name, schedule_task.pool,
        schedule_task.weight, schedule_task.run_timeout_seconds, schedule_task.spread
    ) AS json_array_1
FROM schedule_task
JOIN schedule_task_lock
  ON schedule_task_lock.schedule_task_id = schedule_task.id
WHERE (schedule_task.id IN (SELECT value FROM json_each(:ids)))
  AND schedule_task_lock.locked_by = :token
  AND schedule_task_lock.is_locked = :is_locked_1;
