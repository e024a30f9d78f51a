"""All that the workers of a project run."""

from django.conf import settings

from rota.integrations.django.declaring import app, tasks_modules
from rota.worker_service.authoring import Rota
from rota.worker_service.loading import app_of


def all_declared() -> Rota:
    """One app of all that the tasks modules declare. Raises NameTaken for what two of them declare."""
    found = app_of(list(tasks_modules()))
    found.include(app)
    if getattr(settings, "TASKS", None):
        from rota.integrations.django.task_runs import declare_in  # noqa: PLC0415 - Django before 6 may have no tasks

        declare_in(found)
    return found
