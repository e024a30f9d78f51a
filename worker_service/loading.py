"""Loading an app: the ``Rota`` that ``module:app`` names, or a sentence that says what is wrong with it."""

import importlib
import pkgutil
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from rota.shared.domain.errors import ConfigurationError, InvalidInput, RotaError
from rota.worker_service.authoring import Rota
from rota.worker_service.jobs import declare, jobs_of
from rota.worker_service.sources import noted_sources

LIBRARIES = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
NOT_THE_APPS = ("<", *(f"{folder}/" for folder in (Path(__file__).parents[1], *LIBRARIES)))
"""How the names of files begin that are Rota's, Python's or a library's."""


NO_TASKS = re.compile(r"__main__|conftest|tests?|test_.*")
"""Modules of a package that declare nothing for workers."""

ALL = "*"
"""In place of an app's name: all that a package declares."""


def load_app(target: str | None) -> Rota:
    """Load the app that ``module:app`` names, or all that ``package:*`` declares. None: the built-in types only.

    Raises ConfigurationError, which says what is wrong with the path, or in which line of the app its import failed.
    """
    if target is None:
        return Rota()
    module_name, colon, attribute = target.partition(":")
    is_module = all(module_name.split(".")) and "/" not in module_name and not module_name.endswith(".py")
    if not colon or not is_module or not (attribute.isidentifier() or attribute == ALL):
        raise ConfigurationError(f"app {target!r}: write module:app, for example {_example(module_name, attribute)}")
    with noted_sources() as sources:
        module = _imported(target, module_name)
        app = _discovered(target, module) if attribute == ALL else _app_of(target, module, attribute)
    if empty := app.types_without_nodes:
        raise ConfigurationError(f'app {target!r}: task type {empty[0]} has no node; declare it with .node("NAME")')
    try:
        for node in app.nodes.values():
            node.declaration()
    except InvalidInput as error:
        raise ConfigurationError(f"app {target!r}: {error}") from None
    app.target = target
    app.sources |= sources  # a module that was imported before is not read again
    return app


def _imported(target: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"app {target!r}: {_failure(module_name, error)}") from error


def _app_of(target: str, module: ModuleType, attribute: str) -> Rota:
    app = getattr(module, attribute, None)
    if not isinstance(app, Rota):
        found = "nothing of that name" if app is None else f"a {type(app).__name__}"
        others = [f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, Rota)]
        others += [f"--discover {module.__name__}, for its jobs"] if jobs_of({module.__name__}) else []
        advice = f"; write {' or '.join(others)}" if others else ""
        raise ConfigurationError(f"app {target!r}: {module.__name__} holds {found} where a rota.Rota is needed{advice}")
    if lone := jobs_of({module.__name__}):
        said = f"job {lone[0].__qualname__} belongs to no app, so this worker would not run it"
        advice = f"write class {lone[0].__name__}(Job, app={attribute}), or start it with --discover {module.__name__}"
        raise ConfigurationError(f"app {target!r}: {said}; {advice}")
    return app


def _discovered(target: str, module: ModuleType) -> Rota:
    """One app of all jobs and apps of a module and, if it is a package, of all modules in it."""
    modules = list(all_in(module, partial(_imported, target)))
    if not _apps_in(modules) and not jobs_of({one.__name__ for one in modules}):
        searched = f"{len(modules)} modules" if len(modules) > 1 else "the module"
        raise ConfigurationError(f"app {target!r}: in {searched} of {module.__name__} is no rota.Job and no rota.Rota")
    try:
        return app_of(modules)
    except InvalidInput as error:
        raise ConfigurationError(f"app {target!r}: {error}") from None


def app_of(modules: Sequence[ModuleType]) -> Rota:
    """One app of all jobs and apps that modules hold. Raises NameTaken for what two of them declare."""
    found = Rota()
    for app in _apps_in(modules):
        found.include(app)
    for job in jobs_of({one.__name__ for one in modules}):
        declare(job, found)
    return found


def _apps_in(modules: Sequence[ModuleType]) -> list[Rota]:
    values = (value for one in modules for value in vars(one).values())
    return list({id(value): value for value in values if isinstance(value, Rota)}.values())


def all_in(module: ModuleType, imported: Callable[[str], ModuleType] = importlib.import_module) -> Iterator[ModuleType]:
    """A module, and all modules in it if it is a package, but for tests; ``imported`` imports them.

    Raises what that raises.
    """
    yield module
    for found in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{module.__name__}."):
        if not NO_TASKS.fullmatch(found.name.rpartition(".")[2]):
            yield from all_in(imported(found.name), imported)


def _example(module_name: str, attribute: str) -> str:
    """What was probably meant: ``acme/jobs.py`` is ``acme.jobs``."""
    names = Path(module_name.removesuffix(".py")).parts
    if not names or not all(name.isidentifier() for name in names):
        return "jobs:app"
    return f"{'.'.join(names)}:{attribute if attribute.isidentifier() else 'app'}"


def _failure(module_name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        if module_name == error.name or module_name.startswith(f"{error.name}."):
            return f"there is no module {error.name!r} in this folder or on PYTHONPATH"
        said = str(error)
    elif isinstance(error, SystemExit):
        said = f"it ends the process (SystemExit: {error})"
    else:
        said = str(error) if isinstance(error, RotaError) else f"{type(error).__name__}: {error}"
    own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_THE_APPS)]
    place = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return f"its import failed{place}: {said}"
