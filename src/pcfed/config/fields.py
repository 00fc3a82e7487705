"""The base class of all files, and the types of the values in them.

A type consists of its check and its JSON schema. The ``$comment`` of a schema is the rule in words,
which error messages and the reference show; without it, the rule is derived from the schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pcfed.arrays import Array
from pcfed.errors import short_repr
from pcfed.losses.kinds import LINEAR_KINDS, MODEL_KINDS, LinearKind, ModelKind
from pcfed.sets import ConvexSet, WarmStart, parse_set

MAX_INTEGER = 2**63 - 1
"""The largest integer of TOML."""

MAX_LOCAL_STEPS = 10**6
"""The largest number of local steps in a round; the rows of all their batches are drawn at once."""


WrongKey = tuple[str, str]
"""A key, relative to what is checked, and the rest of the sentence on it: ``("target", "is missing;
name the column to predict.")``. The empty key is what is checked itself."""


class KeyErrors(ValueError):
    """What is wrong with some keys of a table, for checks that pydantic does not have."""

    def __init__(self, *errors: WrongKey) -> None:
        super().__init__(" ".join(text for _, text in errors))
        self.errors = errors


def invalid(text: str, key: str = "") -> KeyErrors:
    """Return the error for one key; without a key, for the value that is checked itself."""
    return KeyErrors((key, text))


class FileModel(BaseModel):
    """A file, or a table of a file: immutable, without conversions, without unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if errors := tuple(self._errors()):
            raise KeyErrors(*errors)
        return self

    def _errors(self) -> Iterable[WrongKey]:
        """Yield what is wrong with keys that are valid one by one."""
        return ()


def _without_sign(value: float) -> float:
    """Return 0 for −0, so that both have the same digest."""
    return value + 0.0


Count = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
NumLocalSteps = Annotated[int, Field(ge=1, le=MAX_LOCAL_STEPS)]
PositiveNumber = Annotated[float, Field(gt=0)]
NonNegativeNumber = Annotated[float, Field(ge=0), AfterValidator(_without_sign)]
Fraction = Annotated[float, Field(ge=0, lt=1), AfterValidator(_without_sign)]
UnitInterval = Annotated[float, Field(ge=0, le=1), AfterValidator(_without_sign)]
Text = Annotated[str, Field(pattern=r"\S")]

PORTION = "a float in (0, 1] or an integer ≥ 1"


def _parse_portion(value: Any) -> float | int:
    """Return a share or a number; they differ by their type only: 1.0 is all, 1 is one."""
    if isinstance(value, float) and 0 < value <= 1:
        return value
    if type(value) is int and 1 <= value <= MAX_INTEGER:
        return value
    raise invalid(
        f"must be {PORTION}, got {short_repr(value)}; give 1.0 for all, 0.1 for a tenth or 32 for "
        "32."
    )


Portion = Annotated[
    float | int,
    PlainValidator(_parse_portion),
    WithJsonSchema(
        {
            "$comment": PORTION,
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                {"type": "integer", "minimum": 1},
            ],
        }
    ),
]


def parse_names(value: Any, min_names: int = 1) -> tuple[str, ...]:
    """Return a list of different names as a tuple."""
    is_list = isinstance(value, (list, tuple)) and len(value) >= min_names
    if not is_list or not all(isinstance(name, str) for name in value):
        raise invalid(
            f'must be a list of names, got {short_repr(value)}; give one such as ["a", "b"].'
        )
    for name, times in Counter(value).most_common(1):
        if times > 1:
            raise invalid(
                f"must be different names, got {short_repr(name)} {times} times; give it once."
            )
    return tuple(value)


NAMES_SCHEMA = {
    "$comment": "a list of names",
    "type": "array",
    "items": {"type": "string"},
    "uniqueItems": True,
}
Names = Annotated[
    tuple[str, ...],
    PlainValidator(parse_names),
    PlainSerializer(list),
    WithJsonSchema({**NAMES_SCHEMA, "minItems": 1}),
]


def check_agent_name(name: str) -> str:
    """Return an agent's name if it can be shown in messages and tables."""
    if not (0 < len(name) <= 80 and name.isprintable() and name == name.strip()):
        raise ValueError(
            "the name of an agent must be 1 to 80 printable characters without spaces "
            f"around them, got {short_repr(name)}; rename it."
        )
    return name


AgentName = Annotated[str, AfterValidator(check_agent_name)]


@dataclass(frozen=True, eq=False, repr=False)
class LayerSets(ConvexSet):
    """One set per named parameter of a module: ``{blocks = {"conv1.weight" = "l1(5)"}}``.

    The positions of the parameters are known only when the module has been loaded; then
    `pcfed.sets.Blocks.for_module` makes a set of flat vectors of it.
    """

    sets: Mapping[str, ConvexSet]

    @property
    def spec(self) -> str:
        """The set of every parameter, as files write them."""
        return ", ".join(f"{name}: {member.spec}" for name, member in self.sets.items())

    def _check_length(self, where: str, n: int) -> None:
        raise self._needs_module()

    def _project(self, x: Array, warm_start: WarmStart | None) -> Array:
        raise self._needs_module()

    def _needs_module(self) -> ValueError:
        """Return the error for models that are not PyTorch modules."""
        return ValueError(
            f'blocks by names such as {next(iter(self.sets))!r} need model.kind = "torch"; for '
            'other models give slices such as "0:10".'
        )


CONSTRAINT = 'a convex set such as {l1 = 5} or "l1(5)"'


def _parse_constraint(value: Any) -> ConvexSet:
    """Return what `pcfed.sets.parse_set` reads, or one set per parameter of a module."""
    if not isinstance(value, (str, Mapping, ConvexSet)):
        raise invalid(f"must be {CONSTRAINT}, got {short_repr(value)}; give a set.")
    blocks = value.get("blocks") if isinstance(value, Mapping) and len(value) == 1 else None
    try:
        if not isinstance(blocks, Mapping) or not blocks or any(":" in str(key) for key in blocks):
            return parse_set(value)
        return LayerSets({str(name): parse_set(each) for name, each in blocks.items()})
    # Constructors raise errors of many types for values of the wrong type.
    except (ArithmeticError, AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"its form is not valid ({type(error).__name__}: {error}).") from None


def format_constraint(constraint: ConvexSet) -> str | dict[str, dict[str, str]]:
    """Return a set as a value that a file may have."""
    if isinstance(constraint, LayerSets):
        return {"blocks": {name: str(each) for name, each in constraint.sets.items()}}
    return str(constraint)


Constraint = Annotated[
    ConvexSet,
    PlainValidator(_parse_constraint),
    PlainSerializer(format_constraint),
    WithJsonSchema(
        {
            "$comment": CONSTRAINT,
            "anyOf": [
                {"type": "string"},
                {"type": "object", "minProperties": 1, "maxProperties": 1},
            ],
        }
    ),
]


def _parse_kind(value: Any) -> ModelKind:
    """Return the kind of model that a name stands for."""
    name = value.name if isinstance(value, ModelKind) else value
    if not isinstance(name, str) or name not in MODEL_KINDS:
        raise PydanticCustomError("model_kind", "unknown kind")  # the schema has the sentence
    return MODEL_KINDS[name]


def _parse_linear_kind(value: Any) -> LinearKind:
    kind = _parse_kind(value)
    if not isinstance(kind, LinearKind):
        raise PydanticCustomError("model_kind", "not a linear kind")
    return kind


def describe_kinds(kinds: Mapping[str, ModelKind]) -> str:
    """Return names and purposes: "softmax for labels, logistic for two labels"."""
    return ", ".join(f"{kind.name} for {kind.purpose}" for kind in kinds.values())


AnyKind = Annotated[
    ModelKind,
    PlainValidator(_parse_kind),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "enum": [*MODEL_KINDS]}),
]
AnyLinearKind = Annotated[
    LinearKind,
    PlainValidator(_parse_linear_kind),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "enum": [*LINEAR_KINDS]}),
]
