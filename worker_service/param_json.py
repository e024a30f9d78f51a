"""A param between its model and its JSON: what code gives as a model, a run must read as the same model."""

from collections.abc import Mapping
from typing import Any

from pydantic import AliasChoices, BaseModel, RootModel, ValidationError
from pydantic_core import PydanticSerializationError

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import json_text

Path = list[str | int]
"""The keys of objects and the places in lists that lead to a value, from the outside in."""


def read_param(model: type[BaseModel], given: Any) -> BaseModel:
    """A param's JSON as its model. Raises ValidationError.

    A strict model may refuse it as Python's value, and take it as JSON: a list for a tuple, a text for a date.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        try:
            return model.model_validate_json(json_text(given))
        except (ValidationError, InvalidInput):
            raise error from None


def json_of(model: BaseModel, name: str) -> Any:
    """The JSON from which a run reads this very model: by its aliases, where it has some, and no computed fields.

    Raises InvalidInput if no JSON of it does that: it has a secret, or a validator that changes its own result.
    ``name`` is what the error calls it.
    """
    try:
        plain = model.model_dump(mode="json", by_alias=False, round_trip=True)
        by_alias = model.model_dump(mode="json", by_alias=True, round_trip=True)
    except PydanticSerializationError as error:
        raise InvalidInput(f"{name}: {error}") from None
    json_text(plain, name)  # raises for what is no JSON
    forms = (_as_read(model, plain), plain, by_alias)
    for form in forms:
        if _gives(form, model):
            return form
    kind = type(model).__name__
    advice = f"give a dict from which {kind} reads what you mean"
    raise InvalidInput(f"{name}: a run would read another {kind} from its JSON; {advice}")


def origin_of(model: type[BaseModel]) -> type[BaseModel]:
    """The generic model that this one is made of, ``Page`` of ``Page[int]``; or itself."""
    origin: type[BaseModel] | None = model.__pydantic_generic_metadata__["origin"]
    return origin or model


def _gives(form: Any, model: BaseModel) -> bool:
    try:
        read = read_param(type(model), form)
    except ValidationError:
        return False
    return read.model_dump(round_trip=True) == model.model_dump(round_trip=True)


def _as_read(value: Any, dumped: Any) -> Any:
    """What was dumped by the names of fields, by the names under which they are read."""
    if isinstance(value, RootModel):
        return _as_read(value.root, dumped)
    if isinstance(value, BaseModel) and isinstance(dumped, dict):
        renamed: dict[str | int, Any] = {}
        for name, part in dumped.items():
            *outer, last = next(filter(_is_of_objects, paths_of(type(value), name)), [name])
            inner = renamed
            for key in outer:
                inner = inner.setdefault(key, {})
            inner[last] = _as_read(getattr(value, name, None), part)
        return renamed
    if isinstance(value, Mapping) and isinstance(dumped, dict) and len(value) == len(dumped):
        return {key: _as_read(item, part) for item, (key, part) in zip(value.values(), dumped.items(), strict=True)}
    if isinstance(value, list | tuple | set | frozenset) and isinstance(dumped, list) and len(value) == len(dumped):
        return [_as_read(item, part) for item, part in zip(value, dumped, strict=True)]
    return dumped


def _is_of_objects(path: Path) -> bool:
    return all(isinstance(key, str) for key in path)


def paths_of(model: type[BaseModel], name: str) -> list[Path]:
    """The keys, from the outside in, under which a model reads a field; the first is best."""
    config = model.model_config
    field = model.model_fields.get(name)
    alias = None if field is None or config.get("validate_by_alias") is False else field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [] if alias is None else [alias]
    paths: list[Path] = [[one] if isinstance(one, str) else list(one.path) for one in choices]
    by_name = not paths or config.get("validate_by_name") or config.get("populate_by_name")
    return [*paths, [name]] if by_name and [name] not in paths else paths
