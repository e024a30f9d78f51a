"""docker-compose.yml for real: the image is built, three workers run, one is killed, the others do its work."""

import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.compose.base_images import BaseImages, base_images
from tests.compose.engine import docker, run, running_engine, stop_engine_at_exit
from tests.compose.project import Project
from tests.harness.processes import ROOT, wait_until

pytestmark = pytest.mark.compose

WORKERS = 3
IMAGE = "rota-compose-test-rota"
BUILD_SECONDS = 600
HEALTHY_SECONDS = 120
RUN_SECONDS = 60
RECOVERY_SECONDS = 120  # the liveness limit, the scheduler's pass, and the work once more
OWN_APP = Path(__file__).parent / "app"

RAN_ON = """
    SELECT DISTINCT node.host FROM schedule_instance AS instance
    JOIN schedule_worker_node AS node ON node.id = instance.schedule_worker_node_id
    WHERE instance.status = 'succeed'"""


@pytest.fixture(scope="module")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compose") / "empty.env"
    path.touch()
    return path


@pytest.fixture(scope="module")
def bases(engine: bool) -> BaseImages:
    return base_images()


@pytest.fixture(scope="module")
def engine() -> Iterator[bool]:
    with running_engine() as started_here:
        yield started_here


@pytest.fixture(scope="module")
def image(bases: BaseImages) -> str:
    """Rota's image, built from the working tree; it takes the place of the one before."""
    before = docker("images", "--quiet", IMAGE)
    argument = f"--build-arg=PYTHON_IMAGE={bases.python}"
    docker("build", *bases.build_options, argument, "--tag", IMAGE, str(ROOT), seconds=BUILD_SECONDS)
    if before and before != docker("images", "--quiet", IMAGE):
        run("docker", "image", "rm", before, check=False)
    return IMAGE


@pytest.fixture(scope="module")
def project(engine: bool, bases: BaseImages, image: str, empty_file: Path) -> Iterator[Project]:
    """`docker compose up --scale worker=3` of a fresh clone; nothing of it is left in the end."""
    environment = {
        "ROTA_DB_PASSWORD": secrets.token_urlsafe(24),
        "ROTA_IMAGE": image,
        "MARIADB_IMAGE": bases.mariadb,
    }
    project = Project(environment, empty_file)
    project.remove_at_exit()
    if engine:
        stop_engine_at_exit()
    try:
        try:
            up(project)
        except BaseException:
            print(project.logs())
            raise
        yield project
    finally:
        project.down()
    assert docker("ps", "-aq", "--filter", f"label=com.docker.compose.project={project.name}") == ""


@pytest.fixture(scope="module")
def own_app(project: Project) -> Project:
    """The same project after a user has swapped the example for an app of their own."""
    project.environment |= {"ROTA_APP_DIR": str(OWN_APP), "ROTA_APP": "night:app"}
    up(project)
    return project


def up(project: Project) -> None:
    project.compose("up", "--detach", "--no-build", "--scale", f"worker={WORKERS}")


def hosts(project: Project) -> dict[str, str]:
    """The running workers' containers by their host names, as the database knows them."""
    return {project.inspect(worker)["Config"]["Hostname"]: worker for worker in project.containers("worker")}


def hosts_that_ran(project: Project) -> set[str]:
    return {host for (host,) in project.sql(RAN_ON)}


def test_compose_refuses_in_a_sentence_to_start_without_a_password(empty_file: Path) -> None:
    for environment in ({}, {"ROTA_DB_PASSWORD": ""}):
        assert "Set ROTA_DB_PASSWORD to the password" in Project(environment, empty_file).refusal("config")


def test_an_example_from_the_clone_runs_on_every_worker(project: Project) -> None:
    assert len(hosts(project)) == WORKERS
    wait_until(lambda: hosts_that_ran(project) == set(hosts(project)), RUN_SECONDS, "tasks to run on every worker")


def test_the_scheduler_and_the_workers_become_healthy(project: Project) -> None:
    for service, count in {"db": 1, "scheduler": 1, "worker": WORKERS}.items():
        wait_until(partial(_is_healthy, project, service, count), HEALTHY_SECONDS, f"{service} to be healthy")


def _is_healthy(project: Project, service: str, count: int) -> bool:
    return project.health(service) == ["healthy"] * count


def test_a_scheduler_that_is_stuck_is_not_called_healthy(project: Project) -> None:
    (scheduler,) = project.containers("scheduler")

    def health() -> int:
        return run("docker", "exec", scheduler, "rota", "health", check=False).returncode

    docker("exec", scheduler, "sh", "-c", "kill -STOP -1")
    try:
        wait_until(lambda: health() == 1, HEALTHY_SECONDS, "the health check to notice")
    finally:
        docker("exec", scheduler, "sh", "-c", "kill -CONT -1")
    wait_until(lambda: health() == 0, HEALTHY_SECONDS, "the health check to pass again")


