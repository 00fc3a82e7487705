"""The ``[algorithm]`` table: its keys are the parameters of the algorithm that it names.

Names, parameters and defaults come from `pcfed.algorithms.registry`, so algorithms that users
have registered work in files, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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

from pcfed.algorithms import Algorithm, StepAlgorithm
from pcfed.algorithms.registry import (
    Parameter,
    algorithm_names,
    find_algorithm,
    is_required,
    parameters,
    to_mapping,
)
from pcfed.config.fields import (
    Count,
    CountOrZero,
    FileModel,
    KeyErrors,
    NonNegativeNumber,
    NumLocalSteps,
    PositiveNumber,
    invalid,
)
from pcfed.config.json_schema import Schema, rule_of, schema_of, toml_value
from pcfed.config.validation_errors import explain, suggest
from pcfed.errors import short_repr

DEFAULT_ALGORITHM = "PCFedSplit"

HAD_EXACT = ("PCFedAvg", "PCFedSplit")
"""With these names, or none, a file of an earlier version may have the key ``exact``."""

HELP = {
    "step": "The local step size γ.",
    "penalty": "The penalty ρ on the distance of a model from its set.",
    "PCFedSplit.prox": 'The length τ of the proximal steps; "auto" is balanced during training.',
    "PCFedSplit.relaxation": "The factor κ on the updates.",
    "prox": "The weight of the proximal term.",
    "server_step": "The step size of the server.",
    "own_step": 'The step size of own models; "auto" is that of the shared model.',
    "own_steps": "The number of gradient steps on an own model.",
    "constrained": "Whether own models are projected onto the agents' own sets.",
    "FedRep.own": "The slices [start, stop] of the parameters that are not shared.",
    "PerFedAvg.hessian_free": "Whether to approximate products with the Hessian.",
    "PerFedAvg.difference": "The distance of the two gradients of such a product.",
    "FedMiD.project_onto": 'A public set for all, such as "l1(2)"; "own": the agents\' own sets.',
    "ProxAL.penalty": "The penalty β of the augmented Lagrangian.",
    "ProxAL.prox": "The penalty ρ of the ADMM.",
    "ProxAL.inner_rounds": "The largest number of steps of an ADMM.",
    "ProxAL.tolerance": "The accuracy of the first ADMM.",
    "PFedHN.embedding": "The number of entries of an agent's embedding.",
    "PFedHN.hidden": "The width of the hidden layers of the hypernetwork.",
    "PFedHN.layers": "How many hidden layers follow the first one.",
    "PFedHN.seed": "The seed of the first hypernetwork and embeddings.",
}
"""What the parameters of our own algorithms mean, in one sentence each; with the name of the
algorithm where another one has a parameter of the same name."""

Slices = Annotated[
    Any, WithJsonSchema({"$comment": "a list of slices [start, stop]", "type": "array"})
]
"""Slices of the parameters, which the constructor checks."""

TYPES: dict[str, Any] = {
    "FedRep.own": Slices,
    "PCFedSplit.relaxation": Annotated[float, Field(gt=0, lt=2)],
    "FedProx.prox": NonNegativeNumber,
    "Ditto.prox": NonNegativeNumber,
    "PFedMe.prox": PositiveNumber,
    "PerFedAvg.difference": PositiveNumber,
    "server_step": PositiveNumber,
    "own_steps": NumLocalSteps,
    "ProxAL.prox": PositiveNumber,
    "ProxAL.inner_rounds": Count,
    "ProxAL.tolerance": NonNegativeNumber,
    "PFedHN.server_step": PositiveNumber,
    "PFedHN.embedding": Count,
    "PFedHN.hidden": Count,
    "PFedHN.layers": CountOrZero,
    "PFedHN.seed": CountOrZero,
}
"""Parameters whose annotation does not say which numbers are valid."""

SIMPLE_TYPES: dict[str, Any] = {"float": float, "int": int, "bool": bool, "str": str}
EXAMPLES: dict[str, list[Any]] = {"float": [0.1], "int": [1]}
ANNOTATIONS = ("default", "description", "examples")
"""Keys of a schema that do not restrict values."""


def _find(table: Mapping[str, Any], algorithm: type[Algorithm], name: str) -> Any:
    """Return the entry for a parameter of an algorithm or of a class that it inherits from."""
    names = (f"{each.__name__}.{name}" for each in algorithm.__mro__)
    return next((table[each] for each in (*names, name) if each in table), None)


def number_or_keyword(keywords: Sequence[str], *, zero: bool) -> Any:
    """Return the type of a number > 0, or ≥ 0, for which a file may also have a keyword."""
    number: Schema = {"type": "number", **({"minimum": 0} if zero else {"exclusiveMinimum": 0})}
    schema = {"anyOf": [number, {"enum": [*keywords]}]} if keywords else number
    rule = " or ".join([rule_of(number), *(f'"{keyword}"' for keyword in keywords)])

    def parse(value: Any) -> float | str:
        if isinstance(value, str) and value in keywords:
            return value
        try:
            number = float(value) if type(value) in (int, float) else float("nan")
        except OverflowError:
            number = float("nan")
        if not (0 < number < float("inf") or (number == 0 and zero)):
            advice = suggest(value, keywords, "give one such as 0.1.")
            raise invalid(f"must be {rule}, got {short_repr(value)}; {advice}")
        return number + 0.0

    return Annotated[Any, PlainValidator(parse), WithJsonSchema({"$comment": rule, **schema})]


def _schedule_keywords(algorithm: type[Algorithm]) -> tuple[str, ...]:
    """Return the keywords that steps and penalties of an algorithm may have in files."""
    return algorithm.keywords if issubclass(algorithm, StepAlgorithm) else ()


def _type(algorithm: type[Algorithm], parameter: Parameter, keywords: Sequence[str]) -> Any:
    """Return the type of a parameter in files."""
    if parameter.type in ("Prox", "OwnStep"):
        return number_or_keyword(["auto"], zero=False)
    if parameter.type == "Schedule":
        return number_or_keyword(keywords, zero=parameter.name != "step")
    # The constructor checks what is not a simple type.
    return _find(TYPES, algorithm, parameter.name) or SIMPLE_TYPES.get(parameter.type, Any)


@cache
def _table_model(algorithm: type[Algorithm], keywords: tuple[str, ...]) -> type[FileModel]:
    """Return the model of the table for one algorithm, with keywords for steps and penalties."""
    keys: dict[str, Any] = {"name": (str, Field(default=DEFAULT_ALGORITHM))}
    for each in parameters(algorithm):
        text = _find(HELP, algorithm, each.name) or f"A parameter of {algorithm.__name__}."
        default, has_auto = each.default, each.type == "Schedule" and "auto" in keywords
        if has_auto:
            text += ' "auto" is replaced by a number when the training begins.'
        if is_required(each):
            default = "auto" if has_auto else ...
        examples = EXAMPLES.get(each.type) if default is ... else None
        options = Field(default=default, description=text, examples=examples)
        keys[each.name] = _type(algorithm, each, keywords), options
    return create_model("AlgorithmTable", __base__=FileModel, **keys)


def parse_algorithm(table: Any) -> Algorithm:
    """Return the algorithm that a table describes.

    Examples
    --------
    >>> parse_algorithm({})
    PCFedSplit(prox='auto', relaxation=1.8)
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
    model = _table_model(algorithm, _schedule_keywords(algorithm))
    if "exact" in table and "exact" not in model.model_fields and name in HAD_EXACT:
        raise invalid(_replacement_of_exact(table))
    unknown = {key: text for key in table if (text := _unknown_key(table, key, name, model))}
    errors = [("", text) for text in unknown.values()]
    options: dict[str, Any] = {}
    try:
        known = {key: value for key, value in table.items() if key not in unknown}
        options = model.model_validate(known).model_dump()
    except ValidationError as error:
        errors += explain(error, model)
    if errors:
        raise KeyErrors(*errors)
    del options["name"]
    try:
        return algorithm(**options)
    except (ArithmeticError, TypeError) as error:  # an algorithm of a user may raise anything
        raise ValueError(f"{type(error).__name__}: {error}.") from None


