"""A handler's input and output, checked: its param as a model and as a task declares it, its result as JSON text."""

import json
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError

from rota.shared.domain.errors import InvalidInput, InvalidParam
from rota.shared.domain.jsontext import json_text
from rota.shared.domain.nodes import check_schema
from rota.worker_service.param_json import json_of, origin_of, read_param
from rota.worker_service.param_schema import schema_of


def checked_model(task_type: str, given: Any) -> type[BaseModel] | None:
    """The model of a task type's param, as its author gives it.

    Raises InvalidInput for anything else than a model or None.
    """
    if given is None or (isinstance(given, type) and issubclass(given, BaseModel)):
        return given
    said = given.__name__ if isinstance(given, type) else repr(given)
    raise InvalidInput(f"task type {task_type}: param must be a pydantic model, a subclass of BaseModel, not {said}")


def checked_param(node_type: str, model: type[BaseModel], given: Any) -> BaseModel:
    """The param as the node's model.

    Raises InvalidParam with every fault.
    """
    try:
        return read_param(model, given)
    except ValidationError as error:
        raise InvalidParam(f"param of {node_type}: {_faults(error)}") from None


def declared_param(task: str, model: type[BaseModel] | None, given: Any, argument: str) -> Any:
    """The param that code declares for a task, checked by its type's model. A pydantic model becomes its JSON.

    ``argument`` is where the caller gives the param. Raises InvalidInput, which names the task and the key.
    """
    if isinstance(given, type):
        raise InvalidInput(
            f"task {task!r}: {argument} is the class {given.__name__}; give a value, {given.__name__}(…)"
        )
    if isinstance(given, BaseModel):
        if model is not None and not issubclass(type(given), origin_of(model)):
            kind = type(given).__name__
            raise InvalidParam(f"task {task!r}: {argument} is a {kind}, where its type takes a {model.__name__}")
        try:
            given = json_of(given, argument)
        except InvalidInput as error:
            raise InvalidInput(f"task {task!r}: {error}") from None
    value = {} if given is None else given
    if model is None or not isinstance(value, dict) or "nodes" in value:  # listed nodes have models of their own
        return given
    try:
        read_param(model, value)
        schema = schema_of(task, model)
    except (PydanticUserError, InvalidInput):  # of a class that is defined later, or of none: told when all is loaded
        return given
    except ValidationError as error:
        missing = [f"{e['loc'][0]}=…" for e in error.errors() if e["type"] == "missing" and len(e["loc"]) == 1]
        example = f"{model.__name__}({', '.join(missing) or '…'})"
        advice = f"; give a {argument}, for example {example}" if given is None else ""
        raise InvalidParam(f"param of task {task!r}: {_faults(error)}{advice}") from None
    check_schema(schema, value, f"param of task {task!r}")
    return given


def _faults(error: ValidationError) -> str:
    """Each fault with its key. A fault of the whole value has none."""
    found = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors(include_url=False)]
    return "; ".join(f"{key}: {said}" if key else said.removeprefix("Value error, ") for key, said in found)


ALIKE = (str, int, bool, type(None))
"""Values of exactly these types are what their JSON is read as."""


def read_again(result: Any, text: str) -> Any:
    """A handler's result as it is read from its JSON ``text``.

    read_again((1, 2), "[1,2]")   # [1, 2]
    """
    return result if type(result) in ALIKE else json.loads(text)


def result_text(node_type: str, result: Any, limit_bytes: int) -> str:
    """A handler's result as JSON text. A pydantic model becomes its JSON.

    Raises InvalidInput when the result is not JSON, or is larger than ``limit_bytes``.
    """
    try:
        text = json_text(result.model_dump(mode="json") if isinstance(result, BaseModel) else result)
    except (InvalidInput, PydanticSerializationError) as error:
        raise InvalidInput(
            f"{node_type} returned what is not JSON: {error}; return dicts, lists, strings, numbers, booleans or None"
        ) from None
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit_bytes:
        raise InvalidInput(
            f"{node_type} returned {size:,} bytes of JSON; the limit is {limit_bytes:,} (ROTA_RESULT_LIMIT_BYTES): "
            "store large results elsewhere and return where"
        )
    return text
