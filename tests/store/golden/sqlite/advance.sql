-- The materializer moves plans on to their next fires.

-- plans.advance
UPDATE schedule_task NOT INDEXED
SET next_fire_at=joined.next
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS old,
        json_extract(value, '$[2]') AS next
    FROM json_each(:rows)
) AS joined
WHERE schedule_task.id = joined.id
  AND schedule_task.next_fire_at = joined.old;

-- The same for a plan that was stale, or that counts a misfire or an error.

-- plans.advance
UPDATE schedule_task NOT INDEXED
SET next_fire_at=moved.next, misfires=(schedule_task.misfires + moved.misfires),
    fires_held_back=(schedule_task.fires_held_back + moved.held_back),
    plan_error=CASE WHEN (moved.is_new = :is_new_1) THEN schedule_task.plan_error END,
    planned_inputs=moved.inputs
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS old,
        json_extract(value, '$[2]') AS next, json_extract(value, '$[3]') AS misfires,
        json_extract(value, '$[4]') AS held_back, json_extract(value, '$[5]') AS is_new,
        json_extract(value, '$[6]') AS inputs
    FROM json_each(:rows)
) AS moved
WHERE schedule_task.id = moved.id
  AND schedule_task.next_fire_at IS moved.old;
