"""Jobs as classes: each class is a task type with one node, and its attributes are what ``app.task`` takes."""

import functools
import inspect
import re
from collections.abc import Awaitable, Callable
from types import MethodType
from typing import Any, ClassVar, Generic, TypeAlias, get_args, get_origin

from pydantic import BaseModel

from rota.shared.domain.errors import InvalidInput, NameTaken, RotaError
from rota.shared.domain.sentences import close_to
from rota.worker_service.authoring import Rota, TaskType
from rota.worker_service.handlers import execution_of, function_of
from rota.worker_service.signatures import OneNode, P

FIELDS = ("type", "param", "param_value", *OneNode.__annotations__)
"""The attributes by which a job says what it is."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")


class Job(Generic[P]):
    """A task type as a class. Its attributes are the keywords of ``app.task``, and ``run`` is the handler.

        class CleanupTemp(Job):
            cron = "0 3 * * *"
            retries = 2

            async def run(self, ctx: NodeContext) -> dict[str, int]:
                return {"removed": 17}

    The type is named after the class (``CLEANUP_TEMP``), and the task after the type (``cleanup-temp``); ``type`` and
    ``name`` say otherwise. ``class Invoices(Job[InvoiceParam])`` has a param of that model. Each run makes an object
    of its own. A ``def run`` runs on a thread, or in a process with ``execution = "process"``.

    A class says where it belongs: ``class CleanupTemp(Job, app=app)`` to an app; without that to the jobs of its
    module, which ``rota worker --discover`` runs. ``class Ours(Job, abstract=True)`` is no job, but a base of jobs.

    The class statement raises InvalidInput, which names every fault, and NameTaken for a type or a task that
    another job has.
    """

    category: ClassVar[str]
    """The name of the task type."""

    def __init_subclass__(cls, *, app: Rota | None = None, abstract: bool = False, **more: Any) -> None:
        """Check the class, and declare it in ``app``."""
        super().__init_subclass__(**more)
        cls._refuse_misspelt()
        if abstract:
            if "type" in cls.__dict__:
                raise InvalidInput(f"job {_place(cls)}: type is the name of one job; a base of jobs has none")
            return
        cls.category = cls.__dict__.get("type", _type_of(cls.__name__))
        try:
            cls._take_model()
            declare(cls, declared := Rota())
        except RotaError as error:
            faults = [f"job {_place(cls)}: {fault}" for fault in str(error).splitlines()]
            raise type(error)("\n".join(faults)) from None
        if app is not None:
            app.include(declared)
            return
        names = {f"task type {cls.category}", *(f"task {task.name!r}" for task in declared.schedules)}
        for name in sorted(names):
            if (other := _by_name.get(name)) is not None:
                raise NameTaken(f"job {_place(cls)}: {name} is that of the job {_place(other)}, too")
        _by_name.update(dict.fromkeys(names, cls))

    @classmethod
    def _take_model(cls) -> None:
        """The model in ``Job[Model]`` is that of the param; ``param`` need not say it, and may say no other."""
        bases = (base for one in cls.__mro__ for base in one.__dict__.get("__orig_bases__", ()))
        args = (arg for base in bases if get_origin(base) is Job for arg in get_args(base))
        model = next((arg for arg in args if isinstance(arg, type) and issubclass(arg, BaseModel)), None)
        if model is None:
            return
        said = getattr(cls, "param", model)
        if said is not model:
            raise InvalidInput(f"param is {said!r}, and the class is a Job[{model.__name__}]; write the same model")
        cls.param = model  # type: ignore[attr-defined]

    @classmethod
    def _refuse_misspelt(cls) -> None:
        for name, value in vars(cls).items():
            is_data = not (name.startswith("_") or name.isupper() or callable(value) or hasattr(value, "__get__"))
            if is_data and name not in FIELDS and (near := close_to(name, FIELDS)):
                raise InvalidInput(f"job {_place(cls)}: {name} is no field of a job{near}")


OfType: TypeAlias = str | TaskType[P] | type[Job[P]]
"""A task type, as a program names it: by its name, or by what declares it."""

_by_name: dict[str, type[Job[Any]]] = {}
"""The jobs that belong to no app, by what they declare."""


def jobs_of(modules: set[str]) -> list[type[Job[Any]]]:
    """The jobs that these modules define and that belong to no app, in the order of their definition."""
    return [job for job in dict.fromkeys(_by_name.values()) if job.__module__ in modules]


def declare(job: type[Job[Any]], app: Rota) -> None:
    """Declare a job in an app. Raises InvalidInput, which names every fault, and NameTaken."""
    fields = {name: getattr(job, name) for name in FIELDS if hasattr(job, name)} | {"type": job.category}
    handler = _handler(job, fields.get("execution"))
    app.task(**fields)(handler)


def _handler(job: type[Job[Any]], execution: Any) -> Callable[[Any], Any]:
    run: Any = getattr(job, "run", None)
    if not callable(run):
        raise InvalidInput("it has no method run; write: async def run(self, ctx: NodeContext)")
    if abstract := [name for name in dir(job) if getattr(getattr(job, name, None), "__isabstractmethod__", False)]:
        raise InvalidInput(f"its method {abstract[0]} is abstract; write it, or class {job.__name__}(…, abstract=True)")
    try:
        inspect.signature(job).bind()
    except TypeError:
        raise InvalidInput("its __init__ must take no argument, since each run makes an object of its own") from None
    execution_of(job.category, MethodType(run, job), execution)

    def on_thread(ctx: Any) -> Any:
        return job().run(ctx)  # type: ignore[attr-defined]

    async def on_loop(ctx: Any) -> Any:
        return await job().run(ctx)  # type: ignore[attr-defined]

    is_async = inspect.iscoroutinefunction(function_of(run))
    handler: Callable[[Any], Any | Awaitable[Any]] = on_loop if is_async else on_thread
    return functools.update_wrapper(handler, run)


def _type_of(class_name: str) -> str:
    """The name of a task type from that of a class: ``HTTPFetch`` is ``HTTP_FETCH``."""
    return "_".join(_WORDS.findall(class_name)).upper()


def _place(job: type[Job[Any]]) -> str:
    return f"{job.__module__}.{job.__qualname__}"
