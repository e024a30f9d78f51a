-- The materializer and the assigner lease a batch of tasks before they decide about them.

-- locks.take_new
SELECT schedule_task_lock.schedule_task_id
FROM schedule_task_lock
WHERE schedule_task_lock.schedule_task_id IN (SELECT value FROM json_each(:ids));

-- locks.take
UPDATE schedule_task_lock NOT INDEXED
SET locked_by=:token, locked_at=(strftime('%Y-%m-%d %H:%M:%f000', 'now')), is_locked=:is_locked
FROM (
    SELECT DISTINCT schedule_task_lock.schedule_task_id AS schedule_task_id
    FROM schedule_task_lock
    WHERE (schedule_task_lock.schedule_task_id IN (SELECT value FROM json_each(:ids)))
      AND (
          schedule_task_lock.is_locked = :is_locked_1
            OR schedule_task_lock.locked_at < strftime(
                '%Y-%m-%d %H:%M:%f000', (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
                (-1 * :lease) || ' seconds'
            )
            OR strftime(
                '%Y-%m-%d %H:%M:%f000', schedule_task_lock.locked_at, (-1 * :lease) || ' seconds'
            ) > (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
            OR schedule_task_lock.locked_at IS NULL
            OR schedule_task_lock.locked_by = :token
      )
) AS takeable
WHERE schedule_task_lock.schedule_task_id = takeable.schedule_task_id;

-- locks.held
SELECT group_concat(schedule_task_lock.schedule_task_id) AS group_concat_1
FROM schedule_task_lock
WHERE (schedule_task_lock.schedule_task_id IN (SELECT value FROM json_each(:ids)))
  AND schedule_task_lock.locked_by = :token
  AND schedule_task_lock.is_locked = :is_locked_1;

-- The same where a task has no lock row yet: it is new.

-- locks.take_new: as above

-- locks.take_new
INSERT
  OR IGNORE INTO schedule_task_lock (schedule_task_id)
SELECT new.id
FROM (SELECT json_extract(value, '$[0]') AS id FROM json_each(:rows)) AS new;

-- locks.take: as above

-- locks.held: as above
