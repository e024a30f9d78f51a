"""``rota worker --discover``: a worker runs all jobs of a package, those in processes of their own, too."""

from collections.abc import Callable
from pathlib import Path

from rota import Client
from tests.harness.processes import RotaProcess

JOBS = {
    "cleanup": """
from rota import Job, NodeContext


class CleanupTemp(Job):
    cron = "* * * * * *"
    seconds = True

    async def run(self, ctx: NodeContext) -> dict[str, int]:
        return {"removed": 17}
""",
    "report": """
from pydantic import BaseModel

from rota import Job, NodeContext


class ReportParam(BaseModel):
    region: str


class Report(Job[ReportParam]):
    param = ReportParam
    execution = "process"

    def run(self, ctx: NodeContext[ReportParam]) -> dict[str, str]:
        return {"region": ctx.param.region}
""",
}


def test_a_worker_runs_all_jobs_of_a_package(
    migrated_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]
) -> None:
    (tmp_path / "acme" / "jobs").mkdir(parents=True)
    for name, source in JOBS.items():
        (tmp_path / "acme" / "jobs" / f"{name}.py").write_text(source)
    for folder in ("acme", "acme/jobs"):
        (tmp_path / folder / "__init__.py").touch()
    rota("scheduler", database_url=migrated_url)
    worker = rota("worker", "--discover", "acme.jobs", database_url=migrated_url, cwd=tmp_path)
    worker.wait_for_log("started as")
    with Client(migrated_url) as client:
        client.tasks.add("eu", "REPORT", param={"region": "eu"})
        ended = client.instances.wait(client.tasks.run("eu")["id"], timeout=60)
        assert (ended["status"], ended["execution_result"]) == ("succeed", {"region": "eu"})
        assert client.tasks.show("cleanup-temp")["cron"] == "* * * * * *"


def test_the_package_is_given_once(rota: Callable[..., RotaProcess]) -> None:
    for command in ("worker", "up"):
        process = rota(command, "--discover", "acme.jobs", "--app", "jobs:app", database_url="sqlite:///none.db")
        assert process.wait_exit(30) == 2
        assert "--app and --discover both say what the worker runs; give one of them" in process.log
