-- A worker asks what it is to run soon.

-- polling.poll
SELECT group_concat(polled.id) AS group_concat_1, polled.priority, polled.due_at
FROM (
    SELECT schedule_instance.id AS id, schedule_instance.due_at AS due_at,
        schedule_instance.priority AS priority
    FROM schedule_instance
    WHERE schedule_instance.status = :status_1
      AND schedule_instance.schedule_worker_node_id = :worker
      AND schedule_instance.priority IN (:priority_1, …)
      AND schedule_instance.due_at <= :horizon
    ORDER BY schedule_instance.priority, schedule_instance.due_at
    LIMIT :limit OFFSET :param_1
) AS polled
GROUP BY polled.priority, polled.due_at
ORDER BY polled.priority, polled.due_at;
