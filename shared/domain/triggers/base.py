"""The protocol of a trigger, and the class for each kind of trigger."""

from datetime import datetime
from typing import Protocol, Self

from rota.shared.domain.errors import UnknownKind
from rota.shared.domain.states import TriggerKind
from rota.shared.domain.triggers.cron import CronTrigger
from rota.shared.domain.triggers.inputs import TriggerInputs
from rota.shared.domain.triggers.manual import ManualTrigger


class Trigger(Protocol):
    """When a task fires by itself. Every trigger object is valid and immutable; its moments are naive UTC.

    A trigger does not know the task's window (``starts_at``, ``ends_at``): ``PlanInputs`` applies it to every trigger.
    """

    @classmethod
    def of(cls, inputs: TriggerInputs) -> Self:
        """The trigger that these inputs describe.

        Raises a RotaError that names the bad input and says what would be right.
        """

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after a moment, or None if it never fires again."""

    def latest_at_or_before(self, moment: datetime) -> datetime | None:
        """The last fire that is not after a moment, or None. The cost must not grow with the number of missed fires."""

    def describe(self) -> str | None:
        """The trigger in plain English, such as "every day at 16:30"; None if it never fires by itself."""

    def label(self) -> str:
        """The trigger in a few characters, for a column of a table."""


TRIGGERS: dict[str, type[Trigger]] = {
    TriggerKind.CRON: CronTrigger,
    TriggerKind.MANUAL: ManualTrigger,
}


def trigger_of(inputs: TriggerInputs) -> Trigger:
    """The trigger of a task.

    Raises a RotaError for inputs that describe no trigger.

        >>> trigger_of(TriggerInputs("cron", cron="30 16 * * *", timezone="Asia/Shanghai")).describe()
        'every day at 16:30'
    """
    trigger = TRIGGERS.get(inputs.trigger_kind)
    if trigger is None:
        raise UnknownKind("trigger_kind", inputs.trigger_kind, TRIGGERS)
    return trigger.of(inputs)
