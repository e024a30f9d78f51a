"""However large the params of one-off work are, its requests and keys are read and written some megabytes at a time."""

import json
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from rota.scheduler_service.duties.business_keys import BusinessKeys
from rota.scheduler_service.duties.requests import Requests
from rota.shared.control import business_keys, requests
from rota.shared.control.actor import Actor
from rota.shared.control.business_keys import Wanted
from rota.shared.database import callers
from rota.shared.domain.business_keys import KeyFilter
from rota.shared.settings import Settings
from tests.harness.memory import peak
from tests.harness.scenario import Scenario, ended
from tests.harness.statements import executed

ANN = Actor("ann", "code")
MB = 1_000_000
BOUND = 60 * MB
PARAM = {"rows": [[n, f"row {n}"] for n in range(15_000)]}
LARGE = 40
"""So many runs have it."""

INSERTS_RUNS = "INSERT INTO schedule_instance "


def ask(rows: Scenario, wanted: Iterable[Wanted]) -> None:
    """Ask for runs as a program does in its own transaction."""
    for one in wanted:
        [insert], _ = requests.once(rows.database, ANN, "REPORT", one)
        rows.database.write(partial(callers.execute, insert=insert))


def params_of_runs(rows: Scenario) -> list[Any]:
    """The params of what waits or runs, by the keys."""
    found = rows.sql(
        "SELECT i.param FROM schedule_business_key k JOIN schedule_instance i ON i.id = k.schedule_instance_id"
        " WHERE i.status IN ('pending', 'running') ORDER BY k.number"
    )
    return [None if param is None else json.loads(param) for (param,) in found]


def kept_behind_runs(rows: Scenario) -> list[Wanted]:
    """Keys under which something runs, and a call with a large param is kept as the next run; returns the calls."""
    past = (rows.start - timedelta(hours=1)).isoformat()
    business_keys.once_many(rows.database, ANN, "REPORT", [Wanted(f"k{n:03}", past) for n in range(LARGE)])
    rows.sql("UPDATE schedule_instance SET status = 'running', attempt = 1")
    wanted = [Wanted(f"k{n:03}", past, {**PARAM, "n": n}) for n in range(LARGE)]
    done = business_keys.once_many(rows.database, ANN, "REPORT", wanted)
    assert done["kept"] == LARGE
    return wanted


# Requests


def test_requests_with_large_params_are_done_with_little_memory(rows: Scenario) -> None:
    ask(rows, [Wanted(f"k{n:03}", param={**PARAM, "n": n}) for n in range(LARGE)])
    duty = Requests(rows.database, Settings())
    most = peak(duty.step)
    print(f"{most / MB:.0f} MB")
    assert most <= BOUND
    assert params_of_runs(rows) == [{**PARAM, "n": n} for n in range(LARGE)]
    assert rows.sql("SELECT COUNT(*) FROM schedule_request")[0][0] == 0


def test_requests_with_small_params_are_done_in_one_transaction(rows: Scenario) -> None:
    ask(rows, [Wanted(f"k{n:03}", param={"n": n, "text": "x" * 3_000}) for n in range(100)])
    with executed(rows.database.engine) as statements:
        Requests(rows.database, Settings()).step()
    assert len([text for text in statements if INSERTS_RUNS in text]) == 1
    assert len([text for text in statements if "FROM schedule_request" in text and "param" in text]) == 1
    assert [param["n"] for param in params_of_runs(rows)] == list(range(100))


def test_a_large_request_that_another_scheduler_has_done_since_it_was_read_is_done_once(rows: Scenario) -> None:
    ask(rows, [Wanted("a", param=PARAM), Wanted("b", param={"n": 1})])
    read = rows.database.read

    def read_and_then_another_comes(work: Any) -> Any:
        found = read(work)
        rows.database.read = read  # type: ignore[method-assign]
        Requests(rows.database, Settings()).step()
        return found

    duty = Requests(rows.database, Settings())
    rows.database.read = read_and_then_another_comes  # type: ignore[method-assign]
    duty.step()
    assert params_of_runs(rows) == [PARAM, {"n": 1}]
    assert rows.sql("SELECT COUNT(*) FROM schedule_request")[0][0] == 0
    assert rows.sql("SELECT COUNT(*) FROM schedule_instance")[0][0] == 2


