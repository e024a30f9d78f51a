"""The JSON schema of a param: by it a param is checked where the app's code is not."""

from typing import Any, cast

from pydantic import BaseModel
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from rota.shared.domain.errors import InvalidInput
from rota.worker_service.param_json import Path, paths_of


def schema_of(node_type: str, model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a param. It takes whatever names the model takes.

    Raises InvalidInput for a model that JSON cannot describe.
    """
    try:
        return model.model_json_schema(schema_generator=_AllNames)
    except PydanticUserError as error:
        raise InvalidInput(
            f"{node_type}: its param model {model.__name__} has no JSON schema: {error.message}"
        ) from None


class _AllNames(GenerateJsonSchema):
    """Describes a field by each name under which its model reads it; pydantic describes it by the first."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """The schema of a model."""
        described = super().model_schema(schema)
        model = cast("type[BaseModel]", schema["cls"])
        for name in model.model_fields:
            paths = paths_of(model, name)
            if len(paths) > 1 or len(paths[0]) > 1:
                _add(described, name, paths)
        return described


def _add(described: JsonSchemaValue, field: str, paths: list[Path]) -> None:
    """Let a field be given by each of its names. One that may lie deeper is not required: the model checks it."""
    properties, required = described.get("properties", {}), described.get("required", [])
    names = [str(path[0]) for path in paths if len(path) == 1]
    known = next((name for name in [*names, field] if name in properties), None)
    if known is None:
        return
    properties.update(dict.fromkeys(names, properties[known]))
    for path in paths:
        properties.setdefault(str(path[0]), {})
    if known not in required:
        return
    required.remove(known)
    if not required:
        del described["required"]
    if len(names) == len(paths):
        described.setdefault("allOf", []).append({"anyOf": [{"required": [name]} for name in names]})
