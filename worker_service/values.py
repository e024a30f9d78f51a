"""A handler's input and output, checked: its param as a model, its result as JSON text."""

from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from rota.shared.domain.errors import InvalidInput, InvalidParam
from rota.shared.domain.jsontext import json_text


def checked_param(node_type: str, model: type[BaseModel], given: Any) -> BaseModel:
    """The param as the node's model.

    Raises InvalidParam with every fault.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors())
        raise InvalidParam(f"param of {node_type}: {faults}") from None


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
    size = len(text.encode())
    if size > limit_bytes:
        raise InvalidInput(
            f"{node_type} returned {size:,} bytes of JSON; the limit is {limit_bytes:,} (ROTA_RESULT_LIMIT_BYTES): "
            "store large results elsewhere and return where"
        )
    return text
