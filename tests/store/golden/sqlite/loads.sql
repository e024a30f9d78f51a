-- The scheduler reads the workers that work may be given to, and what they hold up to a limit.

-- loads.fleet
SELECT schedule_worker_node.id, schedule_worker_node.name,
    CAST(schedule_worker_node.capacity AS INTEGER) AS capacity,
    CAST(schedule_worker_node.prefetch AS INTEGER) AS prefetch, schedule_worker_node.labels,
    schedule_worker_node.node_types, schedule_worker_node.type_versions,
    schedule_worker_node.wake_address, schedule_worker_node.pools,
    CAST(schedule_worker_beat.busy AS INTEGER) AS busy,
    CAST(schedule_worker_beat.abandoned AS INTEGER) AS abandoned,
    CASE WHEN (
        (
            SELECT 1
            FROM schedule_instance AS is_assigned
            WHERE is_assigned.status = :status_1
              AND is_assigned.schedule_worker_node_id = schedule_worker_node.id
            LIMIT :param_1 OFFSET :counted
        ) IS NULL
    ) THEN (SELECT count(*) AS count_1 FROM schedule_instance AS is_assigned WHERE is_assigned.status = :status_2 AND is_assigned.schedule_worker_node_id = schedule_worker_node.id) END AS assigned,
    (
        SELECT count(*) AS count_2
        FROM schedule_instance AS is_running
        WHERE is_running.status = :status_3
          AND is_running.schedule_worker_node_id = schedule_worker_node.id
    ) AS running,
    EXISTS (
        SELECT 1
        FROM schedule_pool_place
        WHERE schedule_pool_place.schedule_worker_node_id = schedule_worker_node.id
    ) AS has_places
FROM schedule_worker_node
JOIN schedule_worker_beat
  ON schedule_worker_beat.schedule_worker_node_id = schedule_worker_node.id
WHERE schedule_worker_node.state = :state_1
  AND schedule_worker_node.gmt_blocked IS NULL
  AND schedule_worker_beat.gmt_dead IS NULL
  AND schedule_worker_beat.last_beat >= strftime(
      '%Y-%m-%d %H:%M:%f000', (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
      (-1 * schedule_worker_beat.liveness_seconds) || ' seconds'
  )
  AND schedule_worker_node.capacity > 0;

-- It counts long queues further, in turn.

-- loads.assigned_to
SELECT schedule_worker_node.id,
    CASE WHEN (
        (
            SELECT 1
            FROM schedule_instance AS is_assigned
            WHERE is_assigned.status = :status_1
              AND is_assigned.schedule_worker_node_id = schedule_worker_node.id
            LIMIT :param_1 OFFSET :counted
        ) IS NULL
    ) THEN (SELECT count(*) AS count_1 FROM schedule_instance AS is_assigned WHERE is_assigned.status = :status_2 AND is_assigned.schedule_worker_node_id = schedule_worker_node.id) END AS anon_1
FROM schedule_worker_node
WHERE schedule_worker_node.id IN (SELECT value FROM json_each(:ids));
