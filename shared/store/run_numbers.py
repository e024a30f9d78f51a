"""The run numbers of fires: 0 for the fire itself, and one more for each further run."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, and_, func, select

from rota.shared.database.constructs import bound, by_index, json_rows
from rota.shared.database.later import read_before
from rota.shared.store.tables import schedule_instance

_instance = schedule_instance.c

FireKey = tuple[int, datetime, str]
"""The key that all instances of one fire share: (task id, schedule_datetime, fire_key)."""

_asked = json_rows("asked", task="id", moment="time", fire_key="str")

_fire = (_instance.schedule_task_id, _instance.schedule_datetime, _instance.fire_key)
_last_run_numbers = by_index(
    select(*_fire, func.max(_instance.run_number))
    .select_from(_asked)
    .join(
        schedule_instance,
        and_(
            _instance.schedule_task_id == _asked.c.task,
            _instance.schedule_datetime == _asked.c.moment,
            _instance.fire_key == _asked.c.fire_key,
        ),
    )
    .group_by(*_fire),
    schedule_instance,
    "uq_schedule_instance_fire",
)


def last_of(connection: Connection, fires: Collection[FireKey]) -> dict[FireKey, int]:
    """The highest run number of each of these fires; 0 if no instance of the fire has a number yet."""
    if not fires:
        return {}
    rows = read_before(connection, _last_run_numbers, {"rows": bound(sorted(set(fires)))})
    return {(task, moment, key): number or 0 for task, moment, key, number in rows}