# Calls for many keys


@pytest.mark.parametrize("character", ["x", "数", '"', "\\"])
def test_a_thousand_keys_with_params_of_17_kb_are_written_in_several_packets(rows: Scenario, character: str) -> None:
    """JSON and SQL write some characters as several."""
    size = len(json.dumps(character, ensure_ascii=False).encode()) - 2
    text = character * (17_000 // size)
    wanted = [Wanted(f"k{n:03}", param={"n": n, "text": text}) for n in range(1000)]
    told: list[int] = []
    done = business_keys.once_many(rows.database, ANN, "REPORT", wanted, progress=told.append)
    assert done == {"type": "REPORT", "keys": 1000, "added": 1000, "moved": 0, "kept": 0}
    assert 4 <= len(told) <= 20
    assert told[-1] == 1000
    assert params_of_runs(rows) == [{"n": n, "text": text} for n in range(1000)]


# What is kept as the next run


def test_a_large_param_is_read_when_its_run_begins_and_a_few_at_a_time(rows: Scenario) -> None:
    wanted = kept_behind_runs(rows)
    duty = BusinessKeys(rows.database, Settings())
    while_they_run = peak(duty.step)
    assert params_of_runs(rows) == [None] * LARGE
    rows.sql("UPDATE schedule_instance SET status = 'succeed'")
    when_they_have_ended = peak(duty.step)
    print(f"{while_they_run / MB:.0f} MB, then {when_they_have_ended / MB:.0f} MB")
    assert while_they_run <= 3 * MB
    assert when_they_have_ended <= 30 * MB
    assert params_of_runs(rows) == [one.param for one in wanted]


def test_a_cancel_and_another_call_read_no_param_that_is_kept(rows: Scenario) -> None:
    kept_behind_runs(rows)
    again = [Wanted(f"k{n:03}") for n in range(LARGE // 2)]
    another_call = peak(lambda: business_keys.once_many(rows.database, ANN, "REPORT", again))
    chosen = KeyFilter("REPORT", code="", begins="k")
    cancel = peak(lambda: business_keys.cancel_all(rows.database, ANN, chosen))
    print(f"{another_call / MB:.0f} MB, {cancel / MB:.0f} MB")
    assert max(another_call, cancel) <= 3 * MB


@pytest.mark.parametrize("param", [None, {"n": 1}, PARAM], ids=["none", "small", "large"])
def test_what_is_kept_stays_so_while_what_a_handler_has_asked_for_runs(rows: Scenario, param: object) -> None:
    wanted = Wanted("eu", param=param)
    first = business_keys.once(rows.database, ANN, "REPORT", Wanted("eu"))["instance_id"]
    worker = rows.worker()
    rows.give(worker, first)
    [run] = rows.claim(worker, first).runs
    assert business_keys.once(rows.database, ANN, "REPORT", wanted)["done"] == "kept"
    report = ended(run)
    assert report.instance is not None
    report.instance.again = rows.start
    assert rows.report(worker, report) == set()
    [(follower,)] = rows.sql("SELECT id FROM schedule_instance WHERE follows_id = :id", id=first)
    rows.give(worker, follower)
    [run] = rows.claim(worker, follower).runs
    duty = BusinessKeys(rows.database, Settings())
    duty.step()
    [key] = business_keys.listed(rows.database, KeyFilter(), 10)
    assert (key["instance_id"], key["next_at"] is None) == (follower, False)
    assert rows.report(worker, ended(run)) == set()
    duty.step()
    assert params_of_runs(rows) == [param]
