"""examples/django_shop, started and used as docs/web.md shows it; and what only processes show."""

import json
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.harness.curl_page import asked, calls
from tests.harness.databases import kill_sessions, run_sql
from tests.harness.django_shop import SHOP, command, manage, must, shop_environment
from tests.harness.ports import free_port
from tests.harness.processes import RotaProcess, wait_until
from tests.harness.schemas import typed


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A copy of the project, whose code may be changed."""
    return Path(shutil.copytree(SHOP, tmp_path / "shop"))


@pytest.fixture
def started(rota: Callable[..., RotaProcess]) -> Callable[..., RotaProcess]:
    """Start a command of the project."""

    def start(url: str, *arguments: str, project: Path = SHOP) -> RotaProcess:
        return rota(*arguments, environment=shop_environment(url), command=command(project), cwd=project)

    return start


def result_of(url: str, key: str) -> Callable[[], tuple[object, ...] | None]:
    """The end of the newest run of a type."""
    query = (
        "SELECT i.status, i.attempt, i.failures, i.execution_result FROM schedule_instance i"
        f" JOIN schedule_task t ON t.id = i.schedule_task_id WHERE t.name = '{key}' ORDER BY i.id DESC LIMIT 1"
    )

    def look() -> tuple[object, ...] | None:
        found = typed(url, query)
        return found[0] if found and found[0][0] in ("succeed", "failed") else None

    return look


def ask(url: str, product: int) -> None:
    said = "from rota.integrations.django import client; from promotions import tasks\n"
    said += f"client.once(tasks.end_promotion, key='product-{product}', param={{'product': {product}}})\n"
    must(manage(url, "shell", stdin=said))


def test_the_page_shows_what_the_project_answers(
    database_url: str, started: Callable[..., RotaProcess], port: int
) -> None:
    assert "Rota's tables: " in must(manage(database_url, "migrate"))
    up = started(database_url, "rota", "up")
    served = started(database_url, "runserver", "--noreload", str(port))
    up.wait_for_log("count-promotions .* succeed", 60)
    served.wait_for_log("Quit the server", 30)
    shown = calls("Django")
    assert len(shown) == 3
    for call, answer in shown:
        assert asked(call, port) == json.loads(answer)
    receipt = httpx.post(f"http://127.0.0.1:{port}/receipts", params={"order": 7}).json()
    where = f"http://127.0.0.1:{port}/receipts/{receipt['result']}"
    wait_until(lambda: httpx.get(where).json()["status"] == "SUCCESSFUL", 30, "the receipt")
    assert httpx.get(where).json()["returned"] == "receipt of order 7 was sent"
    httpx.put(f"http://127.0.0.1:{port}/promotions/7", params={"until": "2000-01-01T00:00"})
    wait_until(
        lambda: [one["ended"] for one in httpx.get(f"http://127.0.0.1:{port}/promotions").json()] == [True, False],
        30,
        "the promotion to end",
    )
    up.stop_signal(signal.SIGTERM)
    assert up.wait_exit(60) == 0


def test_a_worker_whose_connections_the_server_closed_runs_the_next_at_its_first_attempt(
    mariadb_url: str, started: Callable[..., RotaProcess]
) -> None:
    must(manage(mariadb_url, "migrate"))
    up = started(mariadb_url, "rota", "up")
    up.wait_for_log("count-promotions .* succeed", 60)
    for product in (1, 2):
        ask(mariadb_url, product)
        ended = wait_until(result_of(mariadb_url, "end-promotion-once"), 30, "the run to end")
        assert ended is not None
        assert ended[:3] == ("succeed", 1, 0), "no attempt has met a dead connection"
        if product == 1:
            kill_sessions(mariadb_url)
            run_sql(mariadb_url, "DELETE FROM schedule_business_key")


HEARING = """

from rota import TaskEvent


@app.on("task_changed")
def count(event: TaskEvent) -> None:
    print(f"heard {event.action} beside {Promotion.objects.count()} promotions", flush=True)
