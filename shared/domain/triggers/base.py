"""The protocol of a trigger, and the class for each kind of trigger."""

from datetime import datetime
from typing import Protocol, Self

from rota.shared.domain.errors import UnknownKind
from rota.shared.domain.states import TriggerKind
from rota.shared.domain.triggers.after import AfterTrigger
from rota.shared.domain.triggers.combined import CombinedTrigger
from rota.shared.domain.triggers.cron import CronTrigger
from rota.shared.domain.triggers.fixed_delay import FixedDelayTrigger
from rota.shared.domain.triggers.inputs import TriggerInputs
from rota.shared.domain.triggers.interval import IntervalTrigger
from rota.shared.domain.triggers.manual import ManualTrigger
from rota.shared.domain.triggers.once import OnceTrigger


class Search(Protocol):
    """What finds fires of a trigger, one after another; moments are naive UTC."""

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after a moment, or None if it never fires again."""

    def latest_at_or_before(self, moment: datetime) -> datetime | None:
        """The last fire that is not after a moment, or None. The cost must not grow with the number of missed fires."""


class Trigger(Search, Protocol):
    """When a task fires by itself. Every trigger object is valid and immutable; its moments are naive UTC.

    A trigger need not know the task's window (``starts_at``, ``ends_at``): ``PlanInputs`` applies it to every trigger.
    """

    @classmethod
    def of(cls, inputs: TriggerInputs) -> Self:
        """The trigger that these inputs describe.

        Raises a RotaError that names the bad input and says what would be right.
        """

    def describe(self) -> str | None:
        """The trigger in plain English, such as "every day at 16:30"; None if it never fires by itself."""

    def label(self) -> str:
        """The trigger in a few characters, for a column of a table."""


TRIGGERS: dict[str, type[Trigger]] = {
    TriggerKind.CRON: CronTrigger,
    TriggerKind.INTERVAL: IntervalTrigger,
    TriggerKind.FIXED_DELAY: FixedDelayTrigger,
    TriggerKind.ONCE: OnceTrigger,
    TriggerKind.COMBINED: CombinedTrigger,
    TriggerKind.AFTER: AfterTrigger,
    TriggerKind.MANUAL: ManualTrigger,
}

AFTER_ENDS = frozenset({TriggerKind.FIXED_DELAY})
"""The kinds of which each fire follows the end of the run before it."""


def trigger_of(inputs: TriggerInputs) -> Trigger:
    """The trigger of a task.

    Raises a RotaError for inputs that describe no trigger.

        >>> trigger_of(TriggerInputs("cron", cron="30 16 * * *", timezone="Asia/Shanghai")).describe()
        'every day at 16:30'
    """
    trigger = TRIGGERS.get(inputs.trigger_kind)
    if trigger is None:
        raise UnknownKind("trigger_kind", inputs.trigger_kind, TRIGGERS)
    _ = inputs.jitter_seconds  # it may be refused, too
    return trigger.of(inputs)


def search_of(inputs: TriggerInputs) -> Search:
    """What finds fires of a task, one after another in one direction: all that it finds takes no longer than one may.

    Raises a RotaError for inputs that describe no trigger.
    """
    trigger = trigger_of(inputs)
    return trigger.search() if isinstance(trigger, CombinedTrigger) else trigger
