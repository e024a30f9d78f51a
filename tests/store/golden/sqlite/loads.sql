-- The scheduler counts what each worker holds, before it gives.

-- workers.loads
SELECT schedule_instance.schedule_worker_node_id, count(*) AS count_1
FROM schedule_instance
WHERE schedule_instance.status IN (:status_1, …)
  AND schedule_instance.schedule_worker_node_id IS NOT NULL
GROUP BY schedule_instance.schedule_worker_node_id;

-- The scheduler reads the workers that work may be given to.

-- workers.loads: as above

-- workers.fleet
SELECT schedule_worker_node.id, schedule_worker_node.name, schedule_worker_node.capacity,
    schedule_worker_node.prefetch, schedule_worker_node.labels, schedule_worker_node.node_types,
    schedule_worker_node.type_versions, schedule_worker_beat.busy, schedule_worker_beat.abandoned
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
