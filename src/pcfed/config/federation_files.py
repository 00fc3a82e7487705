"""The files of a federation: server.toml, which is public, and agent.toml, which stays private."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from pcfed.algorithms import Algorithm
from pcfed.algorithms.grid import DEFAULT_STEP, MAX_AGENTS, check_step
from pcfed.algorithms.registry import algorithm_names, parameters, to_mapping
from pcfed.config.algorithm_field import AlgorithmSchema, parse_algorithm
from pcfed.config.fields import (
    MAX_INTEGER,
    NAMES_SCHEMA,
    AgentName,
    AnyLinearKind,
    Constraint,
    Count,
    CountOrZero,
    FileModel,
    Fraction,
    KeyErrors,
    Names,
    NonNegativeNumber,
    NumLocalSteps,
    Portion,
    PositiveNumber,
    Text,
    UnitInterval,
    WrongKey,
    check_agent_name,
    describe_kinds,
    invalid,
    parse_names,
)
from pcfed.config.imports import import_modules
from pcfed.config.overrides import parse_overrides
from pcfed.config.personalization import (
    DEFAULT_COUPLING,
    DEFAULT_PERSONALIZATION,
    NumericCoupling,
    center_errors,
    default_center,
)
from pcfed.config.privacy import Budget
from pcfed.config.train_file import Dtype
from pcfed.config.validation_errors import read_toml, suggest, validate_file
from pcfed.errors import short_repr
from pcfed.losses.kinds import LINEAR_KINDS
from pcfed.problem import Center
from pcfed.sets import WholeSpace

MIN_SECURE = 3
"""With so many agents there is a secure sum by default."""

ROSTER = "a list of names or an integer ≥ 1"
Metric = Literal["loss", "accuracy", "infeasibility", "rows"]
METRICS: tuple[str, ...] = get_args(Metric)
"""What an agent's owner may allow the agent to report, all of its own model on its own data."""


def _parse_roster(value: Any) -> tuple[str, ...] | int:
    if isinstance(value, (list, tuple)):
        return tuple(check_agent_name(name) for name in parse_names(value))
    if type(value) is int and 1 <= value <= MAX_INTEGER:
        return value
    text = f'must be {ROSTER}, got {short_repr(value)}; give one such as ["north", "south"].'
    raise invalid(text)


Roster = Annotated[
    tuple[str, ...] | int,
    PlainValidator(_parse_roster),
    WithJsonSchema(
        {
            "$comment": ROSTER,
            "anyOf": [{**NAMES_SCHEMA, "minItems": 1}, {"type": "integer", "minimum": 1}],
        }
    ),
]


def _parse_algorithm(table: Any) -> Algorithm:
    """Return an algorithm whose steps and penalties are numbers: "auto" depends on the data.

    PCFedSplit's ``prox`` may be "auto", because agents report the curvatures on which it depends.
    """
    name = table.get("name") if isinstance(table, Mapping) else None
    if isinstance(name, str) and name not in algorithm_names():
        advice = suggest(name, algorithm_names(), "choose one of them,")
        raise invalid(
            f"must be one of {', '.join(algorithm_names())}, got {short_repr(name)}; {advice} or "
            "name the module that registers it in imports.",
            key="name",
        )
    algorithm = parse_algorithm(table)
    errors = [
        (
            key,
            f"must be a number, got {value!r}: the server does not see the data that it would be "
            "computed from; give one such as 0.1.",
        )
        for key, type_name, _ in parameters(type(algorithm))
        if type_name == "Schedule" and isinstance(value := getattr(algorithm, key), str)
    ]
    if errors:
        raise KeyErrors(*errors)
    return algorithm


NumericAlgorithm = Annotated[
    Algorithm,
    PlainValidator(_parse_algorithm),
    PlainSerializer(to_mapping),
    AlgorithmSchema(keywords=False),
]


def _parse_modules(value: Any) -> tuple[str, ...]:
    for name in (names := parse_names(value, min_names=0)):
        if not all(part.isidentifier() for part in name.split(".")):
            raise invalid(
                f'must be names of modules, got {short_repr(name)}; write "my_algorithms".'
            )
    return names


