"""Where a project declares what its workers run: the app that its Django apps share, and the tasks modules."""

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from rota.integrations.django import project
from rota.shared.domain.errors import ConfigurationError
from rota.worker_service.authoring import Rota
from rota.worker_service.loading import all_in

app = Rota()
"""What all ``tasks.py`` of the project may share. A module may have an app of its own, and jobs, as well."""


def tasks_modules() -> Iterator[ModuleType]:
    """Import each installed app's ``tasks``, and the modules that ``ROTA["TASKS"]`` lists; of packages all modules.

    Raises ConfigurationError for a list that is none, and what an import raises.
    """
    for config in apps.get_app_configs():
        if module_has_submodule(config.module, "tasks"):
            yield from all_in(import_module(f"{config.name}.tasks"))
    for name in project.listed_modules():
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise
            raise ConfigurationError(f"ROTA['TASKS'] lists {name!r}: there is no module {error.name!r}") from None
        yield from all_in(module)
