"""``rota cron`` and ``rota config``: what needs no database."""

import json
import re
import shlex

import pytest

from tests.harness.command_line import invoke
from tests.harness.processes import ROOT


def test_json_has_exactly_the_documented_form() -> None:
    result = invoke(
        "cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--from", "2027-03-27T12:00", "--count", "2", "--json"
    )
    assert json.loads(result.stdout) == {
        "expression": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "description": "every day at 02:30",
        "fires": [
            {"utc": "2027-03-28T01:00:00Z", "local": "2027-03-28T03:00:00+02:00"},
            {"utc": "2027-03-29T00:30:00Z", "local": "2027-03-29T02:30:00+02:00"},
        ],
    }


def test_from_is_not_itself_a_fire() -> None:
    result = invoke("cron", "0 12 * * *", "--from", "2026-11-21T12:00", "--count", "1", "--json")
    assert json.loads(result.stdout)["fires"][0]["utc"] == "2026-11-22T12:00:00Z"


def test_without_from_it_starts_now() -> None:
    fires = json.loads(invoke("cron", "* * * * * *", "--seconds", "--count", "3", "--json").stdout)["fires"]
    assert len({fire["utc"] for fire in fires}) == 3


def test_people_read_it_in_words_with_both_times() -> None:
    shown = invoke("cron", "30 16 * * mon-fri", "--timezone", "Asia/Shanghai", "--from", "2026-11-20T17:00").stdout
    lines = shown.splitlines()
    assert lines[0] == "fires at 16:30 on Monday through Friday (Asia/Shanghai)"
    assert lines[1].split() == ["local", "(Asia/Shanghai)", "UTC"]
    assert lines[2].startswith("2026-11-23 16:30:00+08:00  2026-11-23 08:30:00Z")
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["0 15 10 * * *"], "it has six fields and seconds are not declared"),
        (["61 * * * *"], "the minute field has 61"),
        (["* * * * *", "--timezone", "Europe/Berln"], "There is no time zone 'Europe/Berln'; use a name"),
        (["* * * * *", "--from", "noon"], "'noon' is not a time; write it as 2026-11-19T02:00"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: list[str], sentence: str) -> None:
    result = invoke("cron", *arguments, "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert sentence in result.stderr


def settings(*arguments: str, **environment: str) -> dict[str, dict[str, object]]:
    shown = json.loads(invoke("config", *arguments, "--json", **environment).stdout)
    return {setting["name"]: setting for setting in shown["settings"]}


def test_config_tells_where_each_value_came_from() -> None:
    shown = settings("--capacity", "7", "--label", "gpu=a100", ROTA_CAPACITY="5", rota_batch="20")
    assert (shown["ROTA_CAPACITY"]["value"], shown["ROTA_CAPACITY"]["source"]) == (7, "option")
    assert (shown["ROTA_LABELS"]["value"], shown["ROTA_LABELS"]["source"]) == ({"gpu": "a100"}, "option")
    assert (shown["ROTA_BATCH"]["value"], shown["ROTA_BATCH"]["source"]) == (20, "environment")
    assert (shown["ROTA_PREFETCH"]["value"], shown["ROTA_PREFETCH"]["source"]) == (10_000, "default")
    assert all(setting["description"] for setting in shown.values())


@pytest.mark.parametrize("url", ["mysql://rota:geheim@db/rota", "mysql://rota@db/rota?password=geheim"])
def test_config_shows_no_password(url: str) -> None:
    for flags in ([], ["--json"]):
        result = invoke("config", *flags, url=url)
        assert "geheim" not in result.output
        assert "***" in result.stdout
    assert invoke("-d", url, "config").stdout.count("geheim") == 0


@pytest.mark.parametrize("arguments", [("config",), ("task", "list"), ("doctor",), ("migrate",), ("up",)])
def test_a_password_that_splits_the_url_is_not_shown(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments, url="mysql://rota:gehe@im@127.0.0.1:1/rota")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ROTA_DATABASE_URL: has an @ in a place where none may be; percent-encode")
    assert "im@" not in result.stderr


@pytest.mark.parametrize("arguments", [("task", "list"), ("doctor", "--json"), ("migrate",)])
def test_an_error_shows_no_password_of_an_option(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments, url="mysql://rota@127.0.0.1:1/rota?passwd=geheim")
    assert result.exit_code == 3
    assert "mysql://rota@127.0.0.1:1/rota?passwd=***" in result.output
    assert "geheim" not in result.output


def test_config_reports_every_fault_at_once() -> None:
    result = invoke("config", url="oracle://db/rota", ROTA_BATCH="0", ROTA_CAPACITY="many", ROTA_LIVENESS_SECONDS="1")
    assert (result.exit_code, result.stdout) == (1, "")
    faults = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert [fault.split()[1].rstrip(":") for fault in faults] == [
        "ROTA_DATABASE_URL",
        "ROTA_BATCH",
        "ROTA_CAPACITY",
        "ROTA_LIVENESS_SECONDS",
    ]


def test_a_fault_of_an_option_names_the_option_and_one_of_a_variable_the_variable() -> None:
    result = invoke(
        "config", "-d", "oracle://db/rota", "--capacity", "0", ROTA_BATCH="0", ROTA_CAPACITY="5", ROTA_LABELS="{}"
    )  # fmt: skip
    assert (result.exit_code, result.stdout) == (1, "")
    said = [line.removeprefix("error: ") for line in result.stderr.splitlines()]
    assert said[0].startswith("--database-url: names the database 'oracle'")
    assert said[1:] == [
        "ROTA_BATCH '0': Input should be greater than or equal to 1",
        "--capacity 0: Input should be greater than or equal to 1",
    ]
    unfit = invoke("config", "--heartbeat-seconds", "8")
    assert unfit.stderr.startswith("error: --heartbeat-seconds 8 must be less than half of liveness_seconds 15")


def test_a_variable_that_is_no_json_is_named_although_its_option_is_given() -> None:
    result = invoke("config", "--label", "gpu=a100", ROTA_LABELS="gpu")
    assert result.stderr.startswith("error: ROTA_LABELS is not JSON")


def test_config_says_in_a_sentence_that_labels_are_not_json() -> None:
    result = invoke("config", ROTA_LABELS="gpu")
    assert (result.exit_code, result.stderr) == (1, 'error: ROTA_LABELS is not JSON; write it as {"gpu": "a100"}\n')


def test_config_points_out_a_variable_that_is_no_setting() -> None:
    result = invoke("config", "--json", ROTA_CAPACTY="5")
    assert "ROTA_CAPACTY is set, but there is no such setting; did you mean ROTA_CAPACITY?" in result.stderr
    assert json.loads(result.stdout)["unknown"]["ROTA_CAPACTY"] == "ROTA_CAPACITY"


SHOWN = re.findall(
    r"^    \$ rota (cron .+)\n    (.+)$", (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.mark.parametrize(("typed", "shown"), SHOWN)
def test_an_expression_of_another_scheduler_is_answered_as_its_page_says(typed: str, shown: str) -> None:
    assert invoke(*shlex.split(typed)).output.splitlines()[0] == shown


def test_the_page_shows_an_expression_that_is_refused_and_one_that_is_not() -> None:
    assert [shown.startswith("error: ") for _, shown in SHOWN] == [True, False]
