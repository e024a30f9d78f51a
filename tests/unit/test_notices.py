"""Saying a thing once."""

import logging

import pytest

from rota.scheduler_service.notices import Notices


def test_a_complaint_is_logged_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    notices = Notices("assigner")
    for complaints in (["b", "a"], ["a"], ["a"], [], ["a"]):
        notices.complain(complaints)
        notices.complain(complaints)
        notices.looked_at_all()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "assigner: a"),
        ("WARNING", "assigner: b"),
        ("INFO", "assigner: over: b"),
        ("INFO", "assigner: over: a"),
        ("WARNING", "assigner: a"),
    ]


def test_a_complaint_is_logged_at_once_and_is_over_when_all_was_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    notices = Notices("assigner")

    def said() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    notices.complain(["a"])
    assert said() == ["assigner: a"]
    notices.looked_at_all()
    notices.complain(["b"])
    assert said() == ["assigner: b"]
    notices.complain(["a"])
    notices.looked_at_all()
    assert said() == []
    notices.looked_at_all()
    assert said() == ["assigner: over: a", "assigner: over: b"]
