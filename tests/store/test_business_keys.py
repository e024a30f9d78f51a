"""One-off work under business keys: what a call does to what waits, runs or has ended under its key."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymysql.err import OperationalError

from rota.scheduler_service.duties.business_keys import BusinessKeys
from rota.scheduler_service.duties.requests import Requests
from rota.shared.control import audit, business_keys, replays, requests, tasks
from rota.shared.control.actor import Actor
from rota.shared.control.business_keys import Wanted
from rota.shared.database import callers
from rota.shared.domain.business_keys import KeyFilter
from rota.shared.domain.errors import InvalidInput, InvalidParam, NotFound, UnknownType
from rota.shared.settings import Settings
from rota.shared.store import reports, runs, standing_keys
from tests.harness.databases import connect
from tests.harness.scenario import Scenario, ended

MINUTE = timedelta(minutes=1)

ANN = Actor("ann", "code")


def once(rows: Scenario, key: str, at: datetime | None = None, **fields: Any) -> dict[str, Any]:
    wanted = Wanted(key, None if at is None else at.isoformat(), **fields)
    return business_keys.once(rows.database, ANN, "REPORT", wanted)


def keys(rows: Scenario, **chosen: Any) -> list[dict[str, Any]]:
    return business_keys.listed(rows.database, KeyFilter(**chosen), 1000)


def live(rows: Scenario) -> Sequence[Any]:
    """The instances that wait or run: id, status, due_at, param."""
    return rows.sql(
        "SELECT id, status, due_at, param FROM schedule_instance WHERE status IN ('pending', 'assigned', 'running')"
        " ORDER BY id"
    )


def step(rows: Scenario) -> None:
    BusinessKeys(rows.database, Settings.load()).step()


def later(rows: Scenario, hours: int = 1) -> datetime:
    """A time at which no scheduler has looked yet."""
    return rows.start + hours * timedelta(hours=1)


def begin(rows: Scenario, instance_id: int) -> tuple[int, runs.Run]:
    """Let a worker claim an instance that is due."""
    worker = rows.worker()
    rows.give(worker, instance_id)
    [run] = rows.claim(worker, instance_id).runs
    return worker, run


# What one call does


@pytest.mark.parametrize("way", ["at once", "by a request"])
def test_a_run_is_found_by_its_fire_key_also_after_its_end_and_its_replay(rows: Scenario, way: str) -> None:
    at = rows.start - MINUTE
    wanted = Wanted("a", f"{at.isoformat()}+00:00", {"region": "eu"}, fire_key="f" * 32)
    assert business_keys.run_of(rows.database, "REPORT", at, "f" * 32) is None
    if way == "at once":
        business_keys.once(rows.database, ANN, "REPORT", wanted)
    else:
        [insert], _ = requests.once(rows.database, ANN, "REPORT", wanted)
        rows.database.write(lambda connection: callers.execute(connection, insert))
        Requests(rows.database, Settings.load()).step()
    run = business_keys.run_of(rows.database, "REPORT", at, "f" * 32)
    assert run is not None
    assert (run["status"], run["param"], run["fire_key"]) == ("pending", {"region": "eu"}, "f" * 32)
    worker, claimed = begin(rows, run["id"])
    rows.report(worker, ended(claimed))
    step(rows)
    assert keys(rows) == []
    again = business_keys.run_of(rows.database, "REPORT", at, "f" * 32)
    assert again is not None
    assert (again["id"], again["status"]) == (run["id"], "succeed")
    [replay] = replays.replay(rows.database, ANN, [run["id"]])
    newest = business_keys.run_of(rows.database, "REPORT", at, "f" * 32)
    assert newest is not None
    assert newest["id"] == replay["id"]
    assert business_keys.run_of(rows.database, "REPORT", at + MINUTE, "f" * 32) is None


def test_a_call_adds_a_run_of_a_task_that_is_named_after_the_type(rows: Scenario) -> None:
    at = later(rows)
    done = once(rows, "eu", at, param={"region": "eu"})
    row = rows.row(done["instance_id"])
    assert (done["done"], done["key"], done["code"], done["follows_id"]) == ("added", "eu", "", None)
    assert (row.status, row.schedule_datetime, row.due_at, row.param) == ("pending", at, at, {"region": "eu"})
    assert (row.origin, row.attempt, row.creator) == ("manual", 0, "ann")
    task = tasks.get(rows.database, "report-once")
    assert (task["type"], task["trigger_kind"], task["overlap_policy"]) == ("REPORT", "manual", "allow")
    [key] = keys(rows)
    assert (key["key"], key["instance_id"], key["status"]) == ("eu", row.id, "pending")


def test_the_same_call_again_moves_what_waits(rows: Scenario) -> None:
    first = once(rows, "eu", later(rows), param={"region": "eu"})
    second = once(rows, "eu", later(rows, 5))
    assert (second["done"], second["instance_id"]) == ("moved", first["instance_id"])
    [(number, status, _, param)] = live(rows)
    assert (number, status, param) == (first["instance_id"], "pending", None)
    assert rows.row(number).due_at == rows.row(number).schedule_datetime == later(rows, 5)
    assert len(keys(rows)) == 1


def near(rows: Scenario) -> dict[str, Any]:
    """A run that waits, and at which a scheduler may have looked."""
    return once(rows, "eu", rows.start + 5 * MINUTE)


def given(rows: Scenario) -> dict[str, Any]:
    """A run that a worker was given, and that it has not claimed."""
    first = once(rows, "eu")
    rows.give(rows.worker(), first["instance_id"])
    return first


@pytest.mark.parametrize("begun", [near, given])
def test_what_others_may_be_about_to_begin_is_replaced_and_never_changed(
    rows: Scenario, begun: Callable[[Scenario], dict[str, Any]]
) -> None:
    first = begun(rows)
    before = rows.row(first["instance_id"])
    second = once(rows, "eu", rows.start + MINUTE, param={"n": 2})
    assert second["done"] == "moved"
    assert second["instance_id"] != first["instance_id"]
    after = rows.row(first["instance_id"])
    assert (after.status, after.reason) == ("canceled", "another time was asked for under its key")
    assert (after.due_at, after.param, after.attempt) == (before.due_at, before.param, 0)
    [(number, status, _, param)] = live(rows)
    assert (number, status, json.loads(param)) == (second["instance_id"], "pending", {"n": 2})
    assert [key["instance_id"] for key in keys(rows)] == [number]
    assert rows.broken() == {}


def test_a_claim_that_comes_after_a_move_begins_nothing(rows: Scenario) -> None:
    first = once(rows, "eu")
    worker = rows.worker()
    rows.give(worker, first["instance_id"])
    assert once(rows, "eu", later(rows))["done"] == "moved"
    assert rows.claim(worker, first["instance_id"]).runs == []


def test_a_task_that_was_removed_takes_no_key_with_it(rows: Scenario) -> None:
    first = once(rows, "eu", later(rows))
    kept = once(rows, "us")
    worker, run = begin(rows, kept["instance_id"])
    tasks.remove(rows.database, ANN, "report-once")
    moved = once(rows, "eu", later(rows, 2))
    assert (moved["done"], once(rows, "us", later(rows))["done"]) == ("moved", "kept")
    assert rows.report(worker, ended(run)) == set()
    step(rows)
    task = tasks.get(rows.database, "report-once")["id"]
    of_tasks = {rows.row(number).schedule_task_id for number, *_ in live(rows)}
    assert (of_tasks, len(live(rows))) == ({task}, 2)
    assert moved["instance_id"] == first["instance_id"]


def test_keys_of_other_codes_and_other_types_are_others(rows: Scenario) -> None:
    done = [once(rows, "1"), once(rows, "1", code="shop"), once(rows, "2")]
    assert [one["done"] for one in done] == ["added"] * 3
    assert len(live(rows)) == 3


def test_while_it_runs_the_last_call_is_kept_and_begins_after_the_end(rows: Scenario) -> None:
    first = once(rows, "eu")
    worker, run = begin(rows, first["instance_id"])
    assert once(rows, "eu", param={"n": 1})["done"] == "kept"
    kept = once(rows, "eu", later(rows, 3), param={"n": 2})
    assert (kept["done"], kept["instance_id"], kept["follows_id"]) == ("kept", None, run.id)
    step(rows)
    assert len(live(rows)) == 1, "it still runs"
    assert rows.report(worker, ended(run)) == set()
    step(rows)
    [(number, *_)] = live(rows)
    row = rows.row(number)
    assert (row.status, row.due_at, row.param) == ("pending", later(rows, 3), {"n": 2})
    [key] = keys(rows)
    assert (key["instance_id"], key["next_at"]) == (number, None)
    step(rows)
    assert len(live(rows)) == 1


def test_a_run_that_waits_for_a_retry_has_begun(rows: Scenario) -> None:
    first = once(rows, "eu")
    rows.sql("UPDATE schedule_instance SET attempt = 1 WHERE id = :id", id=first["instance_id"])
    assert once(rows, "eu")["done"] == "kept"


@pytest.mark.parametrize("looked", [False, True], ids=["before the scheduler looks", "after it"])
def test_what_has_ended_frees_its_key(rows: Scenario, looked: bool) -> None:
    first = once(rows, "eu")
    worker, run = begin(rows, first["instance_id"])
    assert rows.report(worker, ended(run)) == set()
    if looked:
        step(rows)
        assert keys(rows) == []
    second = once(rows, "eu", later(rows))
    assert second["done"] == "added"
    assert second["instance_id"] != first["instance_id"]
    [key] = keys(rows)
    assert key["instance_id"] == second["instance_id"]


def test_an_instance_that_sql_has_deleted_frees_its_key(rows: Scenario) -> None:
    first = once(rows, "eu", later(rows))
    rows.sql("DELETE FROM schedule_instance WHERE id = :id", id=first["instance_id"])
    assert once(rows, "eu", later(rows))["done"] == "added"
    rows.sql("DELETE FROM schedule_instance")
    rows.sql("UPDATE schedule_business_key SET due_at = :past", past=rows.start - MINUTE)
    step(rows)
    assert keys(rows) == []


# A handler's own next time


def asking_again(run: runs.Run, at: datetime) -> reports.Report:
    """A report of a run that succeeded, and whose handler asks for another one."""
    report = ended(run)
    assert report.instance is not None
    report.instance.again = at
    return report


def ended_with_run_again(rows: Scenario, instance_id: int, at: datetime) -> int:
    """Let it run and ask for another run; returns the id of that one."""
    worker, run = begin(rows, instance_id)
    report = asking_again(run, at)
    assert rows.report(worker, report) == set()
    [(follower,)] = rows.sql("SELECT id FROM schedule_instance WHERE follows_id = :id", id=instance_id)
    return int(follower)


@pytest.mark.parametrize("looked", [False, True], ids=["before the scheduler looks", "after it"])
def test_a_handlers_own_next_time_keeps_the_key(rows: Scenario, looked: bool) -> None:
    first = once(rows, "eu")
    follower = ended_with_run_again(rows, first["instance_id"], later(rows))
    if looked:
        step(rows)
        assert [key["instance_id"] for key in keys(rows)] == [follower]
    moved = once(rows, "eu", later(rows, 7))
    assert (moved["done"], moved["instance_id"]) == ("moved", follower)
    assert [key["instance_id"] for key in keys(rows)] == [follower]
    row = rows.row(follower)
    assert (row.due_at, row.schedule_datetime) == (later(rows, 7), later(rows)), "the run that asked still finds it"
    assert len(live(rows)) == 1


def test_a_call_that_was_kept_moves_what_the_handler_has_asked_for(rows: Scenario) -> None:
    first = once(rows, "eu")
    worker, run = begin(rows, first["instance_id"])
    assert once(rows, "eu", later(rows, 7), param={"n": 2})["done"] == "kept"
    assert rows.report(worker, asking_again(run, later(rows))) == set()
    step(rows)
    [(number, *_)] = live(rows)
    assert (rows.row(number).follows_id, rows.row(number).due_at) == (run.id, later(rows, 7))
    assert rows.row(number).param == {"n": 2}
    [key] = keys(rows)
    assert (key["instance_id"], key["next_at"]) == (number, None)


# Many at once


def test_many_are_asked_for_at_once(rows: Scenario) -> None:
    once(rows, "product-1", later(rows))
    begin(rows, once(rows, "product-2")["instance_id"])
    at = later(rows, 9).isoformat()
    wanted = [Wanted(f"product-{n}", at) for n in range(2500)] + [Wanted("product-7", later(rows, 3).isoformat())]
    told: list[int] = []
    done = business_keys.once_many(rows.database, ANN, "REPORT", wanted, progress=told.append)
    assert done == {"type": "REPORT", "keys": 2500, "added": 2498, "moved": 1, "kept": 1}
    assert told == [1000, 2000, 2500]
    assert rows.sql("SELECT COUNT(*) FROM schedule_business_key")[0][0] == 2500
    [seven] = keys(rows, type="REPORT", begins="product-7", contains="7")[:1]
    assert datetime.fromisoformat(seven["at"]).replace(tzinfo=None) == later(rows, 3), "of two the last counts"
    acts = audit.listed(rows.database, 10, task="report-once")
    assert [act["new_values"].get("keys") for act in acts if act["action"] == "key.once_many"] == [500, 1000, 1000]


def test_nothing_is_written_if_one_of_many_is_wrong(rows: Scenario) -> None:
    once(rows, "first", later(rows))
    before = rows.sql("SELECT COUNT(*) FROM schedule_instance")[0][0]
    wanted = [Wanted(f"product-{n}") for n in range(1500)] + [Wanted("bad", "tomorrow")]
    with pytest.raises(InvalidInput, match="key 'bad': 'tomorrow' is not a time"):
        business_keys.once_many(rows.database, ANN, "REPORT", wanted)
    assert rows.sql("SELECT COUNT(*) FROM schedule_instance")[0][0] == before


# Canceling


def test_what_waits_is_canceled_and_its_key_is_free(rows: Scenario) -> None:
    first = once(rows, "eu", later(rows))
    done = business_keys.cancel(rows.database, ANN, "REPORT", ("", "eu"))
    assert (done["canceled"], done["asked"], done["instance_id"]) == (True, False, first["instance_id"])
    assert (rows.status(first["instance_id"]), keys(rows)) == ("canceled", [])
    with pytest.raises(NotFound, match="nothing waits or runs under key 'eu' of REPORT"):
        business_keys.cancel(rows.database, ANN, "REPORT", ("", "eu"))


def test_the_worker_of_what_runs_is_asked_and_the_next_run_is_dropped(rows: Scenario) -> None:
    first = once(rows, "eu")
    begin(rows, first["instance_id"])
    once(rows, "eu")
    for _ in range(2):
        done = business_keys.cancel(rows.database, ANN, "REPORT", ("", "eu"))
        assert (done["canceled"], done["asked"]) == (False, True)
    assert rows.row(first["instance_id"]).gmt_cancel_requested is not None
    [key] = keys(rows)
    assert (key["status"], key["next_at"]) == ("running", None)


@pytest.mark.parametrize("way", ["key", "beginning"])
def test_a_cancel_drops_what_is_kept_though_the_run_has_just_ended(rows: Scenario, way: str) -> None:
    worker, run = begin(rows, once(rows, "eu")["instance_id"])
    assert once(rows, "eu")["done"] == "kept"
    assert rows.report(worker, ended(run)) == set()
    if way == "key":
        assert business_keys.cancel(rows.database, ANN, "REPORT", ("", "eu"))["canceled"]
    else:
        done = business_keys.cancel_all(rows.database, ANN, KeyFilter("REPORT", begins="e"))
        assert done == {"canceled": 1, "asked": 0}
    step(rows)
    assert (keys(rows), list(live(rows))) == ([], [])


def test_all_of_a_beginning_are_canceled_and_no_other(rows: Scenario) -> None:
    at = later(rows).isoformat()
    names = [f"product-{n:04}" for n in range(1200)]
    others = ["produc", "product", "producu-1", "Product-1"]
    business_keys.once_many(rows.database, ANN, "REPORT", [Wanted(name, at) for name in [*names, *others]])
    business_keys.once_many(rows.database, ANN, "REPORT", [Wanted("product-1", at, code="shop")])
    first = once(rows, "product-0000")
    begin(rows, first["instance_id"])
    told: list[int] = []
    chosen = KeyFilter("REPORT", begins="product-")
    done = business_keys.cancel_all(rows.database, ANN, chosen, progress=told.append)
    assert (done, told) == ({"canceled": 1199, "asked": 1}, [500, 1000, 1200])
    left = {(key["code"], key["key"], key["status"]) for key in keys(rows)}
    waiting = {("", name, "pending") for name in others} | {("shop", "product-1", "pending")}
    assert left == waiting | {("", "product-0000", "running")}


@pytest.mark.parametrize("chosen", [KeyFilter("REPORT"), KeyFilter("REPORT", begins=""), KeyFilter(begins="a")])
def test_an_empty_beginning_is_refused(rows: Scenario, chosen: KeyFilter) -> None:
    with pytest.raises(InvalidInput, match="an empty beginning would be every key"):
        business_keys.cancel_all(rows.database, ANN, chosen)


# Finding


def found(rows: Scenario, limit: int = 1000, after: dict[str, Any] | None = None, **chosen: Any) -> Sequence[str]:
    return [one["key"] for one in business_keys.listed(rows.database, KeyFilter(**chosen), limit, after)]


def test_keys_are_found_by_beginning_by_part_by_time_and_code(rows: Scenario) -> None:
    for number, key in enumerate(["b-2", "a-1", "a-10", "a_1", "c%1"]):
        once(rows, key, later(rows, 10 - number))
    once(rows, "a-1", later(rows, 20), code="shop")
    assert found(rows, type="REPORT", begins="a-") == ["a-1", "a-10"]
    assert found(rows, type="REPORT", contains="1") == ["a-1", "a-10", "a_1", "c%1"]
    assert found(rows, type="REPORT", contains="_") == ["a_1"]
    assert found(rows, type="REPORT", contains="%") == ["c%1"]
    assert found(rows, type="REPORT", begins="a-", code="shop") == ["a-1"]
    assert found(rows) == ["c%1", "a_1", "a-10", "a-1", "b-2", "a-1"]
    assert found(rows, code="shop") == ["a-1"]
    assert found(rows, type="OTHER") == []
    assert found(rows, from_at=later(rows, 8), to_at=later(rows, 10)) == ["a-10", "a-1"]
    for no_type in (KeyFilter(begins="a"), KeyFilter(contains="a")):
        with pytest.raises(InvalidInput, match="say of which type"):
            business_keys.listed(rows.database, no_type, 10)


@pytest.mark.parametrize("chosen", [{}, {"type": "REPORT"}, {"type": "REPORT", "begins": "k"}])
def test_pages_have_each_key_once(rows: Scenario, chosen: dict[str, Any]) -> None:
    wanted = [Wanted(f"k{n:03}", later(rows, n // 10).isoformat()) for n in range(95)]
    business_keys.once_many(rows.database, ANN, "REPORT", wanted)
    seen: list[str] = []
    after = None
    while page := business_keys.listed(rows.database, KeyFilter(**chosen), 7, after):
        seen += [one["key"] for one in page]
        after = page[-1]
    assert seen == [one.key for one in wanted]


# What is refused


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Wanted(""), "key '': it has 0 characters; 1 to 128 are right"),
        (Wanted("x" * 129), "it has 129 characters; 1 to 128 are right"),
        (Wanted("x", code="c" * 65), "it has 65 characters; 0 to 64 are right"),
        (Wanted("x "), "no blank at its ends"),
        (Wanted("a\nb"), "no character that does not print"),
        (Wanted(42), "key 42: it is a text"),  # type: ignore[arg-type]
        (Wanted("x", "soon"), "key 'x': 'soon' is not a time"),
    ],
)
def test_a_call_that_is_wrong_says_so(rows: Scenario, wanted: Wanted, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        business_keys.once(rows.database, ANN, "REPORT", wanted)
    assert said in str(refused.value)
    assert keys(rows) == []


def test_a_param_that_does_not_fit_is_refused(rows: Scenario) -> None:
    with pytest.raises(InvalidParam, match="key 'x': param must be a JSON object"):
        once(rows, "x", param=[1])


def test_a_type_that_is_not_registered_is_refused(rows: Scenario) -> None:
    with pytest.raises(UnknownType, match="'REPRT'"):
        business_keys.once(rows.database, ANN, "REPRT", Wanted("x"))


def test_a_task_of_that_name_must_be_fit_for_it(rows: Scenario) -> None:
    rows.task("report-once", overlap_policy="skip")
    with pytest.raises(InvalidInput, match=r"'report-once' has overlap_policy 'skip'.*allow or queue"):
        once(rows, "x")
    rows.sql("UPDATE schedule_task SET overlap_policy = 'allow', type = 'OTHER'")
    with pytest.raises(InvalidInput, match="runs as task 'report-once', which is of type 'OTHER'"):
        once(rows, "x")


def test_a_time_without_an_offset_is_in_the_zone_of_the_task(rows: Scenario) -> None:
    rows.task("report-once", overlap_policy="queue", timezone="Asia/Shanghai")
    wanted = Wanted("x", "2099-01-01T08:00")
    assert business_keys.once(rows.database, ANN, "REPORT", wanted)["at"].startswith("2099-01-01T00:00")


# Two schedulers, and a call between


def test_what_another_has_changed_since_it_was_read_is_left_to_the_next_step(rows: Scenario) -> None:
    first = once(rows, "eu")
    worker, run = begin(rows, first["instance_id"])
    assert rows.report(worker, ended(run)) == set()
    duty = BusinessKeys(rows.database, Settings.load())
    read = rows.database.read

    def read_and_then_another_comes(work: Any) -> Any:
        page = read(work)
        rows.database.read = read  # type: ignore[method-assign]
        once(rows, "eu", later(rows))
        return page

    rows.database.read = read_and_then_another_comes  # type: ignore[method-assign]
    duty.step()
    [key] = keys(rows)
    assert key["status"] == "pending"
    assert len(live(rows)) == 1


def test_one_key_that_another_has_changed_holds_up_no_other(rows: Scenario) -> None:
    past = (rows.start - timedelta(hours=1)).isoformat()
    business_keys.once_many(rows.database, ANN, "REPORT", [Wanted(f"k{n}", past) for n in range(20)])
    worker, run = begin(rows, once(rows, "k7", rows.start - MINUTE)["instance_id"])
    once(rows, "k7")
    assert rows.report(worker, ended(run)) == set()
    rows.sql("DELETE FROM schedule_instance WHERE id <> :id", id=run.id)
    read = rows.database.read

    def read_and_then_another_comes(work: Any) -> Any:
        page = read(work)
        rows.database.read = read  # type: ignore[method-assign]
        rows.sql("UPDATE schedule_business_key SET revision = revision + 1 WHERE number = 'k7'")
        return page

    rows.database.read = read_and_then_another_comes  # type: ignore[method-assign]
    step(rows)
    assert [key["key"] for key in keys(rows)] == ["k7"]
    assert live(rows) == []
    step(rows)
    assert len(live(rows)) == 1


def test_pages_of_the_duty_reach_every_key_that_is_due(rows: Scenario) -> None:
    past = (rows.start - timedelta(hours=1)).isoformat()
    business_keys.once_many(rows.database, ANN, "REPORT", [Wanted(f"k{n}", past) for n in range(25)])
    rows.sql("DELETE FROM schedule_instance")
    business_keys.once_many(rows.database, ANN, "REPORT", [Wanted("later", later(rows).isoformat())])
    duty = BusinessKeys(rows.database, Settings.load(batch=10))
    rests = [duty.step() for _ in range(3)]
    assert rests[:2] == [0, 0]
    assert rests[2] > 0
    assert [key["key"] for key in keys(rows)] == ["later"]


def test_a_call_that_others_disturb_again_and_again_locks_the_key(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = mariadb_rows
    first = once(rows, "eu", later(rows))
    standing = standing_keys.standing
    with closing(connect(rows.database.url.render_as_string(hide_password=False))) as other, other.cursor() as cursor:
        cursor.execute("SET innodb_lock_wait_timeout = 1")
        disturbed: list[str] = []

        def read_and_disturb(*arguments: Any) -> Any:
            found = standing(*arguments)
            try:
                cursor.execute("UPDATE schedule_business_key SET revision = revision + 1")
                other.commit()
                disturbed.append("changed")
            except OperationalError as error:
                disturbed.append(error.args[1])
            return found

        monkeypatch.setattr(standing_keys, "standing", read_and_disturb)
        assert once(rows, "eu", later(rows, 5))["done"] == "moved"
    assert disturbed[:3] == ["changed"] * 3
    assert disturbed[3:] == ["Lock wait timeout exceeded; try restarting transaction"]
    assert rows.row(first["instance_id"]).due_at == later(rows, 5)
