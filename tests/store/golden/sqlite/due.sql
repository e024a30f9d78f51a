-- The materializer asks at each tick: what is due, what has a stale plan, what is off and has passed its fire.

-- plans.due
SELECT group_concat(found.fires) AS group_concat_1, group_concat(found.other) AS group_concat_2,
    EXISTS (
        SELECT schedule_pause.id
        FROM schedule_pause
        WHERE schedule_pause.is_deleted = :is_deleted_1
    ) AS anon_1, EXISTS (SELECT schedule_chain.id FROM schedule_chain) AS anon_2
FROM (
    SELECT anon_3.id AS fires, NULL AS other
    FROM (
        SELECT schedule_task.id AS id
        FROM schedule_task
        LEFT OUTER JOIN schedule_task_lock
          ON schedule_task_lock.schedule_task_id = schedule_task.id
          AND schedule_task_lock.is_locked = :is_locked_1
          AND schedule_task_lock.locked_at >= strftime(
              '%Y-%m-%d %H:%M:%f000', (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
              (-1 * :lease) || ' seconds'
          )
          AND strftime(
              '%Y-%m-%d %H:%M:%f000', schedule_task_lock.locked_at, (-1 * :lease) || ' seconds'
          ) <= (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
        WHERE schedule_task_lock.schedule_task_id IS NULL
          AND schedule_task.status = :status_1
          AND schedule_task.next_fire_at <= :horizon
        ORDER BY schedule_task.next_fire_at
        LIMIT :limit OFFSET :param_1
    ) AS anon_3
    UNION ALL
    SELECT NULL AS anon_4, anon_5.id AS id
    FROM (
        SELECT schedule_task.id AS id
        FROM schedule_task
        LEFT OUTER JOIN schedule_task_lock
          ON schedule_task_lock.schedule_task_id = schedule_task.id
          AND schedule_task_lock.is_locked = :is_locked_1
          AND schedule_task_lock.locked_at >= strftime(
              '%Y-%m-%d %H:%M:%f000', (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
              (-1 * :lease) || ' seconds'
          )
          AND strftime(
              '%Y-%m-%d %H:%M:%f000', schedule_task_lock.locked_at, (-1 * :lease) || ' seconds'
          ) <= (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
        WHERE schedule_task_lock.schedule_task_id IS NULL
          AND schedule_task.plan_stale = :plan_stale_1
        LIMIT :limit OFFSET :param_2
    ) AS anon_5
    UNION ALL
    SELECT NULL AS anon_4, anon_6.id AS id
    FROM (
        SELECT schedule_task.id AS id
        FROM schedule_task
        LEFT OUTER JOIN schedule_task_lock
          ON schedule_task_lock.schedule_task_id = schedule_task.id
          AND schedule_task_lock.is_locked = :is_locked_1
          AND schedule_task_lock.locked_at >= strftime(
              '%Y-%m-%d %H:%M:%f000', (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
              (-1 * :lease) || ' seconds'
          )
          AND strftime(
              '%Y-%m-%d %H:%M:%f000', schedule_task_lock.locked_at, (-1 * :lease) || ' seconds'
          ) <= (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
        WHERE schedule_task_lock.schedule_task_id IS NULL
          AND schedule_task.status = :status_2
          AND schedule_task.next_fire_at <= :now
        ORDER BY schedule_task.next_fire_at
        LIMIT :limit OFFSET :param_3
    ) AS anon_6
) AS found;