Modules = Annotated[
    tuple[str, ...],
    PlainValidator(_parse_modules),
    PlainSerializer(list),
    WithJsonSchema({**NAMES_SCHEMA, "$comment": "a list of names of modules"}),
]


def _parse_step(value: Any) -> float:
    try:
        return check_step("", value)
    except ValueError as error:
        raise invalid(str(error).strip()) from None


GridStep = Annotated[
    float,
    PlainValidator(_parse_step),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "$comment": "a power of two"}),
]


class ServerModel(FileModel):
    """The table ``[model]`` of server.toml."""

    kind: AnyLinearKind = Field(description=f"The model: {describe_kinds(LINEAR_KINDS)}.")
    features: Names = Field(examples=[["area", "rooms"]])
    """The columns to predict from, in the order of the coefficients."""
    labels: Names | None = Field(default=None, examples=[["gas", "oil"]])
    """The labels, for kinds that predict labels only."""
    intercept: bool = True
    """Whether the model has an intercept; constraints do not apply to it."""
    intercept_bound: PositiveNumber | None = Field(default=None, examples=[1000.0])
    """Largest absolute value of the intercept, the score of a row of zeros or, with standardize, of
    the mean of all rows minus the mean of all targets. By default 30 for labels and none for
    numbers, for which there is no certificate without it."""
    l2: NonNegativeNumber = 0.0
    """Weight of the l2 term on the coefficients."""
    standardize: bool = False
    """Whether features are centred and scaled with the means and scales of the rows of all agents,
    for which a secure sum is needed. Constraints and models are in the units of the data."""
    dtype: Dtype = "float64"
    """Type of the features and of local steps."""

    def _errors(self) -> Iterator[WrongKey]:
        labels, output = self.labels, self.kind.output
        if (labels is not None) != output.is_classification:
            names = [str(kind) for kind in LINEAR_KINDS.values() if kind.output.is_classification]
            yield (
                "labels",
                f"must be given for {' and '.join(names)}, and only for them; got "
                f"{self.kind.name!r} and {short_repr(labels)}; name the labels, or leave them out.",
            )
        elif not output.accepts(labels):
            number = "two" if output.max_labels == 2 else "at least two"
            got = len(labels or ())
            yield "labels", f"must be {number} labels for {self.kind}, got {got}; correct the list."
        if self.intercept_bound is not None and not self.intercept:
            yield (
                "intercept_bound",
                f"must be left out if model.intercept is false, got {self.intercept_bound}; "
                "remove one of the two.",
            )

    @property
    def resolved_intercept_bound(self) -> float | None:
        """The bound on intercepts; None if there is no intercept or no bound."""
        return (self.intercept_bound or self.kind.intercept_bound) if self.intercept else None

    @property
    def centers_target(self) -> bool:
        """Whether the target is centred: where it is a number and there is an intercept."""
        return self.standardize and self.intercept and self.labels is None

    @property
    def n(self) -> int:
        """Number of parameters."""
        layout = self.kind.layout(len(self.features), self.labels, intercept=self.intercept)
        return sum(math.prod(shape) for shape in layout.values())


class Rounds(FileModel):
    """The table ``[rounds]`` of server.toml."""

    rounds: Count = 100
    """Number of rounds."""
    gap: PositiveNumber | None = Field(default=None, examples=[0.01])
    """Stop when the certified relative gap to the optimum is at most this; by default never."""
    gap_every: Count = 10
    """Rounds from one computation of the gap to the next."""
    local_steps: NumLocalSteps = 10
    """Number of local steps of every agent in a round."""
    seed: CountOrZero = 0
    """Seed of all random numbers."""
    minimum: Count = 1
    """A round with fewer updates than this is repeated."""
    attempts: Count = 10
    """How often a round is tried at most."""
    deadline: PositiveNumber = 60.0
    """Seconds that agents have to answer."""
    norm_limit: PositiveNumber | None = Field(default=None, examples=[1e6])
    """Refuse vectors from agents whose Euclidean norm is larger, beside those that norm_factor
    refuses."""
    norm_factor: Annotated[float, Field(ge=1)] = 1e4
    """Refuse vectors from agents whose norm is more than this many times the usual one, which is
    the largest median of a round so far; in the first ten rounds, norms up to 1e6 are accepted."""
    keep_every: Count = 10
    """The checkpoint of every k-th round is kept, to go back to with pcfed federation rollback."""
    keep: Count = 10
    """How many of these checkpoints are kept, and of the states of agents that belong to them."""


