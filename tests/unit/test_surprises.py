"""Errors that were not expected are logged once each, and only so many are remembered."""

import logging

import pytest

from rota.shared.surprises import KEPT, Surprises


def test_an_error_that_comes_again_is_logged_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    surprises = Surprises("claim")
    for _ in range(3):
        surprises.say("instance 7", ValueError("no"))
    assert len(caplog.records) == 1
    surprises.over("instance 7")
    surprises.say("instance 7", ValueError("no"))
    assert len(caplog.records) == 2


def test_only_the_last_errors_are_remembered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    surprises = Surprises("claim")
    for instance in range(KEPT + 5):
        surprises.say(f"instance {instance}", ValueError("no"))
    assert len(surprises._said) == KEPT
    assert "instance 4" not in surprises._said
