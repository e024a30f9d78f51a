-- The first statement of the transaction that writes what was decided: it holds the leases until the commit.

-- locks.release
UPDATE schedule_task_lock
SET is_locked=:is_locked
WHERE (schedule_task_lock.schedule_task_id IN (SELECT value FROM json_each(:ids)))
  AND schedule_task_lock.locked_by = :token
  AND schedule_task_lock.is_locked = :is_locked_1
  AND schedule_task_lock.locked_at >= strftime(
      '%Y-%m-%d %H:%M:%f000', (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
      (-1 * :within) || ' seconds'
  );

-- The same after another scheduler took a lease over: it asks which it still held.

-- locks.release: as above

-- locks.release
SELECT schedule_task_lock.schedule_task_id
FROM schedule_task_lock
WHERE (schedule_task_lock.schedule_task_id IN (SELECT value FROM json_each(:ids)))
  AND schedule_task_lock.locked_by = :token
  AND schedule_task_lock.is_locked = :is_locked_1
ORDER BY schedule_task_lock.schedule_task_id;