def test_no_port_is_published_and_rota_runs_without_privileges(project: Project) -> None:
    for service in ("db", "migrate", "scheduler", "worker"):
        for container in project.containers(service, "--all"):
            assert not project.inspect(container)["HostConfig"]["PortBindings"], service
    for service in ("scheduler", "worker"):
        for container in project.containers(service):
            assert docker("exec", container, "id", "--user") == "10001"
            assert project.inspect(container)["HostConfig"]["ReadonlyRootfs"]


def test_the_containers_listen_for_wake_ups_in_their_own_network(project: Project) -> None:
    for service, rows in (
        ("scheduler", "schedule_scheduler_node WHERE is_deleted = 0"),
        ("worker", "schedule_worker_node WHERE state = 'live'"),
    ):
        networks = [project.inspect(one)["NetworkSettings"]["Networks"] for one in project.containers(service)]
        own = {network["IPAddress"] for of_one in networks for network in of_one.values()}
        told = {address.rpartition(":")[0] for (address,) in project.sql(f"SELECT wake_address FROM {rows}")}
        assert told == own, service


def test_the_migration_ended_well_and_runs_again_without_harm(project: Project) -> None:
    (migration,) = project.containers("migrate", "--all")
    assert project.inspect(migration)["State"]["ExitCode"] == 0
    project.compose("run", "--rm", "migrate")


def test_an_app_of_ones_own_takes_the_place_of_the_example(own_app: Project) -> None:
    wait_until(
        lambda: hosts_that_ran(own_app) >= set(hosts(own_app)), RUN_SECONDS, "the own app to run on every worker"
    )


def test_the_work_of_a_killed_worker_is_done_by_the_others(own_app: Project) -> None:
    host, container = next(iter(hosts(own_app).items()))
    ((victim,),) = own_app.sql(f"SELECT id FROM schedule_worker_node WHERE host = '{host}' ORDER BY id DESC LIMIT 1")
    just_begun = f"""
        SELECT id FROM schedule_instance WHERE schedule_worker_node_id = {victim} AND status = 'running'
        AND gmt_started > UTC_TIMESTAMP(6) - INTERVAL 2 SECOND"""
    wait_until(lambda: own_app.sql(just_begun), RUN_SECONDS, "the worker to be at work")

    docker("kill", "--signal", "KILL", container)

    ((killed_at,),) = own_app.sql("SELECT UTC_TIMESTAMP(6)")
    held = own_app.sql(
        f"SELECT id, status FROM schedule_instance WHERE schedule_worker_node_id = {victim}"
        " AND status IN ('assigned', 'running')"
    )
    assert "running" in [status for _, status in held], f"it held no running work when it died: {held}"
    ids = ", ".join(instance for instance, _ in held)
    done_by_others = f"""
        SELECT count(*) FROM schedule_instance WHERE id IN ({ids})
        AND status = 'succeed' AND schedule_worker_node_id <> {victim}"""
    wait_until(
        lambda: own_app.sql(done_by_others) == [(str(len(held)),)],
        RECOVERY_SECONDS,
        f"the others to do the {len(held)} instances of the killed worker",
    )
    assert container not in own_app.containers("worker")
    assert own_app.sql(f"SELECT state FROM schedule_worker_node WHERE id = {victim}") == [("dead",)]
    fires_each_second_ran_once(own_app, until=killed_at)


def fires_each_second_ran_once(project: Project, until: str) -> None:
    """No fire of the own app up to `until` is missing, doubled or left undone."""
    facts = f"""
        SELECT count(*), count(DISTINCT instance.schedule_datetime),
            timestampdiff(SECOND, min(instance.schedule_datetime), max(instance.schedule_datetime)) + 1,
            sum(instance.status = 'succeed')
        FROM schedule_instance AS instance JOIN schedule_task AS task ON task.id = instance.schedule_task_id
        WHERE task.name = 'night-watch' AND instance.schedule_datetime <= '{until}'"""
    wait_until(
        lambda: len(set(project.sql(facts)[0])) == 1,
        RUN_SECONDS,
        f"the rows, the fires, the seconds and the successes until {until} to be as many",
    )


def test_stopping_hands_back_what_was_held_and_ends_cleanly(own_app: Project) -> None:
    stopped = own_app.containers("scheduler") + own_app.containers("worker")

    own_app.compose("stop", "scheduler", "worker")

    assert [own_app.inspect(container)["State"]["ExitCode"] for container in stopped] == [0] * len(stopped)
    held = "SELECT id, status FROM schedule_instance WHERE status IN ('assigned', 'running')"
    assert own_app.sql(held) == []
