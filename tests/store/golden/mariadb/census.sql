-- The reaper asks at each pass who lives and who holds something.

-- census.take
SELECT moment.time, schedule_worker_node.id, schedule_worker_node.state,
    CASE WHEN (
        schedule_worker_beat.last_beat IS NOT NULL
          AND schedule_worker_beat.gmt_dead IS NULL
    ) THEN 1 END AS lives,
    CASE WHEN (
        schedule_worker_beat.last_beat < TIMESTAMPADD(
            MICROSECOND, -1000000 * schedule_worker_beat.liveness_seconds, (UTC_TIMESTAMP(6))
        )
          OR TIMESTAMPADD(
              MICROSECOND, -1000000 * schedule_worker_beat.liveness_seconds,
              schedule_worker_beat.last_beat
          ) > (UTC_TIMESTAMP(6))
    ) THEN schedule_worker_beat.liveness_seconds END AS patience,
    CASE WHEN (
        schedule_worker_node.last_heartbeat < TIMESTAMPADD(
            MICROSECOND, -1000000 * :seconds_before_1, schedule_worker_beat.last_beat
        )
          OR schedule_worker_node.last_heartbeat > schedule_worker_beat.last_beat
    ) THEN 1 END AS unshown, schedule_worker_beat.last_beat AS beat,
    CASE WHEN (
        TIMESTAMPADD(
            MICROSECOND, -1000000 * schedule_worker_beat.liveness_seconds,
            schedule_worker_beat.last_beat
        ) > (UTC_TIMESTAMP(6))
    ) THEN 1 END AS is_ahead
FROM (SELECT (UTC_TIMESTAMP(6)) AS time) AS moment
LEFT OUTER JOIN schedule_worker_node
  ON schedule_worker_node.state IN (:state_1, …)
LEFT OUTER JOIN schedule_worker_beat
  ON schedule_worker_beat.schedule_worker_node_id = schedule_worker_node.id
UNION ALL
SELECT NULL AS anon_1, schedule_worker_beat.schedule_worker_node_id, NULL AS anon__1, 1,
    CASE WHEN (
        schedule_worker_beat.last_beat < TIMESTAMPADD(
            MICROSECOND, -1000000 * schedule_worker_beat.liveness_seconds, (UTC_TIMESTAMP(6))
        )
          OR TIMESTAMPADD(
              MICROSECOND, -1000000 * schedule_worker_beat.liveness_seconds,
              schedule_worker_beat.last_beat
          ) > (UTC_TIMESTAMP(6))
    ) THEN schedule_worker_beat.liveness_seconds END AS anon_2, NULL AS anon__2,
    schedule_worker_beat.last_beat,
    CASE WHEN (
        TIMESTAMPADD(
            MICROSECOND, -1000000 * schedule_worker_beat.liveness_seconds,
            schedule_worker_beat.last_beat
        ) > (UTC_TIMESTAMP(6))
    ) THEN 1 END AS anon_3
FROM schedule_worker_beat
LEFT OUTER JOIN schedule_worker_node
  ON schedule_worker_beat.schedule_worker_node_id = schedule_worker_node.id
WHERE schedule_worker_beat.gmt_dead IS NULL
  AND (schedule_worker_node.id IS NULL OR schedule_worker_node.state = :state_2)
UNION ALL
SELECT NULL AS anon_1, known.id, NULL AS anon__1, NULL AS anon__2, NULL AS anon__3, NULL AS anon__4,
    NULL AS anon__5, NULL AS anon__6
FROM JSON_TABLE(:rows, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]')) AS known
WHERE (
    SELECT is_assigned.id
    FROM schedule_instance AS is_assigned FORCE INDEX (ix_schedule_instance_work)
    WHERE is_assigned.status = :status_1
      AND is_assigned.schedule_worker_node_id = known.id
    LIMIT 1
) IS NOT NULL
  OR (
      SELECT is_running.id
      FROM schedule_instance AS is_running FORCE INDEX (ix_schedule_instance_work)
      WHERE is_running.status = :status_2
        AND is_running.schedule_worker_node_id = known.id
      LIMIT 1
  ) IS NOT NULL
UNION ALL
SELECT NULL AS anon_1, of_others.schedule_worker_node_id, NULL AS anon__1, NULL AS anon__2,
    NULL AS anon__3, NULL AS anon__4, NULL AS anon__5, NULL AS anon__6
FROM (
    SELECT DISTINCT schedule_instance.status AS status,
        schedule_instance.schedule_worker_node_id AS schedule_worker_node_id
    FROM schedule_instance FORCE INDEX (ix_schedule_instance_work)
    WHERE schedule_instance.status IN (:status_3, …)
      AND schedule_instance.schedule_worker_node_id > 0
      AND NOT (schedule_instance.schedule_worker_node_id IN (:known))
) AS of_others
UNION ALL
SELECT NULL AS anon_1, schedule_kept_slot.schedule_worker_node_id, NULL AS anon__1, NULL AS anon__2,
    NULL AS anon__3, NULL AS anon__4, NULL AS anon__5, NULL AS anon__6
FROM schedule_kept_slot;

-- The reaper marks dead who is silent beyond its limit.

-- workers._bury
SELECT STRAIGHT_JOIN schedule_worker_beat.schedule_worker_node_id
FROM schedule_worker_beat FORCE INDEX (PRIMARY)
WHERE schedule_worker_beat.schedule_worker_node_id IN (:schedule_worker_node_id_1, …)
  AND schedule_worker_beat.gmt_dead IS NULL
  AND (
      schedule_worker_beat.last_beat < TIMESTAMPADD(
          MICROSECOND, -1000000 * schedule_worker_beat.liveness_seconds, (UTC_TIMESTAMP(6))
      )
        OR TIMESTAMPADD(
            MICROSECOND, -1000000 * schedule_worker_beat.liveness_seconds,
            schedule_worker_beat.last_beat
        ) > (UTC_TIMESTAMP(6))
  )
FOR UPDATE SKIP LOCKED;
