"""The ``[algorithm]`` table: its keys are the parameters of the algorithm that it names.

Names, parameters and defaults come from `pcfed.algorithms.registry`, so algorithms that users
have registered work in files, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    create_model,
)
from pydantic.json_schema import JsonSchemaValue

from pcfed.algorithms import Algorithm
from pcfed.algorithms.registry import (
    Parameter,
    algorithm_names,
    find_algorithm,
    is_required,
    parameters,
    to_mapping,
)
from pcfed.config.fields import FileModel, KeyErrors, invalid
from pcfed.config.json_schema import Schema, schema_of
from pcfed.config.validation_errors import explain, suggest
from pcfed.errors import short_repr

DEFAULT_ALGORITHM = "PCFedAvg"
FILE_DEFAULTS = {("PCFedAvg", "exact"): True}
"""Parameters whose default in files is not that of the constructor."""

HELP = {
    "step": "Local step size γ.",
    "penalty": "Penalty ρ on the distance of a model from its set.",
    "exact": "Whether to correct the errors that the penalty and several local steps cause, so "
    "that the models converge to the optimum; false is the algorithm of the paper.",
    "prox": "Weight of the proximal term of FedProx; must be given with FedProx.",
    "server_step": "Step size of the server in SCAFFOLD.",
}
"""What the parameters of our own algorithms mean."""

EXAMPLES: dict[Any, list[Any]] = {float: [0.1], int: [1]}


def _schedule_type(algorithm: type[Algorithm], name: str) -> Any:
    """Return the type of a step or a penalty in a file: a number or a keyword."""
    keywords = algorithm.keywords
    bound = {"exclusiveMinimum": 0} if name == "step" else {"minimum": 0}
    number_rule = f"a number {'>' if name == 'step' else '≥'} 0"
    rule = " or ".join([number_rule, *(f'"{keyword}"' for keyword in keywords)])

    def parse(value: Any) -> float | str:
        if isinstance(value, str) and value in keywords:
            return value
        try:
            number = float(value) if type(value) in (int, float) else float("nan")
        except OverflowError:
            number = float("nan")
        if not (0 < number < float("inf") or (number == 0 and name != "step")):
            advice = suggest(value, keywords, "give one such as 0.1.")
            raise invalid(f"must be {rule}, got {short_repr(value)}; {advice}")
        return number + 0.0

    schema = {"$comment": rule, "anyOf": [{"type": "number", **bound}, {"enum": [*keywords]}]}
    return Annotated[Any, PlainValidator(parse), WithJsonSchema(schema)]


def _default(algorithm: type[Algorithm], parameter: Parameter) -> Any:
    """Return the default of a parameter in files; ``...`` where it must be given."""
    key = (algorithm.__name__, parameter.name)
    if key in FILE_DEFAULTS:
        return FILE_DEFAULTS[key]
    if not is_required(parameter):
        return parameter.default
    return "auto" if parameter.type == "Schedule" and "auto" in algorithm.keywords else ...


def _table_model(algorithm: type[Algorithm]) -> type[FileModel]:
    """Return the model of the table for one algorithm."""
    simple = {"float": float, "int": int, "bool": bool, "str": str}
    keys: dict[str, Any] = {"name": (str, Field(default=DEFAULT_ALGORITHM))}
    for each in parameters(algorithm):
        if each.type == "Schedule":
            kind = _schedule_type(algorithm, each.name)
        else:  # the constructor checks what is not a simple type
            kind = simple.get(each.type, Any)
        text = HELP.get(each.name, f"A parameter of {algorithm.__name__}.")
        options: dict[str, Any] = {"description": text, "examples": EXAMPLES.get(kind)}
        keys[each.name] = kind, Field(default=_default(algorithm, each), **options)
    return create_model("AlgorithmTable", __base__=FileModel, **keys)


def parse_algorithm(table: Any) -> Algorithm:
    """Return the algorithm that a table describes.

    Examples
    --------
    >>> parse_algorithm({})
    PCFedAvg(step='auto', penalty='auto', exact=True)
    >>> parse_algorithm({"name": "FedAvg", "step": 0.1})
    FedAvg(step=0.1, penalty=0.0)
    """
    if isinstance(table, Algorithm):
        return table
    if not isinstance(table, Mapping):
        raise invalid(
            f"must be a table, got {short_repr(table)}; write it as [algorithm] and keys."
        )
    name = table.get("name", DEFAULT_ALGORITHM)
    if not isinstance(name, str) or name not in algorithm_names():
        raise invalid(
            f"must be one of {', '.join(algorithm_names())}, got {short_repr(name)}; "
            f"{suggest(name, algorithm_names(), 'choose one of them.')}",
            key="name",
        )
    algorithm = find_algorithm(name)
    model = _table_model(algorithm)
    try:
        options = model.model_validate(dict(table)).model_dump()
    except ValidationError as error:
        raise KeyErrors(*explain(error, model)) from None
    del options["name"]
    try:
        return algorithm(**options)
    except (ArithmeticError, TypeError) as error:  # an algorithm of a user may raise anything
        raise ValueError(f"{type(error).__name__}: {error}.") from None


def _table_schema(*, keywords: bool) -> Schema:
    """Return the schema of the table with the parameters of all algorithms."""
    names = sorted(algorithm_names(), key=lambda name: name != DEFAULT_ALGORITHM)
    keys: Schema = {
        "name": {"enum": names, "default": DEFAULT_ALGORITHM, "description": "The algorithm."}
    }
    found: dict[str, list[Schema]] = {}
    for name in names:
        for key, schema in schema_of(_table_model(find_algorithm(name)))["properties"].items():
            found.setdefault(key, []).append(schema)
    for key, (first, *others) in found.items():
        if not keywords and "anyOf" in first:
            first = {**first["anyOf"][0], "description": first["description"]}
        elif any(schema.get("default") != first.get("default") for schema in others):
            del first["default"]
            first["description"] += " The default depends on the algorithm."
        if keywords and "anyOf" in first:
            first["description"] += ' "auto" is replaced by a number when the run begins.'
        keys.setdefault(key, first)
    return {"type": "object", "properties": keys, "additionalProperties": False}


@dataclass(frozen=True)
class AlgorithmSchema:
    """The schema of the table, made when it is needed, with all algorithms registered by then."""

    keywords: bool = True  # whether steps and penalties may be keywords such as "auto"

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema; pydantic calls this."""
        return _table_schema(keywords=self.keywords)


AlgorithmField = Annotated[
    Algorithm, PlainValidator(parse_algorithm), PlainSerializer(to_mapping), AlgorithmSchema()
]
