"""Chains: what a task may follow, when it fires, and in which order an app declares its tasks."""

from typing import Any

import pytest

from rota.shared.domain.chains import EndedRun, fires, why_not
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.states import InstanceStatus, OnEnd
from rota.shared.domain.task import TaskDefinition, edited
from rota.shared.domain.triggers.after import read_after
from rota.worker_service.declarations import followed_first


def ended(**statuses: str) -> dict[str, list[EndedRun]]:
    return {name: [EndedRun(name, number, status)] for number, (name, status) in enumerate(statuses.items(), 1)}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("extract", {"extract": "success"}),
        (["extract", "load"], {"extract": "success", "load": "success"}),
        (("extract",), {"extract": "success"}),
        ({"extract": "failure", "load": "always"}, {"extract": "failure", "load": "always"}),
        ({"extract": OnEnd.ALWAYS}, {"extract": "always"}),
    ],
)
def test_a_task_two_or_tasks_with_their_ends_can_be_given(given: Any, read: dict[str, str]) -> None:
    assert read_after(given) == read
    definition = TaskDefinition.of(name="report", type="REPORT", after=given)
    assert definition.columns()["trigger_spec"] == {"after": read}
    assert definition.columns()["trigger_kind"] == "after"


@pytest.mark.parametrize(
    "given", ["", [], {}, 3, [3], {"extract": None}, {"extract": "done"}, {3: "success"}, "x" * 64]
)
def test_what_names_no_task_or_no_end_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="after"):
        read_after(given)


def test_its_words_say_what_it_waits_for() -> None:
    one = PlanInputs("after", trigger_spec={"after": {"extract": "success"}})
    three = PlanInputs("after", trigger_spec={"after": {"a": "success", "b": "failure", "c": "always"}})
    assert (one.describe(), one.label()) == ("after extract succeeds", "after extract")
    assert (three.describe(), three.label()) == ("after a succeeds, b fails and c ends", "after a, b, c")


@pytest.mark.parametrize("status", InstanceStatus)
@pytest.mark.parametrize("end", OnEnd)
def test_each_end_and_each_status(end: OnEnd, status: InstanceStatus) -> None:
    asked = {
        OnEnd.SUCCESS: {InstanceStatus.SUCCEED},
        OnEnd.FAILURE: {InstanceStatus.FAILED},
        OnEnd.ALWAYS: {InstanceStatus.SUCCEED, InstanceStatus.FAILED, InstanceStatus.CANCELED},
    }[end]
    assert fires([("a", end)], ended(a=status.value)) == (status in asked)


def test_of_several_it_waits_for_the_last() -> None:
    ends = [("a", OnEnd.SUCCESS), ("b", OnEnd.ALWAYS)]
    assert not fires(ends, {})
    assert not fires(ends, ended(a="succeed"))
    assert not fires(ends, ended(a="failed", b="succeed"))
    assert fires(ends, ended(a="succeed", b="canceled"))


def test_why_it_has_no_run() -> None:
    ends = [("a", OnEnd.SUCCESS), ("b", OnEnd.ALWAYS)]
    assert why_not(ends, ended(a="failed")) == "it follows the success of a, and instance 1 of a has failed"
    assert why_not(ends, ended(a="canceled")) == "it follows the success of a, and instance 1 of a was canceled"
    assert why_not(ends, ended(a="succeed")) == "it waits for b: no run of that time that counts has ended"
    assert "has not written it yet" in why_not(ends, ended(a="succeed", b="failed"))


def test_of_several_runs_of_one_time_one_that_has_ended_so_is_enough() -> None:
    runs = [EndedRun("a", 1, "succeed"), EndedRun("a", 2, "failed")]
    assert all(fires([("a", end)], {"a": runs}) for end in OnEnd)
    assert not fires([("a", OnEnd.FAILURE)], {"a": runs[:1]})


class Row:
    def __init__(self, **columns: Any) -> None:
        self.__dict__ |= columns


def row_of(definition: TaskDefinition) -> Any:
    return Row(**{**definition.model_dump(), **definition.columns()})


def test_another_trigger_takes_its_place() -> None:
    chained = TaskDefinition.of(name="report", type="REPORT", after="extract")
    cron = edited(row_of(chained), {"cron": "@daily"})
    assert (cron.cron, cron.after) == ("@daily", None)
    again = edited(row_of(cron), {"after": "load"})
    assert (again.cron, again.after) == (None, {"load": "success"})


def declared(name: str, after: Any = None) -> TaskDefinition:
    return TaskDefinition.of(name=name, type="REPORT", after=after)


def test_an_app_declares_what_is_followed_first() -> None:
    given = [declared("c", ["a", "b"]), declared("b", ["a", "elsewhere"]), declared("a"), declared("d")]
    order = [one.name for one in followed_first(given)]
    assert sorted(order) == ["a", "b", "c", "d"]
    assert order.index("a") < order.index("b") < order.index("c")


def test_a_circle_in_an_app_is_refused_in_words() -> None:
    with pytest.raises(InvalidInput, match=r"in a circle: (a after b after a|b after a after b)$"):
        followed_first([declared("a", "b"), declared("b", "a")])
