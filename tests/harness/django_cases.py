"""Tests of Rota in Django, as a Django project has them: ``manage.py test tests.harness.django_cases``.

``tests/client/test_django.py`` runs them in the shop's project, on each kind of database.
"""

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import StringIO
from tempfile import NamedTemporaryFile
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission, User
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, models, transaction
from django.db.models.functions import TruncDay
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.test.testcases import DatabaseOperationForbidden
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from promotions import tasks
from promotions.models import Promotion

from rota import AsyncClient, NodeContext, Once, RunEvent
from rota.integrations.django import client, connections, database_url, signals
from rota.integrations.django.models import Instance, Request, Task, Worker
from rota.integrations.django.task_interface import InvalidTask, TaskResultDoesNotExist
from rota.integrations.django.task_interface import Task as DjangoTask
from rota.shared.domain.errors import ConfigurationError, NotPossible

LATER = datetime(2099, 12, 24, 20, 0, tzinfo=UTC)


def promote(product: int) -> dict[str, Any]:
    return client.once(tasks.end_promotion, key=f"product-{product}", at=LATER, param={"product": product})


class InATransaction(TestCase):
    """Django runs each of these in a transaction that it rolls back."""

    def test_what_is_asked_for_is_a_part_of_the_transaction(self) -> None:
        assert promote(1)["done"] == "asked"
        assert client.keys.cancel(tasks.end_promotion, "product-2")["asked"] is True
        many = client.once_many(tasks.end_promotion, [Once(f"product-{n}", LATER, {"product": n}) for n in (3, 4)])
        assert many == {"type": "END_PROMOTION", "keys": 2, "asked": 2}
        asked = [(one.what, one.number, one.due_at, one.param) for one in Request.objects.order_by("id")]
        assert asked == [
            ("once", "product-1", LATER, {"product": 1}),
            ("cancel", "product-2", None, None),
            ("once", "product-3", LATER, {"product": 3}),
            ("once", "product-4", LATER, {"product": 4}),
        ]

    def test_nothing_of_the_test_before_is_left(self) -> None:
        assert list(Request.objects.all()) == []
        assert "test" in database_url()

    def test_a_task_that_is_enqueued_waits_for_the_commit(self) -> None:
        result = tasks.send_receipt.enqueue(order=7)
        assert (result.status, result.args, result.kwargs) == ("READY", [], {"order": 7})
        result.refresh()
        assert result.status == "READY"
        assert result.enqueued_at is not None
        assert Request.objects.get().type == "DJANGO_TASK"


