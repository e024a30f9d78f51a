"""Which nodes a task runs, and what its param may be."""

from typing import Any

import pytest

from rota.shared.domain.errors import InvalidParam, UnknownType
from rota.shared.domain.node_order import waits_for
from rota.shared.domain.nodes import Catalog, NodeList, NodeType, check_schema

SCHEMA = {
    "type": "object",
    "properties": {"region": {"type": "string"}, "rows": {"type": "integer"}},
    "required": ["region"],
}
SEND = NodeType(1, "REPORT_SEND", "REPORT", 2, param_schema=SCHEMA)
EXTRACT = NodeType(2, "REPORT_EXTRACT", "REPORT", 1, param_schema=SCHEMA)
CLEANUP = NodeType(3, "CLEANUP", "CLEANUP")
REQUEST = NodeType(4, "HTTP_REQUEST", "HTTP_REQUEST", param_schema={"required": ["url"]})
CATALOG = Catalog(
    [SEND, EXTRACT, CLEANUP, REQUEST],
    [
        NodeList("REPORT", "1", [EXTRACT, SEND]),
        NodeList("CLEANUP", "1", [CLEANUP]),
        NodeList("HTTP_REQUEST", "1", [REQUEST]),
    ],
)


def listed(*nodes: Any) -> list[tuple[str, int, Any]]:
    return [(node.type, node.sequence, node.param) for node in CATALOG.listed({"nodes": list(nodes)}) or ()]


def test_a_param_that_lists_no_nodes_leaves_them_to_the_version_of_the_task_type() -> None:
    assert CATALOG.listed({"region": "eu"}) is None
    assert CATALOG.listed(None) is None
    [only] = CATALOG.lists_of("REPORT")
    assert [node.type for node in only.nodes] == ["REPORT_EXTRACT", "REPORT_SEND"]


def test_the_nodes_of_a_version_are_planned_in_its_order() -> None:
    planned = CATALOG.planned(["REPORT_SEND", "REPORT_EXTRACT"])
    assert planned is not None
    assert [(node.type_id, node.type, node.sequence) for node in planned] == [
        (1, "REPORT_SEND", 1),
        (2, "REPORT_EXTRACT", 2),
    ]
    assert CATALOG.planned(["REPORT_SEND", "REPORT_LATER"]) is None


def test_a_param_may_list_nodes_of_any_type_in_any_order_and_twice() -> None:
    assert listed("CLEANUP", {"type": "HTTP_REQUEST", "param": {"url": "x"}}, "CLEANUP") == [
        ("CLEANUP", 1, None),
        ("HTTP_REQUEST", 2, {"url": "x"}),
        ("CLEANUP", 3, None),
    ]


def test_a_listed_node_may_say_for_which_nodes_before_it_it_waits() -> None:
    first = {"type": "REPORT_EXTRACT", "after": []}
    assert listed(first, {"type": "CLEANUP", "after": "REPORT_EXTRACT"}) == [
        ("REPORT_EXTRACT", 1, None),
        ("CLEANUP", 2, None),
    ]


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        (
            ["REPORT_SEND"],
            "REPORT_EXTRACT: after names 'REPORT_SEND', which is not declared before it; declared before it: CLEANUP.",
        ),
        (["REPORT_EXTRACT"], "after names 'REPORT_EXTRACT', which is not declared before it"),
        (["CLEAN"], "not declared before it (did you mean CLEANUP?)"),
        ([], ""),
        (7, "REPORT_EXTRACT: after 7 must be a list of names of nodes before it; [] is for none"),
        ([7], "REPORT_EXTRACT: after [7] must be a list of names"),
    ],
)
def test_a_listed_node_that_waits_for_none_before_it_is_refused(after: Any, fault: str) -> None:
    nodes = [
        "CLEANUP",
        {"type": "REPORT_EXTRACT", "after": after},
        {"type": "REPORT_SEND", "after": ["REPORT_EXTRACT"]},
    ]
    if not fault:
        assert len(listed(*nodes)) == 3
        return
    with pytest.raises(InvalidParam) as refused:
        listed(*nodes)
    assert fault in str(refused.value)
    assert str(refused.value).endswith(("so that there is no cycle", "[] is for none"))


def test_a_listed_node_that_runs_always_cannot_say_for_which_it_waits() -> None:
    catalog = Catalog([CLEANUP, NodeType(5, "NOTIFY", "NOTIFY", defaults={"always": True})])
    with pytest.raises(InvalidParam, match='"nodes" in param: NOTIFY: a node that runs always waits for all'):
        catalog.listed({"nodes": ["CLEANUP", {"type": "NOTIFY", "after": []}]})


def test_each_node_waits_for_those_that_it_names_and_theirs_and_else_for_all_before_it() -> None:
    types = ["EU", "US", "SEND", "CLEAN", "MERGE", "LOG", "END"]
    after = [(), (), ("EU",), None, ("SEND",), (), None]
    assert [sorted(places) for places in waits_for(types, after, ["CLEAN"])] == [
        [], [], [0], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5],
    ]  # fmt: skip


