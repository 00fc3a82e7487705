"""Privacy budgets in files, and what they exclude: everything that is computed from records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from pcfed.config.fields import WrongKey, invalid
from pcfed.errors import short_repr
from pcfed.privacy import Privacy, why_not_secret
from pcfed.privacy.budget import MAX_EPSILON

if TYPE_CHECKING:
    from pcfed.config.train_file import TrainFile

BUDGET = "a table such as {epsilon = 2.0, delta = 1e-5}"
KEYS = ("epsilon", "delta", "clip", "feature_norm")


def _parse_budget(value: Any) -> Privacy:
    if isinstance(value, Privacy):
        return value
    if not isinstance(value, Mapping) or not {"epsilon", "delta"} <= value.keys() <= {*KEYS}:
        raise invalid(
            f"must be {BUDGET}, also with clip and feature_norm, got {short_repr(value)}; give "
            "epsilon and delta."
        )
    try:
        return Privacy(**value)
    except ValueError as error:
        raise invalid(f"is not valid: {str(error).removeprefix('Privacy: ')}") from None


def format_budget(privacy: Privacy) -> dict[str, float]:
    """Return a budget as files write it."""
    return {key: value for key, value in vars(privacy).items() if value is not None}


Budget = Annotated[
    Privacy,
    PlainValidator(_parse_budget),
    PlainSerializer(format_budget),
    WithJsonSchema(
        {
            "$comment": BUDGET,
            "type": "object",
            "properties": {
                "epsilon": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": MAX_EPSILON,
                    "description": "The guarantee ε for the whole training.",
                },
                "delta": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "exclusiveMaximum": 1,
                    "description": "The probability δ, far below one over the number of rows.",
                },
                "clip": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "default": 1.0,
                    "description": "The largest norm of the gradient of one row.",
                },
                "feature_norm": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "description": "The largest norm of a row of features; longer rows are scaled "
                    "down. It must not be chosen from the data.",
                },
            },
            "required": ["epsilon", "delta"],
            "additionalProperties": False,
        }
    ),
]


def privacy_errors(file: TrainFile) -> Iterator[WrongKey]:
    """Yield what is not possible in a train.toml where an agent has a privacy budget."""
    budgets = [file.defaults.privacy, *(agent.privacy for agent in file.agents.values())]
    if not any(budgets):
        return
    data, training, model = file.data, file.training, file.model
    why = "where an agent has a privacy budget, because it is computed from the rows"
    if data.standardize:
        yield (
            "data.standardize",
            f"must be false {why}, got true; scale the columns by public numbers beforehand.",
        )
    if data.categories is not None:
        yield (
            "data.categories",
            f"must be left out {why}, got {data.categories!r}; write a column for each level.",
        )
    if data.missing != "error":
        yield (
            "data.missing",
            f'must be "error" {why}, got {data.missing!r}; complete the rows beforehand.',
        )
    if training.gap is not None:
        yield (
            "training.gap",
            f"must be left out {why}, got {training.gap}; give the number of rounds.",
        )
    needs_bound = not model.is_torch and model.intercept and not model.output.is_classification
    if needs_bound and model.intercept_bound is None:
        yield (
            "model.intercept_bound",
            f"must be given {why} otherwise; give a number that is larger than all targets.",
        )
    couplings: dict[str, object] = {"defaults": file.defaults.coupling}
    couplings |= {f"agents.{name}": agent.coupling for name, agent in file.agents.items()}
    for place, coupling in couplings.items():
        if coupling == "auto":
            yield (
                f"{place}.coupling",
                f"must be a number {why}, got 'auto'; give one such as 0.1.",
            )
    if (reason := why_not_secret(training.seed)) is not None:
        yield "training.seed", reason