class Committed(TransactionTestCase):
    """Transactions are committed here, as in the app."""

    def test_a_rollback_leaves_nothing_and_a_commit_both(self) -> None:
        try:
            with transaction.atomic():
                Promotion.objects.create(product=1, until=LATER)
                promote(1)
                lost = tasks.send_receipt.enqueue(1)
                raise RuntimeError
        except RuntimeError:
            pass
        assert (Request.objects.count(), Promotion.objects.count()) == (0, 0)
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.send_receipt.get_result(lost.id)
        with transaction.atomic():
            Promotion.objects.create(product=2, until=LATER)
            try:
                with transaction.atomic():  # a savepoint
                    promote(3)
                    raise RuntimeError
            except RuntimeError:
                pass
            promote(2)
        assert [one.number for one in Request.objects.all()] == ["product-2"]
        connection.cursor().execute("DELETE FROM schedule_request")

    def test_a_transaction_that_read_first_may_write_after_others_have(self) -> None:
        other = connection.copy()
        self.addCleanup(other.close)
        if other.vendor == "sqlite":
            other.settings_dict = {**other.settings_dict, "OPTIONS": {"timeout": 0}}
        with transaction.atomic():
            assert Promotion.objects.count() == 0
            with suppress(OperationalError), other.cursor() as cursor:  # SQLite has one writer
                cursor.execute("DELETE FROM django_session")
            Promotion.objects.create(product=1, until=LATER)
        assert Promotion.objects.count() == 1

    def test_outside_of_a_transaction_the_run_is_there_at_once(self) -> None:
        told = promote(5)
        assert told["done"] == "added"
        instance = Instance.objects.get(pk=told["instance_id"])
        assert (instance.task.name, instance.status, instance.schedule_datetime, instance.param) == (
            "end-promotion-once",
            "pending",
            LATER,
            {"product": 5},
        )
        assert str(instance) == f"instance {instance.pk}"

    def test_without_autocommit_too_it_is_a_part_of_the_transaction(self) -> None:
        transaction.set_autocommit(False)
        try:
            Promotion.objects.create(product=8, until=LATER)
            assert promote(8)["done"] == "asked"
            transaction.rollback()
            assert Request.objects.count() == 0
            transaction.rollback()
        finally:
            transaction.set_autocommit(True)

    def test_a_deferred_task_is_due_then(self) -> None:
        result = tasks.send_receipt.using(run_after=LATER).enqueue(9)
        [instance] = Instance.objects.filter(task__name="django-task-once", due_at=LATER)
        assert instance.param["args"] == [9]
        assert tasks.send_receipt.get_result(result.id).status == "READY"

    def test_a_coroutine_is_told_to_use_the_other_client(self) -> None:
        async def asks() -> None:
            promote(1)

        async def asks_well() -> list[Any]:
            async with AsyncClient(database_url()) as awaited:
                return await awaited.keys.find("END_PROMOTION", begins="nothing")

        with self.assertRaisesMessage(SynchronousOnlyOperation, "AsyncClient(database_url())"):
            async_to_sync(asks)()
        assert async_to_sync(asks_well)() == []


class NoDatabase(SimpleTestCase):
    """Django lets these use no database."""

    def test_rotas_own_connections_do_not_go_past_that(self) -> None:
        with self.assertRaises(DatabaseOperationForbidden):
            promote(1)
        with self.assertRaises(DatabaseOperationForbidden):
            client.tasks.list()

    @override_settings(ROTA={"DATABASE_URL": "mysql://nobody@localhost/production"})
    def test_a_url_is_refused_because_it_is_no_tests_own(self) -> None:
        with self.assertRaisesMessage(ConfigurationError, "is the same in tests"):
            client.tasks.list()


class Times(TestCase):
    """Naive times are local, as everywhere in Django."""

    def test_a_naive_time_is_local_time(self) -> None:
        naive = datetime(2099, 12, 24, 20, 0)  # noqa: DTZ001
        with timezone.override("Asia/Tokyo"):
            told = client.once(tasks.end_promotion, key="a", at=naive, param={"product": 1})
            many = [Once("b", naive, {"product": 1})]
            client.once_many(tasks.end_promotion, many)
        assert told["at"] == "2099-12-24T11:00:00Z"
        assert {one.due_at for one in Request.objects.all()} == {datetime(2099, 12, 24, 11, 0, tzinfo=UTC)}

    def test_without_time_zones_in_django_models_and_results_are_local(self) -> None:
        with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
            naive = timezone.now()
            client.once(tasks.end_promotion, key="a", at=naive, param={"product": 1})
            assert Request.objects.get().due_at == naive
            assert Request.objects.filter(due_at=naive).count() == 1
            result = tasks.send_receipt.enqueue(1)
            result.refresh()
            assert abs(result.enqueued_at - naive) < timedelta(minutes=5)

    def test_a_day_in_a_zone_begins_there(self) -> None:
        with timezone.override("Etc/GMT-9"):  # 20:00 in UTC is on the next day there
            client.once(tasks.end_promotion, key="a", at=LATER, param={"product": 1})
            if connection.vendor == "sqlite":  # MariaDB here knows no zones by name
                [day] = Request.objects.annotate(day=TruncDay("due_at")).values_list("day", flat=True)
                assert day == datetime(2099, 12, 25, tzinfo=ZoneInfo("Etc/GMT-9"))

    def test_the_zone_of_the_connection_changes_nothing(self) -> None:
        field = Request._meta.get_field("due_at")
        tokyo = datetime(2026, 1, 1, 12, 0, tzinfo=ZoneInfo("Asia/Tokyo"))  # as Django reads 12:00 in UTC there
        column = field.get_col("schedule_request")
        assert field.from_db_value(tokyo, column, connection) == datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
        assert field.get_db_prep_value(LATER, connection) == "2099-12-24 20:00:00.000000"


