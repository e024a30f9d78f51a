-- The first statement of the transaction that writes what was decided: it holds the leases until the commit.

-- locks.release
UPDATE schedule_task_lock
SET is_locked=:is_locked
WHERE (schedule_task_lock.schedule_task_id IN (:ids))
  AND schedule_task_lock.locked_by = :token
  AND schedule_task_lock.is_locked = :is_locked_1
  AND schedule_task_lock.locked_at >= TIMESTAMPADD(
      MICROSECOND, -1000000 * :within, (UTC_TIMESTAMP(6))
  );

-- The same after another scheduler took a lease over: it asks which it still held.

-- locks.release: as above

-- locks.release
SELECT STRAIGHT_JOIN schedule_task_lock.schedule_task_id
FROM schedule_task_lock FORCE INDEX (PRIMARY)
WHERE (schedule_task_lock.schedule_task_id IN (:ids))
  AND schedule_task_lock.locked_by = :token
  AND schedule_task_lock.is_locked = :is_locked_1
ORDER BY schedule_task_lock.schedule_task_id
FOR UPDATE;
