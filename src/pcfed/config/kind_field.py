"""The key ``kind`` of a model: a name in files, a `ModelKind` in the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from pcfed.losses.kinds import LINEAR_KINDS, MODEL_KINDS, LinearKind, ModelKind

Kind = TypeVar("Kind", bound=ModelKind)


def _parser(kinds: Mapping[str, Kind]) -> Callable[[Any], Kind]:
    """Return a function that finds a kind by its name."""

    def parse(value: Any) -> Kind:
        name = value.name if isinstance(value, ModelKind) else value
        if not isinstance(name, str) or name not in kinds:
            raise PydanticCustomError("model_kind", "unknown kind")  # the schema has the sentence
        return kinds[name]

    return parse


def describe_kinds(kinds: Mapping[str, ModelKind]) -> str:
    """Return names and purposes: "softmax for labels, logistic for two labels"."""
    return ", ".join(f"{kind.name} for {kind.purpose}" for kind in kinds.values())


AnyKind = Annotated[
    ModelKind,
    PlainValidator(_parser(MODEL_KINDS)),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "enum": [*MODEL_KINDS]}),
]
AnyLinearKind = Annotated[
    LinearKind,
    PlainValidator(_parser(LINEAR_KINDS)),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "enum": [*LINEAR_KINDS]}),
]
