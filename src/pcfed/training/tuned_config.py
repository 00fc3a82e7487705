"""The search of `pcfed.training.tuning` for a training from files, and the file with its result.

What a candidate means for agents that have values of their own in their tables:

- The coupling of an agent is multiplied by the same factor as that of ``[defaults]``, so that an
  agent with half the pull of the others keeps half of it. It is left as it is if the default is 0
  or "auto", because then there is no such factor.
- A personalization that differs from that of ``[defaults]`` is left as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

import numpy as np

from pcfed.algorithms import PCFedSplit
from pcfed.arrays import Float64Array
from pcfed.config.overrides import Override
from pcfed.config.personalization import (
    DEFAULT_COUPLING,
    DEFAULT_PERSONALIZATION,
    default_center,
    ignores_coupling,
    supports_free_center,
)
from pcfed.config.toml_edit import get_value, set_value
from pcfed.config.train_file import AgentSettings, Config
from pcfed.errors import join_names
from pcfed.problem import Center
from pcfed.sets import ConvexSet
from pcfed.storage.saved import Metadata, SavedJson
from pcfed.training.setup import TrainingSetup
from pcfed.training.step_search import with_trial_step
from pcfed.training.tuning import (
    AUTO_COUPLINGS,
    CENTERS,
    COUPLINGS,
    MAX_ROUNDS,
    PERSONALIZATIONS,
    Candidate,
    CrossValidation,
    FoldScores,
    Tuning,
    grid,
    scale_budget,
    tune,
)


def cross_validation(
    config: Config, setup: TrainingSetup, *, num_folds: int = 4, rounds: int | None = None
) -> CrossValidation:
    """Return the trainings of a search over all three settings.

    ``rounds`` are those of the file by default, with PCFedSplit at most 50.

    Raises
    ------
    ValueError
        If the algorithm of the file has no own models that depend on the settings.
    """
    algorithm = config.algorithm
    if ignores_coupling(algorithm):
        raise ValueError(
            f"{config.where}: algorithm.name must be PCFedSplit or PCFedAvg for tune, got "
            f"{type(algorithm).__name__}, which does not use personalization, coupling and center; "
            "change it."
        )
    settings = [config.agent(name) for name in setup.problem.names]
    return _validation(
        config,
        setup,
        num_folds=num_folds,
        rounds=rounds,
        factors=[_factor(config, each) for each in settings],
        keeps_personalization=[_keeps_personalization(config, each) for each in settings],
    )


def find_coupling(
    config: Config,
    setup: TrainingSetup,
    is_auto: Sequence[bool],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tuning:
    """Search a number for the coupling "auto" of some agents; everything else is as in the file.

    ``on_progress`` is called with the number of trainings that are done, and of all.
    """
    validation = _validation(
        config,
        setup,
        factors=[1.0 if auto else None for auto in is_auto],
        keeps_personalization=[True] * len(is_auto),
    )
    theta = config.defaults.personalization
    candidates = [Candidate(theta, sigma, config.center) for sigma in AUTO_COUPLINGS]
    total, done = validation.num_folds * len(candidates), count(1)
    return tune(
        validation,
        candidates,
        default=Candidate(theta, DEFAULT_COUPLING, config.center),
        on_fold=lambda: on_progress(next(done), total),
    )


def _validation(
    config: Config,
    setup: TrainingSetup,
    *,
    num_folds: int = 4,
    rounds: int | None = None,
    **options: Any,
) -> CrossValidation:
    """Return the trainings of a search with the settings of a file."""
    training, split = config.training, isinstance(config.algorithm, PCFedSplit)
    most = min(training.rounds, MAX_ROUNDS) if split else training.rounds
    return CrossValidation(
        setup.problem,
        with_trial_step(config.algorithm, setup.problem),
        num_folds=num_folds,
        rounds=most if rounds is None else rounds,
        local_steps=training.local_steps,
        batch=training.batch,
        seed=training.seed,
        start=setup.start,
        **options,
    )


def _factor(config: Config, agent: AgentSettings) -> float | None:
    """Return an agent's factor on the coupling of a candidate; None if it keeps its own."""
    default, own = config.defaults.coupling, agent.coupling
    if own in (default, "auto"):
        return 1.0
    if default in (0, "auto"):
        return None
    return float(own) / float(default)


def _keeps_personalization(config: Config, agent: AgentSettings) -> bool:
    return agent.personalization != config.defaults.personalization


def candidates_for(
    config: Config,
    personalizations: Sequence[float] | None = None,
    couplings: Sequence[float] | None = None,
    centers: Sequence[Center] | None = None,
) -> tuple[Candidate, ...]:
    """Return the grid for the algorithm of a file; None is the default for a setting."""
    if centers is None:
        centers = CENTERS if supports_free_center(config.algorithm) else ("average",)
    elif "free" in centers and not supports_free_center(config.algorithm):
        raise ValueError(
            f'tune: --center must be average with {type(config.algorithm).__name__}, got "free"; '
            "change it, or take the algorithm PCFedSplit."
        )
    found = grid(personalizations or PERSONALIZATIONS, couplings or COUPLINGS, centers)
    if not found:
        raise ValueError(
            "tune: --coupling must have a number > 0 where --personalization is only 0, got 0: "
            "nothing would determine the own models; add one such as 0.1."
        )
    return found


