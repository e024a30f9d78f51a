"""Rota as an app of a Django project: the cases of tests/harness/django_cases.py, in the project of examples/."""

import re

import pytest

from tests.harness.django_shop import manage


@pytest.mark.parametrize("apps", ["tests.harness.django_cases", "promotions"])
def test_the_cases_of_a_django_project_pass(migrated_url: str, apps: str) -> None:
    done = manage(migrated_url, "test", apps, "--noinput")
    assert done.returncode == 0, done.stderr[-6000:]
    ran = re.search(r"Ran (\d+) tests?", done.stderr)
    assert ran is not None
    assert int(ran[1]) >= 2
