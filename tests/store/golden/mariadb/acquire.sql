-- The materializer and the assigner lease a batch of tasks before they decide about them.

-- locks.take_new
SELECT schedule_task_lock.schedule_task_id
FROM schedule_task_lock
WHERE schedule_task_lock.schedule_task_id IN (:ids);

-- locks.take
UPDATE (
    SELECT DISTINCT schedule_task_lock.schedule_task_id AS schedule_task_id
    FROM schedule_task_lock
    WHERE (schedule_task_lock.schedule_task_id IN (:ids))
      AND (
          schedule_task_lock.is_locked = :is_locked_1
            OR schedule_task_lock.locked_at < TIMESTAMPADD(
                MICROSECOND, -1000000 * :lease, (UTC_TIMESTAMP(6))
            )
            OR TIMESTAMPADD(
                MICROSECOND, -1000000 * :lease, schedule_task_lock.locked_at
            ) > (UTC_TIMESTAMP(6))
            OR schedule_task_lock.locked_at IS NULL
            OR schedule_task_lock.locked_by = :token
      )
    FOR UPDATE SKIP LOCKED
) AS takeable
STRAIGHT_JOIN schedule_task_lock FORCE INDEX (PRIMARY)
SET schedule_task_lock.locked_by=:token, schedule_task_lock.locked_at=(UTC_TIMESTAMP(6)),
    schedule_task_lock.is_locked=:is_locked
WHERE schedule_task_lock.schedule_task_id = takeable.schedule_task_id;

-- locks.held
SELECT group_concat(schedule_task_lock.schedule_task_id) AS group_concat_1
FROM schedule_task_lock
WHERE (schedule_task_lock.schedule_task_id IN (:ids))
  AND schedule_task_lock.locked_by = :token
  AND schedule_task_lock.is_locked = :is_locked_1;

-- The same where a task has no lock row yet: it is new.

-- locks.take_new: as above

-- locks.take_new
INSERT IGNORE INTO schedule_task_lock (schedule_task_id)
SELECT new.id
FROM JSON_TABLE(:rows, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]')) AS new;

-- locks.take: as above

-- locks.held: as above
