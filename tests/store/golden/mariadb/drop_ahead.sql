-- The materializer deletes what a stale plan had put ahead and nobody claimed.

-- unclaimed._read
SELECT STRAIGHT_JOIN schedule_instance.schedule_task_id, schedule_instance.id,
    schedule_instance.schedule_datetime
FROM schedule_instance FORCE INDEX (uq_schedule_instance_fire)
WHERE schedule_instance.schedule_task_id IN (:schedule_task_id_1, …)
  AND schedule_instance.schedule_datetime > :schedule_datetime_1
  AND schedule_instance.creator = :creator_1
  AND schedule_instance.run_number = :run_number_1
  AND schedule_instance.origin = :origin_1
  AND schedule_instance.attempt = :attempt_1
  AND (schedule_instance.status = :status_1 OR schedule_instance.status = :status_2);

-- unclaimed.drop
DELETE
FROM schedule_instance USING schedule_instance FORCE INDEX (PRIMARY)
WHERE (schedule_instance.id IN (:ids))
  AND schedule_instance.run_number = :run_number_1
  AND schedule_instance.origin = :origin_1
  AND schedule_instance.attempt = :attempt_1
  AND (schedule_instance.status = :param_1 OR schedule_instance.status = :param_2);

-- unclaimed.drop
DELETE
FROM schedule_task_node USING schedule_task_node FORCE INDEX (uq_schedule_task_node_order)
WHERE (schedule_task_node.schedule_instance_id IN (:ids))
  AND NOT (
      EXISTS (
          SELECT STRAIGHT_JOIN schedule_instance.id
          FROM schedule_instance FORCE INDEX (PRIMARY)
          WHERE schedule_instance.id = schedule_task_node.schedule_instance_id
      )
  );