"""


def test_a_listener_whose_connection_the_server_closed_hears_the_next_event(
    mariadb_url: str, started: Callable[..., RotaProcess], shop: Path
) -> None:
    with (shop / "promotions" / "tasks.py").open("a") as tasks:
        tasks.write(HEARING)
    must(manage(mariadb_url, "migrate"))
    worker = started(mariadb_url, "rota", "worker", project=shop)
    worker.wait_for_log("started as #", 60)
    held = "SELECT id FROM schedule_listener WHERE held_at IS NOT NULL"
    wait_until(lambda: typed(mariadb_url, held), 30, "it to hold its listener")
    for switch in ("off", "on"):
        must(manage(mariadb_url, "rota", "task", switch, "count-promotions"))
        worker.wait_for_log(rf"^heard task\.{switch} beside \d+ promotions", 30)
        kill_sessions(mariadb_url)


def test_a_run_that_fails_is_told_to_the_receivers_of_the_signal(
    mariadb_url: str, started: Callable[..., RotaProcess], shop: Path
) -> None:
    with (shop / "shop" / "settings.py").open("a") as settings:
        settings.write('\nLOGGING = {"version": 1}\n')  # it disables all loggers that are there already
    must(manage(mariadb_url, "migrate"))
    worker = started(mariadb_url, "rota", "worker", project=shop)
    scheduler = started(mariadb_url, "rota", "scheduler", project=shop)
    worker.wait_for_log("started as #", 60)
    scheduler.wait_for_log("started", 60)
    said = "from promotions.tasks import send_receipt; print(send_receipt.enqueue(1, wrong=2).id)\n"
    [result] = must(manage(mariadb_url, "shell", "-v0", stdin=said)).split()
    worker.wait_for_log(r"^alert: django-task-once failed: .*TypeError", 30)
    told = f"from promotions.tasks import send_receipt; r = send_receipt.get_result('{result}')\n"
    told += "print(r.status, r.errors[0].exception_class_path, len(r.worker_ids))\n"
    assert must(manage(mariadb_url, "shell", "-v0", stdin=told)).split() == ["FAILED", "builtins.TypeError", "1"]


def test_services_and_the_server_start_anew_when_the_code_changes(
    mariadb_url: str, started: Callable[..., RotaProcess], shop: Path, port: int
) -> None:
    must(manage(mariadb_url, "migrate", project=shop))
    up = started(mariadb_url, "rota", "up", "--reload", project=shop)
    served = started(mariadb_url, "runserver", str(port), project=shop)
    up.wait_for_log("count-promotions .* succeed", 60)
    served.wait_for_log("Quit the server", 30)
    tasks, views = shop / "promotions" / "tasks.py", shop / "promotions" / "views.py"
    good = tasks.read_text()
    tasks.write_text(good.replace('{"running":', '{"still running":'))
    up.wait_for_log('count-promotions .* succeed .*"still running"', 60)
    tasks.write_text(good + "\nthis is no Python\n")
    up.wait_for_log("it starts again after a change", 60)
    tasks.write_text(good.replace('{"running":', '{"running again":'))
    up.wait_for_log('count-promotions .* succeed .*"running again"', 60)
    views.write_text(views.read_text().replace("give a time", "say a time"))

    def is_new() -> bool:
        with suppress(httpx.HTTPError):  # the server is just starting
            answer = httpx.put(f"http://127.0.0.1:{port}/promotions/1", params={"until": "soon"})
            return "say a time" in answer.text
        return False

    def is_new_soon() -> bool:
        views.touch()  # Django does not see a change that comes while it starts
        with suppress(pytest.fail.Exception):
            return wait_until(is_new, 8, "the new code to answer")
        return False

    wait_until(is_new_soon, 60, "the new code to answer")
    put = httpx.put(f"http://127.0.0.1:{port}/promotions/1", params={"until": "2099-12-24T20:00"}).json()
    assert put["done"] == "asked"
    up.stop_signal(signal.SIGINT)
    up.wait_exit(60)
    served.stop_signal(signal.SIGINT)
    served.wait_exit(30)


def test_what_manage_says_of_what_is_wrong(mariadb_url: str, shop: Path) -> None:
    settings = shop / "shop" / "settings.py"
    good = settings.read_text()
    must(manage(mariadb_url, "migrate", project=shop))
    bad = {
        "ROTA = {'DATABSE': 'default'}": "ROTA in the settings has 'DATABSE' (did you mean DATABASE?)",
        "ROTA = {'DATABASE': 'other'}": "ROTA['DATABASE'] is 'other', which DATABASES does not have; it has: default",
        "ROTA = ['default']": "write a dict",
    }
    for line, said in bad.items():
        settings.write_text(f"{good}\n{line}\n")
        for arguments in (("rota", "task", "list"), ("check",)):
            done = manage(mariadb_url, *arguments, project=shop)
            assert done.returncode == 1, done.stdout
            assert "Traceback" not in done.stderr
            assert said in done.stderr
    settings.write_text(good + "\nROTA = {'TASKS': ['promotions.nightly']}\n")
    done = manage(mariadb_url, "rota", "worker", project=shop)
    assert done.returncode == 1
    assert "ROTA['TASKS'] lists 'promotions.nightly': there is no module 'promotions.nightly'" in done.stderr


def test_all_that_a_package_of_tasks_declares_is_found(mariadb_url: str, shop: Path) -> None:
    package = shop / "nightly"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mail.py").write_text(
        "from rota import Job, NodeContext\n"
        "from rota.integrations import django as rota\n"
        "@rota.app.task('MAIL')\n"
        "def mail(ctx: NodeContext) -> None: ...\n"
        "class Report(Job):\n"
        "    def run(self, ctx: NodeContext) -> None: ...\n"
    )
    with (shop / "shop" / "settings.py").open("a") as settings:
        settings.write("\nROTA = {'TASKS': ['nightly']}\n")
    must(manage(mariadb_url, "migrate", project=shop))
    found = {one for (one,) in run_sql(mariadb_url, "SELECT type FROM schedule_task_node_type")}
    assert {"MAIL", "REPORT", "END_PROMOTION_PRICE", "DJANGO_TASK"} <= found


def test_manage_passes_arguments_and_exit_codes_on(mariadb_url: str, shop: Path) -> None:
    must(manage(mariadb_url, "migrate", project=shop))
    settings = ("--settings", "shop.settings", "--pythonpath", str(shop))
    assert json.loads(must(manage(mariadb_url, "rota", "task", "list", "--json", *settings, project=shop))) == []
    assert manage(mariadb_url, "rota", "task", "show", "nobody").returncode == 1
    assert manage(mariadb_url, "rota", "task", "lst").returncode == 2
    refused = manage(mariadb_url, "rota", "task", "list", "--reload")
    assert (refused.returncode, "scheduler, up, worker" in refused.stderr) == (2, True)
    assert "Run a command of Rota" in must(manage(mariadb_url, "help", "rota"))
    named = must(manage(mariadb_url, "rota", "config", "--json", more={"ROTA_DATABASE_URL": "mysql://nobody@x/y"}))
    [url] = [one["value"] for one in json.loads(named)["settings"] if one["name"] == "ROTA_DATABASE_URL"]
    assert "nobody" not in url, "the project says the database"