class ServerFile(FileModel):
    """The file server.toml."""

    training: Text = Field(examples=["heating"])
    """The name of the training."""
    roster: Roster = Field(examples=[["north", "south"]])
    """The names of the agents, or their number: then the first that connect."""
    imports: Modules = Field(default=(), examples=[["my_algorithms"]])
    """Modules to import, beside this file or on Python's path, for example because they register an
    algorithm. Every agent must import them, too."""
    center: Center | None = None
    """What the models are coupled to: "average", the average of all models, or "free", a shared
    model of its own that no constraint limits; "free" by default, and "average" with PCFedAvg."""
    secure: bool | None = None
    """Whether agents sum their updates so that the server sees sums only; by default it is, with
    three agents or more."""
    grid: GridStep = DEFAULT_STEP
    """With a secure sum, updates are rounded to multiples of this power of two."""
    colluders: CountOrZero | None = None
    """With a secure sum, so many agents may work together with the server, and the updates of the
    others stay private; by default 1, and 0 with two agents. More than half of the sum of this and
    of the agents in a round must stay until its end."""
    model: ServerModel
    """What is trained."""
    algorithm: NumericAlgorithm = Field(default_factory=lambda: parse_algorithm({}))
    """The federated algorithm and its parameters; step and penalty are numbers."""
    rounds: Rounds = Rounds()
    """The number of rounds, and what happens in one."""

    @model_validator(mode="before")
    @classmethod
    def _name_missing_keys(cls, table: Any) -> Any:
        """Treat a missing [model] as an empty one, so that the errors name the missing keys."""
        return {"model": {}, **table} if isinstance(table, Mapping) else table

    def _errors(self) -> Iterator[WrongKey]:
        yield from center_errors(self.algorithm, self.center, "center")
        if self.rounds.minimum > self.num_agents:
            yield (
                "rounds.minimum",
                f"must be at most the {self.num_agents} agents of the roster, got "
                f"{self.rounds.minimum}; give a smaller number.",
            )
        if self.resolved_secure:
            yield from self._secure_errors()
        elif self.model.standardize:
            yield (
                "model.standardize",
                "must be false without a secure sum, got true: the server would see the means of "
                "every agent's rows; set secure = true, or remove one of the two.",
            )
        model = self.model
        if self.rounds.gap is not None and model.intercept and not model.resolved_intercept_bound:
            yield (
                "model.intercept_bound",
                f"is missing; rounds.gap = {self.rounds.gap} needs a certificate, and that a bound "
                "on the intercept; give a number that is larger than all targets, such as 1000.",
            )

    def _secure_errors(self) -> Iterator[WrongKey]:
        m = self.num_agents
        if not 2 <= m <= MAX_AGENTS:
            yield (
                "roster",
                f"must have from 2 to {MAX_AGENTS:,} agents for a secure sum, got {m:,}; change "
                "it, or set secure = false.",
            )
        elif self.resolved_colluders > m - 2:
            yield (
                "colluders",
                f"must be at most {m - 2} with {m} agents, got {self.colluders}; at least two "
                "others must be honest.",
            )

    @property
    def resolved_secure(self) -> bool:
        """Whether there is a secure sum."""
        return self.num_agents >= MIN_SECURE if self.secure is None else self.secure

    @property
    def resolved_colluders(self) -> int:
        """How many agents may work together with the server."""
        if self.colluders is None:
            return min(1, max(0, self.num_agents - 2))
        return self.colluders

    @property
    def resolved_center(self) -> Center:
        """What the models are coupled to."""
        return self.center or default_center(self.algorithm)

    @property
    def num_agents(self) -> int:
        """Number of agents."""
        return self.roster if isinstance(self.roster, int) else len(self.roster)


def _parse_report(value: Any) -> tuple[str, ...]:
    for name in (names := parse_names(value, min_names=0)):
        if name not in METRICS:
            raise invalid(
                f"must be some of {', '.join(METRICS)}, got {short_repr(name)}; "
                f"{suggest(name, METRICS, 'take it out, or take one of these.')}"
            )
    return names


