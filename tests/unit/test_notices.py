"""Saying a thing once."""

import logging

import pytest

from scheduler_service.notices import Notices


def test_a_complaint_is_logged_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    notices = Notices("assigner")
    for complaints in (["b", "a"], ["a"], ["a"], [], ["a"]):
        notices.now(complaints)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "assigner: a"),
        ("WARNING", "assigner: b"),
        ("INFO", "assigner: over: b"),
        ("INFO", "assigner: over: a"),
        ("WARNING", "assigner: a"),
    ]
