"""The Django app."""

import sys
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.management.base import CommandError
from django.db import router
from django.db.models.signals import post_migrate, pre_delete, pre_save

from rota.integrations.django import project
from rota.shared.domain.errors import ConfigurationError, NotPossible, RotaError


class RotaConfig(AppConfig):
    """Rota in a Django project: its commands, models, checks, and its tables beside Django's."""

    name = "rota.integrations.django"
    label = "rota"
    verbose_name = "Rota"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Watch Django's migrations, and the settings."""
        post_migrate.connect(migrate, sender=self)
        checks.register(check_settings)
        for model in self.get_models():  # loaddata saves past a model's own save
            pre_save.connect(refuse, sender=model)
            pre_delete.connect(refuse, sender=model)
        router.routers.insert(0, RotaRouter())


class RotaRouter:
    """Leaves Rota's tables out of Django's migrations, and so of ``dumpdata``."""

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool | None:
        """Rota's models nowhere; about others it says nothing."""
        return False if app_label == RotaConfig.label else None


def refuse(**_: Any) -> None:
    """Raise NotPossible: Rota's rows are not written by Django."""
    raise NotPossible(project.ASK)


def migrate(using: str, verbosity: int = 1, **more: Any) -> None:
    """After ``manage.py migrate`` of the database that has Rota's tables: migrate these, too.

    It also registers the task types of the project, which a worker would do when it starts. So a test's database has
    both. Raises CommandError.
    """
    if "plan" not in more or using != project.alias():  # it is sent after flush as well
        return
    from rota.integrations.django.migrating import migrated  # noqa: PLC0415 - no other command needs it

    try:
        url = project.database_url()
    except ConfigurationError as error:
        said = f"are left out: {error}"
    else:
        try:
            said = migrated(url)
        except RotaError as error:
            raise CommandError(f"Rota: {error}") from error
    if verbosity:
        output: Any = more.get("stdout") or sys.stdout
        output.write(f"  Rota's tables: {said}\n")


def check_settings(**_: Any) -> Sequence[checks.CheckMessage]:
    """What is wrong with ``ROTA`` in the settings, or with the database that it names."""
    try:
        project.alias()
    except ConfigurationError as error:
        return [checks.Error(str(error), id="rota.E001")]
    try:
        project.database_url()
    except ConfigurationError as error:
        return [checks.Warning(str(error), id="rota.W001")]
    return []