def _replacement_of_exact(table: Mapping[str, Any]) -> str:
    """Return what to do with the key ``exact``, which earlier versions had."""
    if table["exact"] is False:
        return (
            "has no key 'exact' any more; remove it, and give name = \"PCFedAvg\", which is the "
            "algorithm of the paper."
        )
    others = [key for key in ("exact", "step", "penalty") if key in table]
    return (
        "has no key 'exact' any more; give name = \"PCFedSplit\", which replaces it, and remove "
        f"{' and '.join([', '.join(others[:-1]), others[-1]] if others[1:] else others)}."
    )


def _unknown_key(
    table: Mapping[str, Any], key: str, name: str, model: type[FileModel]
) -> str | None:
    """Return what to do with a key that other algorithms have; None if there is no such problem."""
    owners = [
        each
        for each in algorithm_names()
        if key in (parameter.name for parameter in parameters(find_algorithm(each)))
    ]
    if key in model.model_fields or not owners:
        return None
    chosen = f"{name!r}" if "name" in table else f"{name!r}, the default"
    return (
        f"has no key {key!r} if name is {chosen}; remove it, or choose an algorithm that has it: "
        f"{', '.join(owners[:8])}."
    )


# -- the schema, for all algorithms ---------------------------------------------------------------


def _table_schema(*, keywords: bool) -> Schema:
    """Return the schema of the table with the parameters of all algorithms."""
    names = sorted(algorithm_names(), key=lambda name: name != DEFAULT_ALGORITHM)
    found: dict[str, dict[str, Schema]] = {}
    for name in names:
        algorithm = find_algorithm(name)
        model = _table_model(algorithm, _schedule_keywords(algorithm) if keywords else ())
        for key, schema in schema_of(model)["properties"].items():
            found.setdefault(key, {})[name] = schema
    del found["name"]
    keys: Schema = {
        "name": {"enum": names, "default": DEFAULT_ALGORITHM, "description": "The algorithm."}
    }
    keys |= {key: _merged(schemas) for key, schemas in found.items()}
    return {"type": "object", "properties": keys, "additionalProperties": False}


