"""What a handler gets, and its log."""

import dataclasses
import logging

import pytest

from rota import NodeContext
from rota.worker_service.running.active import Active, context_of
from tests.harness.runs import run


def test_each_field_of_the_context_is_set() -> None:
    given = run()
    context = context_of(Active(given), given.nodes[0], {"rows": 1})
    assert set(vars(context)) == {field.name for field in dataclasses.fields(NodeContext)}
    assert (context.param, context.task_name, context.due_at.replace(tzinfo=None)) == (
        {"rows": 1},
        "daily",
        given.due_at,
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.attempt = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("nightly", "nightly"),
        (
            "nightly\n2026-11-19 WARNING rota: forged",
            "nightly\\n2026-11-19 WARNING rota: forged",
        ),
        ("\x1b[31mred\u2028", "\\x1b[31mred\\u2028"),
        ("50% off", "50% off"),
    ],
)
def test_what_a_handler_logs_begins_with_its_task_on_one_line(
    name: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    context: NodeContext = NodeContext(task_name=name, instance_id=7, node_type="REPORT_SEND")
    context.log.warning("sent %d rows", 3)
    context.log.warning("sent 100%")
    where = f"[{shown} #7 REPORT_SEND]"
    assert [record.getMessage() for record in caplog.records] == [f"{where} sent 3 rows", f"{where} sent 100%"]
    assert {(vars(record)["task"], record.filename, record.levelno) for record in caplog.records} == {
        (name, "test_context.py", logging.WARNING)
    }