class Refused(TestCase):
    """What cannot be done is said."""

    def test_a_task_outside_of_the_tasks_modules(self) -> None:
        stranger = DjangoTask(func=stray)
        with self.assertRaisesMessage(InvalidTask, "django_cases.stray is in no tasks module"):
            stranger.enqueue()

    def test_a_priority(self) -> None:
        with self.assertRaises(InvalidTask):
            tasks.send_receipt.using(priority=5).enqueue(1)

    def test_an_id_that_is_none(self) -> None:
        for wrong in ("", "x", "20261125T192524728315-nobody"):
            with self.assertRaises(TaskResultDoesNotExist):
                tasks.send_receipt.get_result(wrong)

    def test_models_do_not_write(self) -> None:
        existing = Instance(id=1)
        existing._state.adding, existing._state.db = False, "default"
        writes = [
            lambda: Task.objects.create(name="x"),
            lambda: Task(name="x").save(),
            lambda: Task(id=1).delete(),
            lambda: Instance.objects.update(status="failed"),
            lambda: Instance.objects.filter(pk=1).delete(),
            lambda: Worker.objects.bulk_create([Worker(name="x")]),
            lambda: Worker.objects.get_or_create(name="x"),
            lambda: Task(id=1).instances.add(existing),
            lambda: Task(id=1).instances.create(status="pending"),
            lambda: Instance._base_manager.filter(pk=1).update(status="failed"),
            lambda: Instance.objects.filter(pk=1)._raw_delete("default"),
            lambda: models.Model.save_base(Task(id=1), raw=True, force_insert=True),
        ]
        for write in writes:
            with self.assertRaisesMessage(NotPossible, "rota.integrations.django import client"):
                write()

    def test_a_command_that_fails(self) -> None:
        with self.assertRaisesMessage(CommandError, "rota task show nobody has failed") as caught:
            call_command("rota", "task", "show", "nobody")
        assert caught.exception.returncode == 1

    def test_fixtures_have_no_rows_of_rotas(self) -> None:
        promote(1)
        loaded('[{"model": "rota.request", "pk": 1, "fields": {"type": "X", "number": "x", "is_deleted": 0}}]')
        assert [one.type for one in Request.objects.all()] == ["END_PROMOTION"]
        written = StringIO()
        call_command("dumpdata", stdout=written)
        assert '"rota.' not in written.getvalue()
        assert '"contenttypes.' in written.getvalue()


def loaded(fixture: str) -> None:
    with NamedTemporaryFile("w", suffix=".json") as file:
        file.write(fixture)
        file.flush()
        call_command("loaddata", file.name, verbosity=0)


def stray() -> None:
    """In no tasks module."""


