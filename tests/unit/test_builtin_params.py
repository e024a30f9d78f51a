"""The params of the built-in nodes: what is refused when a task is saved, and when it runs."""

from itertools import product
from typing import Any

import pytest
from pydantic import ValidationError

from rota import Rota
from rota.shared.domain.errors import InvalidParam, NameTaken
from rota.shared.domain.nodes import check_schema
from rota.shared.settings import Settings
from rota.worker_service import builtin
from rota.worker_service.builtin.http_param import HttpRequestParam
from rota.worker_service.builtin.shell_param import ShellCommandParam


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"url": "ftp://host/"},
        {"url": "file:///etc/passwd"},
        {"url": "http://"},
        {"url": "http:///path"},
        {"url": "http://host/", "verify": False},
        {"url": "http://host/", "method": "TRACE"},
        {"url": "http://host/", "timeout_seconds": 3601},
        {"url": "http://host/", "max_response_bytes": -1},
        {"url": "http://host/", "expect_status": []},
        {"url": "http://host/", "expect_status": "2xx"},
        {"url": "http://host/", "expect_status": [99]},
    ],
)
def test_a_bad_request_is_refused_when_it_is_saved_and_when_it_runs(bad: dict[str, Any]) -> None:
    schemas = {declaration.type: declaration.param_schema for declaration in builtin.DECLARATIONS}
    with pytest.raises(InvalidParam):
        check_schema(schemas["HTTP_REQUEST"], bad, "param")
    with pytest.raises(ValidationError):
        HttpRequestParam.model_validate(bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"json": None, "body": "x"},
        {"expect_status": "299-200"},
        {"headers": {"Host": "elsewhere"}},
        {"headers": {"content-length": "1"}},
        {"headers": {"X Y": "1"}},
        {"headers": {"X": "s3cret\r\nY: 1"}},
        {"headers": {"X": "s3cret "}},
        {"headers": {"X": "s3crét"}},
    ],
)
def test_what_a_request_cannot_carry_is_refused_and_not_shown(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        HttpRequestParam.model_validate({"url": "http://host/", **bad})
    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"command": ""},
        {"command": []},
        {"command": "true", "shell": "bash"},
        {"command": "true", "timeout_seconds": 0},
        {"command": "true", "timeout_seconds": 86_401},
        {"command": "true", "max_output_bytes": 4_194_305},
        {"command": "true", "expect_exit": []},
        {"command": "true", "expect_exit": [256]},
    ],
)
def test_a_bad_command_is_refused_when_it_is_saved_and_when_it_runs(bad: dict[str, Any]) -> None:
    schemas = {declaration.type: declaration.param_schema for declaration in builtin.DECLARATIONS}
    with pytest.raises(InvalidParam):
        check_schema(schemas["SHELL_COMMAND"], bad, "param")
    with pytest.raises(ValidationError):
        ShellCommandParam.model_validate(bad)


@pytest.mark.parametrize("bad", [{"command": "a\0b"}, {"command": "a", "env": {"A=B": "x"}}])
def test_what_no_command_can_be_given_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ShellCommandParam.model_validate(bad)


def test_it_is_runnable_only_where_it_is_allowed_and_known_everywhere() -> None:
    app = Rota()
    assert Settings().allow_http
    assert not Settings().allow_shell
    for http, shell in product((False, True), repeat=2):
        allowed = Settings(allow_http=http, allow_shell=shell)
        wanted = ["HTTP_REQUEST"] * http + ["SHELL_COMMAND"] * shell
        assert [node.type for node in builtin.nodes(allowed, app)] == wanted
    assert [declaration.type for declaration in builtin.DECLARATIONS] == ["HTTP_REQUEST", "SHELL_COMMAND"]


def test_an_app_replaces_a_built_in_type_only_if_it_says_so() -> None:
    app = Rota()
    for declare in (
        lambda: app.task("HTTP_REQUEST"),
        lambda: app.task_type("HTTP_REQUEST"),
        lambda: app.task_type("HTTP").node("REQUEST"),
        lambda: app.task_type("SHELL").node("COMMAND"),
    ):
        with pytest.raises(NameTaken, match=r"^(HTTP_REQUEST|SHELL_COMMAND) comes with Rota; .* replace=True"):
            declare()


def test_where_an_app_replaces_a_built_in_type_that_has_the_nodes_of_the_app_alone() -> None:
    everything = Settings(allow_shell=True)
    one = Rota()
    one.task("HTTP_REQUEST", replace=True)(lambda ctx: None)
    assert [node.type for node in builtin.nodes(everything, one)] == ["SHELL_COMMAND"]
    many = Rota()
    many.task_type("HTTP_REQUEST", replace=True).node("SIGN")(lambda ctx: None)
    assert [node.type for node in builtin.nodes(everything, many)] == ["SHELL_COMMAND"]
    named = Rota()
    named.task_type("SHELL", replace=True).node("COMMAND")(lambda ctx: None)
    assert [node.type for node in builtin.nodes(everything, named)] == ["HTTP_REQUEST"]
