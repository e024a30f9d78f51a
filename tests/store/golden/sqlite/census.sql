-- The reaper asks at each pass who lives and who holds something.

-- census.take
SELECT moment.time, schedule_worker_node.id, schedule_worker_node.state,
    CASE WHEN (
        schedule_worker_beat.last_beat IS NOT NULL
          AND schedule_worker_beat.gmt_dead IS NULL
    ) THEN 1 END AS lives,
    CASE WHEN (
        schedule_worker_beat.last_beat < strftime(
            '%Y-%m-%d %H:%M:%f000', (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
            (-1 * schedule_worker_beat.liveness_seconds) || ' seconds'
        )
          OR strftime(
              '%Y-%m-%d %H:%M:%f000', schedule_worker_beat.last_beat,
              (-1 * schedule_worker_beat.liveness_seconds) || ' seconds'
          ) > (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
    ) THEN schedule_worker_beat.liveness_seconds END AS patience,
    CASE WHEN (
        schedule_worker_node.last_heartbeat < strftime(
            '%Y-%m-%d %H:%M:%f000', schedule_worker_beat.last_beat,
            (-1 * :seconds_before_1) || ' seconds'
        )
          OR schedule_worker_node.last_heartbeat > schedule_worker_beat.last_beat
    ) THEN 1 END AS unshown, schedule_worker_beat.last_beat AS beat,
    CASE WHEN (
        strftime(
            '%Y-%m-%d %H:%M:%f000', schedule_worker_beat.last_beat,
            (-1 * schedule_worker_beat.liveness_seconds) || ' seconds'
        ) > (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
    ) THEN 1 END AS is_ahead
FROM (SELECT (strftime('%Y-%m-%d %H:%M:%f000', 'now')) AS time) AS moment
LEFT OUTER JOIN schedule_worker_node
  ON schedule_worker_node.state IN (:state_1, …)
LEFT OUTER JOIN schedule_worker_beat
  ON schedule_worker_beat.schedule_worker_node_id = schedule_worker_node.id
UNION ALL
SELECT NULL AS anon_1, schedule_worker_beat.schedule_worker_node_id, NULL AS anon__1, 1,
    CASE WHEN (
        schedule_worker_beat.last_beat < strftime(
            '%Y-%m-%d %H:%M:%f000', (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
            (-1 * schedule_worker_beat.liveness_seconds) || ' seconds'
        )
          OR strftime(
              '%Y-%m-%d %H:%M:%f000', schedule_worker_beat.last_beat,
              (-1 * schedule_worker_beat.liveness_seconds) || ' seconds'
          ) > (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
    ) THEN schedule_worker_beat.liveness_seconds END AS anon_2, NULL AS anon__2,
    schedule_worker_beat.last_beat,
    CASE WHEN (
        strftime(
            '%Y-%m-%d %H:%M:%f000', schedule_worker_beat.last_beat,
            (-1 * schedule_worker_beat.liveness_seconds) || ' seconds'
        ) > (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
    ) THEN 1 END AS anon_3
FROM schedule_worker_beat
LEFT OUTER JOIN schedule_worker_node
  ON schedule_worker_beat.schedule_worker_node_id = schedule_worker_node.id
WHERE schedule_worker_beat.gmt_dead IS NULL
  AND (schedule_worker_node.id IS NULL OR schedule_worker_node.state = :state_2)
UNION ALL
SELECT NULL AS anon_1, known.id, NULL AS anon__1, NULL AS anon__2, NULL AS anon__3, NULL AS anon__4,
    NULL AS anon__5, NULL AS anon__6
FROM (SELECT json_extract(value, '$[0]') AS id FROM json_each(:rows)) AS known
WHERE (
    SELECT is_assigned.id
    FROM schedule_instance AS is_assigned
    WHERE is_assigned.status = :status_1
      AND is_assigned.schedule_worker_node_id = known.id
    LIMIT 1 OFFSET :param_1
) IS NOT NULL
  OR (
      SELECT is_running.id
      FROM schedule_instance AS is_running
      WHERE is_running.status = :status_2
        AND is_running.schedule_worker_node_id = known.id
      LIMIT 1 OFFSET :param_2
  ) IS NOT NULL
UNION ALL
SELECT NULL AS anon_1, of_others.schedule_worker_node_id, NULL AS anon__1, NULL AS anon__2,
    NULL AS anon__3, NULL AS anon__4, NULL AS anon__5, NULL AS anon__6
FROM (
    SELECT DISTINCT schedule_instance.status AS status,
        schedule_instance.schedule_worker_node_id AS schedule_worker_node_id
    FROM schedule_instance
    WHERE schedule_instance.status IN (:status_3, …)
      AND schedule_instance.schedule_worker_node_id > 0
      AND NOT (schedule_instance.schedule_worker_node_id IN (SELECT value FROM json_each(:known)))
) AS of_others
UNION ALL
SELECT NULL AS anon_1, schedule_kept_slot.schedule_worker_node_id, NULL AS anon__1, NULL AS anon__2,
    NULL AS anon__3, NULL AS anon__4, NULL AS anon__5, NULL AS anon__6
FROM schedule_kept_slot;

-- The reaper marks dead who is silent beyond its limit.

-- workers._bury
SELECT schedule_worker_beat.schedule_worker_node_id
FROM schedule_worker_beat
WHERE schedule_worker_beat.schedule_worker_node_id IN (:schedule_worker_node_id_1, …)
  AND schedule_worker_beat.gmt_dead IS NULL
  AND (
      schedule_worker_beat.last_beat < strftime(
          '%Y-%m-%d %H:%M:%f000', (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
          (-1 * schedule_worker_beat.liveness_seconds) || ' seconds'
      )
        OR strftime(
            '%Y-%m-%d %H:%M:%f000', schedule_worker_beat.last_beat,
            (-1 * schedule_worker_beat.liveness_seconds) || ' seconds'
        ) > (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
  );