class TheAdmin(TransactionTestCase):
    """The pages of the admin."""

    def setUp(self) -> None:
        self.boss = User.objects.create_superuser("boss", password="secret")
        self.client.force_login(self.boss)
        told = client.once(tasks.end_promotion, key=f"p-{self.id()}", at=LATER, param={"product": 1})
        self.id_ended = told["instance_id"]
        client.instances.cancel(self.id_ended)
        told = client.once(tasks.end_promotion, key=f"p-{self.id()}", at=LATER, param={"product": 1})
        self.id_waiting = told["instance_id"]

    def listed(self, **chosen: str) -> list[int]:
        page = self.client.get(reverse("admin:rota_instance_changelist"), chosen)
        assert page.status_code == 200, page
        return [one.pk for one in page.context["cl"].result_list]

    def test_instances_are_listed_and_filtered(self) -> None:
        assert self.listed()[:2] == [self.id_waiting, self.id_ended]
        assert self.listed(status="canceled")[0] == self.id_ended
        assert self.listed(status="pending")[0] == self.id_waiting
        assert self.listed(status="failed") == []
        assert self.listed(q="end-promotion-once")[0] == self.id_waiting
        assert self.listed(q="nobody") == []
        task = Task.objects.get(name="end-promotion-once")
        assert self.listed(task__id__exact=str(task.pk))[0] == self.id_waiting
        link = f"{reverse('admin:rota_instance_changelist')}?task__id__exact={task.pk}"
        assert link in self.client.get(reverse("admin:rota_task_changelist")).content.decode()
        assert self.client.get(reverse("admin:rota_worker_changelist")).status_code == 200

    def test_a_list_takes_as_many_statements_for_a_hundred_rows_as_for_two(self) -> None:
        self.listed()
        with CaptureQueriesContext(connection) as few:
            self.listed()
        client.once_many(
            tasks.end_promotion, [Once(f"many-{n}", LATER + timedelta(seconds=n), {"product": n}) for n in range(100)]
        )
        with CaptureQueriesContext(connection) as many:
            self.listed()
        assert len(many) == len(few)
        assert any("COUNT(" in one["sql"] and "LIMIT 10000" in one["sql"] for one in many), "it counts no further"

    def test_a_list_is_read_by_the_primary_key_and_no_column_is_sorted_by(self) -> None:
        client.once_many(
            tasks.end_promotion, [Once(f"many-{n}", LATER + timedelta(seconds=n), {"product": n}) for n in range(500)]
        )
        with CaptureQueriesContext(connection) as seen:
            page = self.client.get(reverse("admin:rota_instance_changelist"), {"o": "3"})
        assert page.status_code == 200
        assert "sortable" not in page.content.decode()
        listing = [one["sql"] for one in seen if "schedule_instance" in one["sql"] and "ORDER BY" in one["sql"]]
        assert listing
        for sql in listing:
            assert "JOIN" not in sql
            assert "execution_result" not in sql
            if connection.vendor == "mysql":
                with connection.cursor() as cursor:
                    cursor.execute(f"EXPLAIN {sql}")
                    assert not [row for row in cursor.fetchall() if "filesort" in str(row)], sql

    def test_no_list_reads_a_param(self) -> None:
        for model in ("task", "instance"):
            with CaptureQueriesContext(connection) as seen:
                self.client.get(reverse(f"admin:rota_{model}_changelist"))
            assert [one for one in seen if "schedule_task" in one["sql"]]
            assert not [one["sql"] for one in seen if "param" in one["sql"]]

    def test_too_many_are_not_replayed(self) -> None:
        before = Instance.objects.count()
        with mock.patch("rota.integrations.django.admin.REPLAYED", 1):
            assert "none is replayed" in self.replayed(self.id_ended, self.id_waiting)
        assert Instance.objects.count() == before

    def test_an_instance_is_shown_and_cannot_be_changed(self) -> None:
        where = reverse("admin:rota_instance_change", args=[self.id_ended])
        page = self.client.get(where)
        assert page.status_code == 200
        assert "canceled" in page.content.decode()
        assert self.client.post(where, {"status": "succeed"}).status_code == 403
        assert self.client.post(reverse("admin:rota_instance_delete", args=[self.id_ended])).status_code == 403
        assert self.client.get(reverse("admin:rota_instance_add")).status_code == 403

    def replayed(self, *ids: int) -> str:
        chosen = {"action": "replay", "_selected_action": [str(one) for one in ids]}
        page = self.client.post(reverse("admin:rota_instance_changelist"), chosen, follow=True)
        return " ".join(map(str, page.context["messages"]))

    def test_what_has_ended_is_replayed_in_the_persons_name(self) -> None:
        said = self.replayed(self.id_ended)
        assert f"replayed: {self.id_ended} as " in said, said
        newest = Instance.objects.latest("id")
        assert (newest.replay_of, newest.origin) == (self.id_ended, "replay")
        with connection.cursor() as cursor:
            cursor.execute("SELECT actor FROM schedule_audit WHERE action = 'instance.replay'")
            assert ("boss (admin)",) in cursor.fetchall()

    def test_all_or_none_are_replayed(self) -> None:
        before = Instance.objects.count()
        assert f"instance {self.id_waiting}" in self.replayed(self.id_ended, self.id_waiting)
        assert Instance.objects.count() == before

    def test_who_may_only_look_cannot_replay(self) -> None:
        looker = User.objects.create_user("looker", password="secret", is_staff=True)
        looker.user_permissions.add(Permission.objects.get(codename="view_instance"))
        self.client.force_login(looker)
        before = Instance.objects.count()
        assert self.listed()
        self.replayed(self.id_ended)
        assert Instance.objects.count() == before
        looker.user_permissions.add(Permission.objects.get(codename="replay_instance"))
        self.replayed(self.id_ended)
        assert Instance.objects.count() == before + 1