Report = Annotated[
    tuple[str, ...],
    PlainValidator(_parse_report),
    PlainSerializer(list),
    WithJsonSchema(
        {
            **NAMES_SCHEMA,
            "$comment": f"a list of some of {', '.join(METRICS)}",
            "items": {"enum": [*METRICS]},
        }
    ),
]


class AgentFile(FileModel):
    """The file agent.toml."""

    name: AgentName = Field(examples=["north"])
    """The agent's name in the roster."""
    file: Text = Field(examples=["north.csv"])
    """The agent's data file (.csv, .npz or .parquet), relative to this file."""
    target: Text = Field(examples=["heating"])
    """The column to predict."""
    constraint: Constraint = Field(
        default=WholeSpace(), examples=[{"l1": 5}], json_schema_extra={"default": "whole_space"}
    )
    """The set that contains the agent's coefficients; it is never sent."""
    coupling: NumericCoupling = DEFAULT_COUPLING
    """Strength σ_i of the pull of the agent's model towards the shared model; it is sent, and only
    summed."""
    personalization: UnitInterval = DEFAULT_PERSONALIZATION
    """How much of the agent's loss is taken at its own model: 0 takes it at the shared model, as in
    the paper, 1 at the own model; the server does not need to know it."""
    privacy: Budget | None = Field(
        default=None, examples=[{"epsilon": 2.0, "delta": 1e-5, "feature_norm": 3.0}]
    )
    """A budget of differential privacy for the agent's rows, in all trainings together. By default
    there is none."""
    batch: Portion = 1.0
    """Rows in one gradient: a share of the agent's rows (1.0 is all of them), or a number of
    rows."""
    held_out: Fraction = 0.0
    """The share of the agent's rows that it is not trained on. Their mean loss over all agents is
    shown to the server if there is a secure sum, and the agent's own report has its score on
    them."""
    certificate: bool = False
    """Whether the agent takes part in certificates without a secure sum; with one, all do."""
    report: Report = ()
    """Which metrics of the agent's model the server may know."""
    secure: bool | None = None
    """Whether the agent refuses trainings without a secure sum; by default it does if they have
    three agents or more."""
    rollbacks: CountOrZero = 0
    """How often a training with a secure sum may go back to an earlier round: every time, the
    server learns another sum with this agent's updates."""
    trainings: CountOrZero = 1
    """In how many trainings with a secure sum the agent takes part, each with a name of its own: if
    their agents differ, the difference of sums tells something about few of them."""
    imports: Modules = Field(default=(), examples=[["my_algorithms"]])
    """Modules to import, beside this file or on Python's path, for example because they register
    the algorithm of the training. The server can't add to them."""

    def _errors(self) -> Iterator[WrongKey]:
        hidden = [name for name in self.report if name in ("loss", "accuracy")]
        if self.privacy is not None and hidden:
            yield (
                "report",
                f"must not have {' and '.join(hidden)} where there is a privacy budget, because "
                "they are computed from the rows; remove them.",
            )

    def only_secure(self, agents: int) -> bool:
        """Return whether the agent takes part in a training only with a secure sum."""
        return agents >= MIN_SECURE if self.secure is None else self.secure


class _Imports(FileModel):
    """The key ``imports`` of server.toml alone."""

    model_config = ConfigDict(extra="ignore")
    imports: Modules = ()


def read_server_file(path: Path, overrides: Iterable[str] = ()) -> ServerFile:
    """Read server.toml, or raise a `ConfigError` with one sentence per error.

    ``overrides`` are values that replace those of the file, such as ``"rounds.rounds=30"``.
    """
    table, parsed = read_toml(path), parse_overrides(overrides)
    # Before the rest is checked, because the algorithm may be one that these modules register.
    import_modules(validate_file(_Imports, table, path, parsed).imports, path)
    return validate_file(ServerFile, table, path, parsed)


def read_agent_file(path: Path) -> AgentFile:
    """Read agent.toml; errors are those of `read_server_file`."""
    return validate_file(AgentFile, read_toml(path), path)
