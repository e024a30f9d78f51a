"""Loading an app: the ``Rota`` that ``module:app`` names, or a sentence that says what is wrong with it."""

import importlib
import sysconfig
import traceback
from pathlib import Path

from rota.shared.domain.errors import ConfigurationError, InvalidInput, RotaError
from rota.worker_service.authoring import Rota
from rota.worker_service.sources import noted_sources

LIBRARIES = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
NOT_THE_APPS = ("<", *(f"{folder}/" for folder in (Path(__file__).parents[1], *LIBRARIES)))
"""How the names of files begin that are Rota's, Python's or a library's."""


def load_app(target: str | None) -> Rota:
    """Load the app that ``module:app`` names. None: an app with the built-in types only.

    Raises ConfigurationError, which says what is wrong with the path, or in which line of the app its import failed.
    """
    if target is None:
        return Rota()
    module_name, colon, attribute = target.partition(":")
    is_module = all(module_name.split(".")) and "/" not in module_name and not module_name.endswith(".py")
    if not colon or not is_module or not attribute.isidentifier():
        raise ConfigurationError(f"app {target!r}: write module:app, for example {_example(module_name, attribute)}")
    try:
        with noted_sources() as sources:
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"app {target!r}: {_failure(module_name, error)}") from error
    app = getattr(module, attribute, None)
    if not isinstance(app, Rota):
        found = "nothing of that name" if app is None else f"a {type(app).__name__}"
        others = [f"{module_name}:{name}" for name, value in vars(module).items() if isinstance(value, Rota)]
        advice = f"; write {' or '.join(others)}" if others else ""
        raise ConfigurationError(f"app {target!r}: {module_name} holds {found} where a rota.Rota is needed{advice}")
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
