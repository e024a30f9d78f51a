-- The materializer moves plans on to their next fires.

-- plans.advance
UPDATE schedule_task FORCE INDEX (PRIMARY)
SET next_fire_at=ELT(INTERVAL(schedule_task.id, :ids), :next_listed)
WHERE (schedule_task.id IN (:ids))
  AND schedule_task.next_fire_at = ELT(INTERVAL(schedule_task.id, :ids), :old_listed);

-- The same for a plan that was stale, or that counts a misfire or an error.

-- plans.advance
UPDATE JSON_TABLE(
    :rows,
    '$[*]' COLUMNS (
        id BIGINT UNSIGNED PATH '$[0]', old DATETIME(6) PATH '$[1]', next DATETIME(6) PATH '$[2]',
        misfires INT PATH '$[3]', held_back INT PATH '$[4]', is_new INT PATH '$[5]',
        inputs LONGTEXT PATH '$[6]'
    )
) AS moved
STRAIGHT_JOIN schedule_task FORCE INDEX (PRIMARY)
SET schedule_task.next_fire_at=moved.next,
    schedule_task.misfires=(schedule_task.misfires + moved.misfires),
    schedule_task.fires_held_back=(schedule_task.fires_held_back + moved.held_back),
    schedule_task.plan_error=CASE WHEN (moved.is_new = :is_new_1) THEN schedule_task.plan_error END,
    schedule_task.planned_inputs=moved.inputs
WHERE schedule_task.id = moved.id
  AND schedule_task.next_fire_at <=> moved.old;
