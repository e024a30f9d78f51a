"""The command line's variants run on SQLite; those marked ``every_database`` on each kind."""

import pytest

from tests.harness.databases import DATABASES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the databases of a test."""
    if "migrated_url" in metafunc.fixturenames:
        on_each = metafunc.definition.get_closest_marker("every_database") is not None
        metafunc.parametrize("migrated_url", DATABASES if on_each else DATABASES[:1], indirect=True)


@pytest.fixture(autouse=True)
def without_the_tests_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command warns of a variable that is no setting."""
    monkeypatch.delenv("ROTA_TEST_MARIADB", raising=False)


@pytest.fixture
def migrated_url(request: pytest.FixtureRequest) -> str:
    """The URL of a database with Rota's tables."""
    url: str = request.getfixturevalue(f"migrated_{request.param}_url")
    return url
