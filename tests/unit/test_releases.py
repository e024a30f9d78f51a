"""Versions of Rota are compared by their numbers."""

import pytest

from rota import __version__
from rota.shared.domain.releases import is_older, own_version


@pytest.mark.parametrize(
    ("one", "other"),
    [("0.1.0", "0.2.0"), ("0.9.1", "0.10"), ("0.2", "0.2.1"), ("9.0", "10.0"), ("", "0.1"), ("0", "1")],
)
def test_an_older_version_is_known(one: str, other: str) -> None:
    assert is_older(one, other)
    assert not is_older(other, one)


@pytest.mark.parametrize(("one", "other"), [("0.2", "0.2.0"), ("0.2.0rc1", "0.2.0"), ("0.2.0.dev3", "0.2"), ("x", "")])
def test_versions_with_the_same_numbers_are_none_older_than_the_other(one: str, other: str) -> None:
    assert not is_older(one, other)
    assert not is_older(other, one)


def test_the_version_of_this_rota_is_the_installed_one() -> None:
    assert own_version() == __version__
