-- The first statement of the transaction that writes what was decided: it holds the leases until the commit.

-- locks.release
UPDATE schedule_task_lock
SET is_locked=:is_locked
WHERE (schedule_task_lock.schedule_task_id IN (:ids))
  AND schedule_task_lock.locked_by = :token
  AND schedule_task_lock.locked_at >= TIMESTAMPADD(
      MICROSECOND, -1000000 * :within, (UTC_TIMESTAMP(6))
  );

-- After another scheduler took a lease over, nothing was written: it asks which it still holds.

-- locks.kept
SELECT group_concat(schedule_task_lock.schedule_task_id) AS group_concat_1
FROM schedule_task_lock
WHERE (schedule_task_lock.schedule_task_id IN (:ids))
  AND schedule_task_lock.locked_by = :token
  AND schedule_task_lock.locked_at >= TIMESTAMPADD(
      MICROSECOND, -1000000 * :within, (UTC_TIMESTAMP(6))
  );
