"""The compose test takes minutes and a Docker engine, so it runs only where it is asked for."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.compose.project import Project

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect these tests unless `-m` or a path on the command line names them."""
    named = any(str(HERE.name) in Path(argument).parts for argument in config.invocation_params.args)
    if named or "compose" in config.option.markexpr:
        return
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    items[:] = [item for item in items if item not in ours]
    config.hook.pytest_deselected(items=ours)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the logs of all containers."""
    report = yield
    project = getattr(item, "funcargs", {}).get("project")
    if report.failed and isinstance(project, Project):
        report.sections.append(("containers", project.logs()))
    return report