class AroundARun(TransactionTestCase):
    """Connections that a handler finds, and leaves."""

    def test_a_connection_that_the_server_has_closed_is_renewed(self) -> None:
        ran = []

        def handler(ctx: NodeContext) -> int:
            ran.append(ctx.instance_id)
            return Promotion.objects.count()

        run = connections.renewed(handler)
        assert run(NodeContext(instance_id=1)) == 0
        if connection.vendor == "mysql":
            kill_own_connection()
        assert run(NodeContext(instance_id=2)) == 0
        assert ran == [1, 2]

    def test_a_coroutines_connection_is_renewed(self) -> None:
        async def handler(ctx: NodeContext) -> int:
            return await Promotion.objects.acount()

        run = connections.renewed(handler)
        assert async_to_sync(run)(NodeContext()) == 0
        assert run.__name__ == "handler"

    def test_the_end_of_a_coroutine_closes_nothing_that_another_reads_from(self) -> None:
        for product in range(300):
            Promotion.objects.create(product=product, until=LATER)
        half, ended = asyncio.Event(), asyncio.Event()

        async def reads(ctx: NodeContext) -> int:
            seen = 0
            async for _ in Promotion.objects.all().aiterator(chunk_size=10):
                seen += 1
                if seen == 20:
                    half.set()
                    await ended.wait()
            return seen

        async def ends(ctx: NodeContext) -> int:
            await half.wait()
            return await Promotion.objects.acount()

        async def both() -> list[int]:
            async def second() -> int:
                found: int = await connections.renewed(ends)(NodeContext())
                ended.set()
                return found

            return list(await asyncio.gather(connections.renewed(reads)(NodeContext()), second()))

        assert asyncio.run(both()) == [300, 300]

    def test_a_receiver_of_signals_has_a_connection_that_lives(self) -> None:
        heard = []

        def receiver(event: RunEvent, **_: Any) -> None:
            heard.append((event.event, Promotion.objects.count()))

        signals.run_ended.connect(receiver)
        try:
            for name in ("succeeded", "failed"):
                if connection.vendor == "mysql":
                    Promotion.objects.count()
                    kill_own_connection()
                signals.send(RunEvent(name, LATER, 1, "nightly", LATER, LATER, 1, "w"))
        finally:
            signals.run_ended.disconnect(receiver)
        assert heard == [("succeeded", 0), ("failed", 0)]

    def test_what_a_handler_raises_is_raised(self) -> None:
        def handler(ctx: NodeContext) -> None:
            raise KeyError(json.dumps(ctx.param))

        with self.assertRaises(KeyError):
            connections.renewed(handler)(NodeContext(param={"a": 1}))


def kill_own_connection() -> None:
    """As the server does after ``wait_timeout``."""
    other = connection.copy()
    with connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        [number] = cursor.fetchone()
    with other.cursor() as cursor:
        cursor.execute(f"KILL {number}")
    other.close()