def test_listed_nodes_need_no_registered_task_type() -> None:
    CATALOG.check("MINE", {"nodes": ["CLEANUP"]})


@pytest.mark.parametrize(
    ("task_type", "param", "said"),
    [
        ("NIGHT", None, "no task type 'NIGHT' is registered; there are: CLEANUP, HTTP_REQUEST, REPORT; a worker"),
        ("REPROT", None, r"no task type 'REPROT' is registered \(did you mean REPORT\?\); there are: "),
        ("REPORT", {"nodes": ["CLEANU"]}, r"no registered node type \(did you mean CLEANUP\?\); there are: "),
        ("REPORT", {"nodes": []}, "not empty"),
        ("REPORT", {"nodes": "CLEANUP"}, "must be a list"),
        ("REPORT", {"nodes": ["NIGHT"]}, "names 'NIGHT'"),
        ("REPORT", {"nodes": [{"param": {}}]}, "names None"),
        ("REPORT", {"nodes": [["CLEANUP"]]}, "no registered node type"),
        ("REPORT", {"nodes": [{"type": ["CLEANUP"]}]}, "no registered node type"),
    ],
)
def test_nodes_that_are_not_there_are_refused_with_those_that_are(task_type: str, param: Any, said: str) -> None:
    with pytest.raises(InvalidParam, match=said):
        CATALOG.check(task_type, param)


@pytest.mark.parametrize(
    ("param", "may_come"),
    [(None, True), ({"nodes": ["LATER"]}, True), ({"nodes": [{}]}, False), ({"nodes": "CLEANUP"}, False)],
)
def test_a_type_that_may_yet_be_registered_is_told_from_a_list_that_is_wrong(param: Any, may_come: bool) -> None:
    with pytest.raises(InvalidParam) as refused:
        CATALOG.check("LATER", param)
    assert isinstance(refused.value, UnknownType) is may_come


def test_with_no_worker_yet_the_refusal_says_to_start_one() -> None:
    with pytest.raises(InvalidParam, match="none yet: start a worker"):
        Catalog([]).check("REPORT", None)


@pytest.mark.parametrize("param", [{"region": "eu"}, {"region": "eu", "rows": 3}])
def test_a_param_that_fits_its_schema_is_taken(param: Any) -> None:
    CATALOG.check("REPORT", param)


@pytest.mark.parametrize(
    ("param", "said"),
    [
        (None, "param of REPORT_EXTRACT: 'region' is a required property"),
        ({}, "param of REPORT_EXTRACT: 'region' is a required property"),
        ({"region": 7, "rows": "many"}, "region: 7 is not of type 'string'; rows: 'many' is not"),
        (["eu"], "must be a JSON object"),
    ],
)
def test_a_param_that_does_not_fit_is_refused_with_every_fault_once(param: Any, said: str) -> None:
    with pytest.raises(InvalidParam) as refused:
        CATALOG.check("REPORT", param)
    assert str(refused.value).count(said) == 1


def test_each_listed_node_is_checked_with_its_own_param_and_all_faults_are_told() -> None:
    nodes = [{"type": "HTTP_REQUEST", "param": {}}, {"type": "REPORT_SEND", "param": {"region": 1}}]
    with pytest.raises(InvalidParam) as refused:
        CATALOG.check("REPORT", {"nodes": nodes})
    assert "param of HTTP_REQUEST" in str(refused.value)
    assert "param of REPORT_SEND" in str(refused.value)


def test_many_faults_are_told_in_short() -> None:
    schema = {"properties": {name: {"type": "string"} for name in "abcde"}}
    with pytest.raises(InvalidParam, match=r"a: 1 .*; b: .*; c: .* \(and 2 more\)"):
        check_schema(schema, dict.fromkeys("abcde", 1), "param")


OTHER_SCHEMA = {"type": "object", "required": ["country"]}
TWO_VERSIONS = Catalog(
    [SEND],
    [
        NodeList("REPORT", "2", [NodeType(1, "REPORT_SEND", "REPORT", param_schema=OTHER_SCHEMA)]),
        NodeList("REPORT", "1", [SEND]),
    ],
)


@pytest.mark.parametrize("param", [{"region": "eu"}, {"country": "de"}])
def test_while_two_versions_count_a_param_must_fit_one_of_them(param: Any) -> None:
    TWO_VERSIONS.check("REPORT", param)


def test_a_param_that_fits_no_version_is_refused_with_the_faults_by_the_best() -> None:
    with pytest.raises(InvalidParam) as refused:
        TWO_VERSIONS.check("REPORT", {})
    assert "'country' is a required property" in str(refused.value)
    assert "region" not in str(refused.value)


def test_a_listed_node_is_checked_by_the_best_version_that_has_it() -> None:
    with pytest.raises(InvalidParam, match="country"):
        TWO_VERSIONS.check("REPORT", {"nodes": ["REPORT_SEND"], "region": "eu"})