def _merged(schemas: Mapping[str, Schema]) -> Schema:
    """Return one schema for the parameters of the same name of several algorithms."""
    rules = _grouped({name: rule_of(schema) for name, schema in schemas.items()})
    types = [
        {key: value for key, value in schemas[names[0]].items() if key not in ANNOTATIONS}
        for names in rules.values()
    ]
    merged = types[0]
    if len(types) > 1:
        options = [each for one in types for each in one.get("anyOf", [one])]
        merged = {"$comment": _per_algorithm(rules), "anyOf": _unique(options)}
    texts = _grouped({name: schema["description"] for name, schema in schemas.items()})
    about = [f"{', '.join(names)}: {text[0].lower()}{text[1:]}" for text, names in texts.items()]
    defaults = _grouped(
        {
            name: toml_value(schema["default"]) if "default" in schema else "must be given"
            for name, schema in schemas.items()
        }
    )
    if len(defaults) > 1:
        about.append(f"Default: {_per_algorithm(defaults)}.")
    elif "must be given" in defaults:
        about.append("It must be given.")
    else:
        merged["default"] = next(iter(schemas.values()))["default"]
    return {**merged, "description": " ".join(about)}


def _grouped(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names that have the same text, for each text."""
    groups: dict[str, list[str]] = {}
    for name, text in texts.items():
        groups.setdefault(text, []).append(name)
    return groups


def _per_algorithm(groups: Mapping[str, list[str]]) -> str:
    """Return all texts with the names of their algorithms: "0.0 with FedAvg; 1.0 with Local"."""
    return "; ".join(f"{text} with {', '.join(names)}" for text, names in groups.items())


def _unique(schemas: list[Schema]) -> list[Schema]:
    return [each for i, each in enumerate(schemas) if each not in schemas[:i]]


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