def default_candidate(config: Config) -> Candidate:
    """Return the default setting of files with the algorithm of this one."""
    center = default_center(config.algorithm)
    return Candidate(DEFAULT_PERSONALIZATION, DEFAULT_COUPLING, center)


def scaled_constraints(setup: TrainingSetup, factor: float) -> list[ConvexSet] | None:
    """Return all sets with their budgets multiplied by a factor; None if no set has a budget."""
    scaled = [scale_budget(each, factor) for each in setup.constraints]
    if all(each is None for each in scaled):
        return None
    pairs = zip(scaled, setup.constraints, strict=True)
    sets = [each if new is None else new for new, each in pairs]
    if setup.scaling is None:
        return sets
    problem = setup.problem
    intercept = problem.agents[0].loss.intercept_slice
    coefficients = problem.n if intercept is None else intercept.start
    option = "data.standardize = false"
    return [setup.scaling.transform_constraint(each, coefficients, option=option) for each in sets]


# -- the file with the result ---------------------------------------------------------------------


def overridden_text(text: str, overrides: Iterable[Override]) -> str:
    """Return the text of train.toml with the values of overrides."""
    for each in overrides:
        text = set_value(text, each.keys, each.value)
    return text


def tuned_text(
    text: str, config: Config, names: Sequence[str], chosen: Candidate
) -> tuple[str, list[str]]:
    """Return the text of train.toml with the chosen setting, and notes on agents' own values.

    Only the values of personalization, coupling and center are changed; comments, order and
    everything else stay.
    """
    changes: dict[tuple[str, ...], float | str] = {
        ("defaults", "personalization"): float(chosen.personalization),
        ("defaults", "coupling"): float(chosen.coupling),
        ("training", "center"): chosen.center,
    }
    scaled, kept = [], []
    for name in names:
        settings = config.agent(name)
        factor = _factor(config, settings)
        if get_value(text, ("agents", name, "coupling")) is not None:
            if factor is None:
                kept.append(f"coupling of {name}")
            else:
                # 12 digits hide the rounding error of the factor.
                value = float(f"{factor * chosen.coupling:.12g}")
                changes["agents", name, "coupling"] = value
                scaled += [name] if value != settings.coupling and factor != 1 else []
        if get_value(text, ("agents", name, "personalization")) is not None:
            if _keeps_personalization(config, settings):
                kept.append(f"personalization of {name}")
            else:
                changes["agents", name, "personalization"] = float(chosen.personalization)
    for keys, new in changes.items():
        text = set_value(text, keys, new)
    notes = []
    if scaled:
        notes.append(
            f"The couplings of {join_names(scaled, 4)} were multiplied by the same factor as that "
            "of [defaults]."
        )
    if kept:
        notes.append(
            f"Agents' own values were kept: {', '.join(kept[:4])}{' ...' * (len(kept) > 4)}."
        )
    return text, notes


# -- what was computed, to resume a search --------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TuningCache(SavedJson):
    """The scores of all trainings of a search so far.

    ``digest`` identifies the configuration, the data and the folds; ``results`` has the scores by
    candidate and factor on the budgets.
    """

    file_kind: ClassVar[str] = "record of a search"
    format: ClassVar[int] = 1
    advice: ClassVar[str] = "remove it, or write the new file to another folder."

    digest: str
    results: dict[tuple[Candidate, float], FoldScores] = field(default_factory=dict)

    @staticmethod
    def digest_of(setup: TrainingSetup, validation: CrossValidation) -> str:
        """Return the digest of a search."""
        text = f"{setup.digest} {validation.num_folds} {validation.rounds}"
        return hashlib.sha256(text.encode()).hexdigest()

    def known(self, factor: float = 1.0) -> dict[Candidate, FoldScores]:
        """Return the scores with one factor on the budgets."""
        return {each: found for (each, by), found in self.results.items() if by == factor}

    def _to_json(self) -> Metadata:
        return {"digest": self.digest, "results": list(self._rows())}

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        for (candidate, factor), found in self.results.items():
            yield {
                **vars(candidate),
                "budget_factor": factor,
                "scores": _without_nan(found.scores),
                "losses": _without_nan(found.losses),
            }

    @classmethod
    def _from_json(cls, contents: Metadata) -> TuningCache:
        results = {}
        for row in contents["results"]:
            candidate = Candidate(row["personalization"], row["coupling"], row["center"])
            numbers = (np.array(row[key], np.float64) for key in ("scores", "losses"))
            results[candidate, row["budget_factor"]] = FoldScores(*numbers)
        return cls(contents["digest"], results)


def _without_nan(numbers: Float64Array) -> list[list[float | None]]:
    """Return numbers for JSON, which has no NaN."""
    return [[None if np.isnan(each) else float(each) for each in row] for row in numbers]
