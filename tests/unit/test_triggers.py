"""A trigger is one class: what it is made from, how the window clips it, and what a new kind needs."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

import pytest

from rota.shared.domain.errors import InvalidCron, InvalidInput, InvalidTimezone
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.states import TriggerKind
from rota.shared.domain.triggers.base import TRIGGERS, trigger_of
from rota.shared.domain.triggers.inputs import TriggerInputs

NOON = datetime.fromisoformat("2026-11-19T12:00:00")
MINUTE = timedelta(minutes=1)


def test_every_kind_has_its_trigger() -> None:
    assert set(TRIGGERS) == set(TriggerKind)


def test_a_cron_trigger_is_read_in_the_tasks_zone() -> None:
    trigger = trigger_of(TriggerInputs("cron", "30 16 * * *", timezone="Asia/Shanghai"))
    fire = datetime.fromisoformat("2026-11-20T08:30:00")
    assert trigger.next_after(NOON) == fire
    assert trigger.latest_at_or_before(fire) == fire
    assert (trigger.describe(), trigger.label()) == ("every day at 16:30", "30 16 * * *")


@pytest.mark.parametrize(
    ("inputs", "error", "said"),
    [
        (TriggerInputs("cron", "61 * * * *"), InvalidCron, "61"),
        (TriggerInputs("cron", "* * * * * *"), InvalidCron, "seconds are not declared"),
        (TriggerInputs("cron"), InvalidCron, "set cron, or trigger_kind manual"),
        (TriggerInputs("cron", "* * * * *", timezone="Mars/Base"), InvalidTimezone, "Mars/Base"),
    ],
)
def test_a_trigger_is_refused_when_it_is_made(inputs: TriggerInputs, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        trigger_of(inputs)


def test_a_manual_trigger_never_fires_and_needs_nothing() -> None:
    trigger = trigger_of(TriggerInputs("manual", "61 * * * *", timezone="Mars/Base"))
    assert (trigger.next_after(NOON), trigger.latest_at_or_before(NOON)) == (None, None)
    assert (trigger.describe(), trigger.label()) == (None, "when asked")


@dataclass(frozen=True)
class Solar:
    """A kind of a test's own, which keeps its input in the JSON column."""

    seconds: int

    @classmethod
    def of(cls, inputs: TriggerInputs) -> Self:
        if not isinstance(inputs.trigger_spec, dict) or "seconds" not in inputs.trigger_spec:
            raise InvalidInput("trigger_spec must say seconds")
        return cls(inputs.trigger_spec["seconds"])

    def next_after(self, moment: datetime) -> datetime:
        return self.latest_at_or_before(moment) + timedelta(seconds=self.seconds)

    def latest_at_or_before(self, moment: datetime) -> datetime:
        return NOON + (moment - NOON) // timedelta(seconds=self.seconds) * timedelta(seconds=self.seconds)

    def describe(self) -> str:
        return f"every {self.seconds} seconds"

    def label(self) -> str:
        return f"{self.seconds} s"


def test_a_new_kind_needs_its_class_and_the_window_clips_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRIGGERS, "solar", Solar)
    inputs = PlanInputs("solar", trigger_spec={"seconds": 90}, starts_at=NOON + MINUTE, ends_at=NOON + 4 * MINUTE)
    assert trigger_of(inputs).describe() == "every 90 seconds"
    fires = [NOON + timedelta(seconds=90), NOON + timedelta(seconds=180)]
    assert list(inputs.fires_after(NOON - timedelta(days=1))) == fires
    assert inputs.newest_until(NOON + timedelta(days=1)) == fires[-1]
    assert inputs.newest_until(NOON + MINUTE) is None
    with pytest.raises(InvalidInput, match="must say seconds"):
        PlanInputs("solar").next_after(NOON)
