r"""The problem: agents with private losses and private sets, coupled through a shared model.

$$ \min_{x_i \in X_i} \; \frac1m \sum_i \Big( \theta_i f_i(x_i) + (1 - \theta_i) f_i(c)
   + \frac{\sigma_i}{2} \|x_i - c\|^2 \Big) $$

Here $f_i$ is ``Agent.loss``, $X_i$ is ``Agent.constraint``, $\sigma_i$ is ``Agent.coupling`` and
$\theta_i$ is ``Agent.personalization``. The centre $c$ is the average $\bar x$ of the models, or a
free variable of its own (``Problem.center``). With $\theta = 0$ and the average, the default, it is
the paper's problem.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args, overload

import numpy as np

from pcfed.arrays import Array, Float64Array
from pcfed.errors import did_you_mean, one_line, short_repr
from pcfed.losses import Loss
from pcfed.losses.public import PublicLoss
from pcfed.notebook import bar_chart, html_table
from pcfed.privacy import Privacy
from pcfed.sets import Blocks, Box, ConvexSet
from pcfed.tree_sums import tree_mean
from pcfed.validation import boolean, count, floating, instance, positive, type_text

Center = Literal["average", "free"]
"""What the models are coupled to: their average, or a shared model of its own."""

DEFAULT_COUPLING = 0.1
"""The coupling of an agent where neither Python nor a file gives one."""


class MissingFeatureNorm(ValueError):
    """The curvature of a private agent is needed, and its budget has no ``feature_norm``."""


@dataclass(frozen=True, eq=False)
class Agent:
    r"""One participant: its data, its private constraint set and its coupling to the others.

    Parameters
    ----------
    loss : Loss
        The local loss $f_i$.
    constraint : ConvexSet
        The private set $X_i$ that must contain the agent's own model. It applies to the
        coefficients only, not to the intercept, unless ``constrain_intercept`` is true.
    coupling : float
        $\sigma_i \ge 0$, the weight of the squared distance of the agent's model to the centre;
        0.1 by default.
    personalization : float
        $\theta_i$ in [0, 1], how much of the loss is taken at the agent's own model: 0, the
        default, takes it at the centre (the paper's problem), 1 at the own model.
    test : Loss, optional
        The same kind of loss on held-out data; it is evaluated at the agent's own model.
    name : str
        The agent's name in messages; by default its position in the roster.
    constrain_intercept : bool
        Whether the set applies to the whole parameter vector, including the intercept.
    intercept_bound : float, optional
        The largest absolute value of an intercept that the set does not constrain. With a bound and
        a bounded set, certificates are finite; by default there is none.
    privacy : Privacy, optional
        A budget of differential privacy for the records of the agent; by default there is none.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed.losses import LeastSquares
    >>> from pcfed.sets import L1Ball
    >>> agent = Agent(LeastSquares(np.eye(3), np.ones(3)), L1Ball(1.5), coupling=0.1)
    >>> agent.constraint
    L1Ball(radius=1.5)
    """

    loss: Loss
    constraint: ConvexSet
    coupling: float = DEFAULT_COUPLING
    personalization: float = 0.0
    test: Loss | None = None
    name: str = ""
    constrain_intercept: bool = False
    intercept_bound: float | None = None
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        self._check_types()
        test = self.test or self.loss
        if (test.n, test.shape) != (self.loss.n, self.loss.shape):
            raise ValueError(
                f"Agent: test must have the shape of loss, got {test.shape} and "
                f"{self.loss.shape}; build both with the same features and classes."
            )
        coupling = positive("Agent: coupling", self.coupling, zero=True)
        object.__setattr__(self, "coupling", coupling)
        theta = positive("Agent: personalization", self.personalization, zero=True)
        if not theta <= 1:
            raise ValueError(
                f"Agent: personalization must be in [0, 1], got {self.personalization!r}; give 0 "
                "to take the loss at the centre, 1 to take it at the agent's own model."
            )
        object.__setattr__(self, "personalization", theta)
        if self.intercept_bound is not None:
            bound = self._checked_intercept_bound(self.intercept_bound)
            object.__setattr__(self, "intercept_bound", bound)
        if self.privacy is not None:
            self._check_privacy(self.privacy)
        limited = self.loss.intercept_slice if not self.constrain_intercept else None
        self.constraint.check_model_length(self.loss.n if limited is None else limited.start)
        # Raises if the set is empty.
        self.feasible_set.project(np.zeros(self.loss.n))

    def _check_types(self) -> None:
        """Raise if an argument is of another type, for example because two were swapped."""
        order = "give the loss first, then the set: Agent(loss, constraint)"
        instance("Agent: loss", self.loss, Loss, f"{order}, see pcfed.losses")
        if isinstance(self.constraint, (str, dict)):
            order = f"give one such as L1Ball(1.0), or parse_set({short_repr(self.constraint)})"
        instance("Agent: constraint", self.constraint, ConvexSet, f"{order}, see pcfed.sets")
        if self.test is not None:
            advice = "give the loss on held-out data, see pcfed.losses"
            instance("Agent: test", self.test, Loss, advice)
        instance("Agent: name", self.name, str, "give a text such as 'north'")
        boolean("Agent: constrain_intercept", self.constrain_intercept)

    @cached_property
    def feasible_set(self) -> ConvexSet:
        """The set of feasible parameter vectors: ``constraint`` and any intercept within its bound.

        It is ``constraint`` itself if there is no intercept or ``constrain_intercept`` is true.
        """
        intercept = self.loss.intercept_slice
        if intercept is None or self.constrain_intercept:
            return self.constraint
        blocks: dict[tuple[int, int | None], ConvexSet] = {(0, intercept.start): self.constraint}
        if self.intercept_bound is not None:
            # A box and not a ball: the bound is no budget that the model could use up.
            blocks[intercept.start, None] = Box(-self.intercept_bound, self.intercept_bound)
        return Blocks(blocks)

    def _checked_intercept_bound(self, bound: float) -> float:
        """Return the bound, or raise if it is no positive number or there is nothing to bound."""
        if self.loss.intercept_slice is None or self.constrain_intercept:
            raise ValueError(
                "Agent: intercept_bound must be left out if there is no intercept or the set "
                f"constrains it, got {bound!r}; remove it."
            )
        return positive("Agent: intercept_bound", bound)

    def _check_privacy(self, privacy: Privacy) -> None:
        """Raise if the loss has no clipped gradients, or the set of features no norm."""
        instance("Agent: privacy", privacy, Privacy, "give one such as Privacy(2.0, 1e-5)")
        if not self.loss.can_clip:
            raise ValueError(
                "Agent: a privacy budget needs a loss with clipped gradients of single samples, "
                f"got {type(self.loss).__name__} without; take another loss, or remove privacy."
            )
        if privacy.feature_norm is not None and math.isinf(self.loss.curvature_bound(1.0)):
            raise ValueError(
                "Agent: privacy.feature_norm must be left out for losses that are not linear "
                f"models, got {privacy.feature_norm:g}; remove it."
            )
        x = np.zeros((1, self.loss.n), self.loss.dtype)
        try:
            self.loss.clipped_gradients(
                x, slice(0, 1), privacy.clip, privacy.feature_norm, np.empty(x.shape)
            )
        except Exception as error:  # modules of users may raise anything
            raise ValueError(
                "Agent: a privacy budget needs gradients of single samples, which "
                f"{type(self.loss).__name__} can't compute: {one_line(str(error), 300)}; modules "
                "must run in torch.func.vmap, so avoid .item() and branches on values in them, or "
                "remove privacy."
            ) from None

    @property
    def public_view(self) -> Agent:
        """The agent as algorithms see it: without its records if it has a privacy budget."""
        # An agent that had itself as an attribute would stay in memory until Python looks for
        # cycles, and a range would have many agents that are made on demand.
        if self.privacy is None or isinstance(self.loss, PublicLoss):
            return self
        return self._without_records

    @cached_property
    def _without_records(self) -> Agent:
        other = copy.copy(self)
        other.__dict__.pop("_typical_smoothness", None)
        feature_norm = self.privacy.feature_norm if self.privacy else None
        curvature = self.loss.curvature_bound(feature_norm)
        loss = PublicLoss(self.loss, curvature)
        other.__dict__.update(loss=loss, test=None)
        return other

    def typical_smoothness(self, batch: int | None) -> float:
        """Return that of the loss; it is computed once for every size of batches.

        That of an agent with a privacy budget follows from public numbers.
        """
        if self.privacy is not None:
            return self._public_curvature(self.privacy)
        if batch not in self._typical_smoothness:
            self._typical_smoothness[batch] = self.loss.typical_smoothness(batch)
        return self._typical_smoothness[batch]

    @cached_property
    def _typical_smoothness(self) -> dict[int | None, float]:
        return {}

    def _public_curvature(self, privacy: Privacy) -> float:
        """Return the curvature to expect, from public numbers, or raise if it needs the data."""
        found = self.public_view.loss.smoothness()
        if math.isinf(found):
            raise MissingFeatureNorm(
                "Agent: the curvature of the loss of an agent with a privacy budget must follow "
                "from public numbers, got an algorithm that needs it and feature_norm None; give "
                "Privacy a feature_norm (for linear models), or take an algorithm whose step is a "
                "number, such as FedAvg(step=0.1)."
            )
        return found


class LazyAgents(Sequence[Agent]):
    """Agents that are made when they are read; none is kept.

    Parameters
    ----------
    make_agent : callable
        Returns the agent at a position.
    positions : range
        The positions of the agents.
    layout : tuple, optional
        Number and shape of the parameters that every agent must have.
    """

    def __init__(
        self, make_agent: Callable[[int], Agent], positions: range, layout: _Layout | None = None
    ) -> None:
        self._make_agent, self._positions, self._layout = make_agent, positions, layout

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Agent: ...
    @overload
    def __getitem__(self, index: slice) -> LazyAgents: ...
    def __getitem__(self, index: int | slice) -> Agent | LazyAgents:
        if isinstance(index, slice):
            return LazyAgents(self._make_agent, self._positions[index], self._layout)
        position = self._positions[index]
        agent = self._make_agent(position)
        advice = "return Agent(loss, constraint)"
        instance(f"Problem.lazy: make_agent({position})", agent, Agent, advice)
        _check_layout(position, agent.loss, self._layout)
        if agent.privacy is not None:
            raise ValueError(
                f"Problem.lazy: agents must have no privacy budget, got one at {position}; give "
                "Problem a list of agents, so that the budgets are planned before the first round."
            )
        return agent

    def with_layout(self, layout: _Layout) -> LazyAgents:
        """Return the agents, each of which must have so many parameters of this shape."""
        return LazyAgents(self._make_agent, self._positions, layout)


_Layout = tuple[int, tuple[int, ...]]
"""Number and shape of the parameters of an agent."""


def _check_layout(i: int, loss: Loss, layout: _Layout | None) -> None:
    """Raise a ValueError if the agent at a position has parameters of another shape."""
    if layout is not None and (loss.n, loss.shape) != layout:
        raise ValueError(
            f"Problem: agent {i} has {loss.n} parameters of shape {loss.shape} but agent 0 has "
            f"{layout[0]} of shape {layout[1]}; all losses must share one parameter shape."
        )


class Problem:
    r"""Agents that train together, and the quantities of the joint problem.

    Parameters
    ----------
    agents : iterable of Agent
        The roster. Its order matters: random streams are keyed by the position in it.
    center : {"average", "free"}
        What the models are coupled to: their average, or a free centre, a shared model of its own
        that no set limits.

    Attributes
    ----------
    agents : sequence of Agent
    names : tuple of str
        The agents' names; ``agent i`` for an agent without a name.
    m, n : int
        Number of agents, number of parameters.
    shape : tuple of int
        Shape of the coefficients in the parameter vector.

    Examples
    --------
    >>> import numpy as np
    >>> from pcfed.losses import LeastSquares
    >>> from pcfed.sets import L1Ball
    >>> agents = [Agent(LeastSquares(np.eye(2), np.ones(2)), L1Ball(r), 0.1) for r in (1, 2)]
    >>> problem = Problem(agents)
    >>> problem.m, problem.n, problem.L_f
    (2, 2, 0.5)
    """

    def __init__(self, agents: Iterable[Agent], center: Center = "average") -> None:
        roster = agents if isinstance(agents, LazyAgents) else _as_roster(agents)
        first = roster[0].loss
        if isinstance(roster, LazyAgents):
            roster = roster.with_layout((first.n, first.shape))
        else:
            for i, agent in enumerate(roster):
                _check_layout(i, agent.loss, (first.n, first.shape))
        if center not in get_args(Center):
            raise ValueError(
                f"Problem: center must be 'average' or 'free', got {short_repr(center)}; "
                f"{did_you_mean(center, get_args(Center)) or 'choose one of the two.'}".rstrip()
            )
        self.center = center
        self.m = len(roster)
        self.n, self.shape = first.n, first.shape
        self.agents: Sequence[Agent] = roster
        if self.is_lazy:
            return
        self.agents = tuple(roster)
        name, times = Counter(self.names).most_common(1)[0]
        if times > 1:
            raise ValueError(
                f"Problem: agent names must differ, got {name!r} {times} times; "
                "rename one, or leave names out."
            )

    @classmethod
    def lazy(
        cls, m: int, make_agent: Callable[[int], Agent], center: Center = "average"
    ) -> Problem:
        """Return a problem whose agents are made when they are needed, and not kept.

        For problems that do not fit into memory. Agents that take part in a round are made in it,
        and forgotten after it.

        Parameters
        ----------
        m : int
            Number of agents.
        make_agent : callable
            Returns the agent at a position, always the same one; for example, it reads the agent's
            own file. Names of agents are ignored.
        center : {"average", "free"}
            As for other problems.

        Examples
        --------
        >>> import numpy as np
        >>> from pcfed.losses import LeastSquares
        >>> from pcfed.sets import L1Ball
        >>> def make_agent(i):
        ...     y = np.random.default_rng(i).normal(size=3)
        ...     return Agent(LeastSquares(np.eye(3), y), L1Ball(1.0))
        >>> Problem.lazy(1000, make_agent)
        Problem(1000 agents, 3 parameters)
        """
        count("Problem.lazy: m", m)
        if not callable(make_agent):
            raise ValueError(
                f"Problem.lazy: make_agent must be a function of a position, got "
                f"{type_text(make_agent)}; give a function that returns an Agent."
            )
        return cls(LazyAgents(make_agent, range(m)), center)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The agents' names."""
        if self.is_lazy:
            return tuple(f"agent {i}" for i in range(self.m))
        return tuple(agent.name or f"agent {i}" for i, agent in enumerate(self.agents))

    @property
    def is_lazy(self) -> bool:
        """Whether agents are made when they are needed."""
        return isinstance(self.agents, LazyAgents)

    def __repr__(self) -> str:
        return f"Problem({self.m} agents, {self.n} parameters)"

    def _repr_html_(self) -> str:
        rows = [
            (
                *(name, a.loss.size, a.test.size if a.test else None),
                *(a.constraint, a.coupling, a.personalization),
            )
            for name, a in zip(self.names, self.agents, strict=True)
        ]
        columns = ("agent", "samples", "held out", "set", "coupling", "personalization")
        sizes = [float(agent.loss.size) for agent in self.agents]
        return html_table(repr(self), columns, rows) + bar_chart("samples", self.names, sizes)

    @cached_property
    def L_f(self) -> float:
        r"""The smoothness $L_f$ of the local losses: the largest over the agents."""
        return max(agent.loss.smoothness() for agent in self.agents)

    def typical_smoothness(self, batches: Sequence[int] | None = None) -> float:
        r"""Return the curvature to expect in training: the largest over the agents.

        ``batches`` are the agents' numbers of samples in a gradient; by default all samples.
        """
        sizes = [None] * self.m if batches is None else batches
        pairs = zip(self.agents, sizes, strict=True)
        return max(agent.typical_smoothness(size) for agent, size in pairs)

    @property
    def is_private(self) -> bool:
        """Whether an agent has a privacy budget; agents that are made on demand have none."""
        return not self.is_lazy and any(agent.privacy for agent in self.agents)

    @property
    def public_view(self) -> Problem:
        """The problem as algorithms see it: without the records of agents with a privacy budget."""
        if not self.is_private:
            return self
        return Problem((agent.public_view for agent in self.agents), self.center)

    @property
    def losses_at_average(self) -> bool:
        """Whether it is the paper's problem: all losses are taken at the average of the models."""
        if self.center != "average" or self.is_lazy:  # lazy agents could be asked, at a cost
            return False
        return not any(agent.personalization for agent in self.agents)

    @property
    def sigma(self) -> float:
        r"""The largest coupling $\sigma = \max_i \sigma_i$."""
        return max(agent.coupling for agent in self.agents)

    def L_G(self, penalty: float) -> float:
        r"""Return the smoothness of the penalised objective of one agent; $\rho$ is the penalty.

        $$ L_G = \frac{L_f + \sigma (m - 1)}{m} + \rho $$
        """
        rho = positive("Problem.L_G: penalty", penalty, zero=True)
        return (self.L_f + self.sigma * (self.m - 1)) / self.m + rho

    def largest_step(self, penalty: float, local_steps: int) -> float:
        r"""Return the largest step that the paper's theorem admits.

        $$ \gamma = \min\{1/(6 L_G),\; 1/(5 L_G (H - 1))\} $$

        Parameters
        ----------
        penalty : float
            $\rho$, the largest of the run if it changes.
        local_steps : int
            $H$, the largest number of local steps of a round.
        """
        count("Problem.largest_step: local_steps", local_steps)
        L = self.L_G(penalty)
        if not math.isfinite(L):
            raise ValueError(
                f"Problem.largest_step: losses must have a finite smoothness, got {self.L_f}; give "
                "the step as a number such as 0.1."
            )
        return 1 / (L * max(6, 5 * (local_steps - 1)))

    def loss(self, x: Array) -> float:
        r"""Return the average loss of one model, $\frac1m \sum_i f_i(x)$."""
        return float(tree_mean([agent.loss.value(x) for agent in self.agents]))

    def objective(self, models: Array, center: Array | None = None) -> float:
        r"""Return the objective of the models, one row per agent.

        Parameters
        ----------
        models : array of shape (m, n)
            The models $x_i$.
        center : array of shape (n,), optional
            The centre $c$; needed if it is free. By default the average of the models.
        """
        x, c = self._models_and_center("Problem.objective", models, center)
        return float(tree_mean([_objective(*pair, c) for pair in zip(self.agents, x, strict=True)]))

    def gradient(self, models: Array, center: Array | None = None) -> Float64Array:
        r"""Return the gradient of the objective in the models, one row per agent.

        $$ \nabla_j = \frac1m \Big( \theta_j \nabla f_j(x_j) + \sigma_j (x_j - c) + \frac1m \sum_i
           \big( (1 - \theta_i) \nabla f_i(c) - \sigma_i (x_i - c) \big) \Big) $$

        The sum is there only if the centre is the average. The arguments are those of `objective`.
        """
        x, c = self._models_and_center("Problem.gradient", models, center)
        own, shared = np.zeros((self.m, self.n)), np.zeros(self.n)
        for i, agent in enumerate(self.agents):
            theta = agent.personalization
            own[i] = agent.coupling * (x[i] - c)
            if self.center == "average":
                shared -= own[i]
                if theta < 1:
                    shared += (1 - theta) * agent.loss.gradient(c)
            if theta > 0:
                own[i] += theta * agent.loss.gradient(x[i])
        return np.asarray((own + shared / self.m) / self.m)

    def infeasibility(self, models: Array) -> Float64Array:
        r"""Return the distance of every model to its own set, $\|x_i - \Pi_{X_i}[x_i]\|$."""
        x = self.as_models("Problem.infeasibility: models", models)
        pairs = zip(self.agents, x, strict=True)
        return np.array([agent.feasible_set.distance(x_i) for agent, x_i in pairs])

    def to_float64(self) -> Problem:
        """Return the same problem with all losses in float64 arithmetic; test losses stay."""
        agents = (replace(agent, loss=agent.loss.to_float64()) for agent in self.agents)
        return Problem(agents, self.center)

    def _models_and_center(
        self, where: str, models: Array, center: Array | None
    ) -> tuple[Float64Array, Float64Array]:
        """Return the models as rows, and the centre."""
        x = self.as_models(f"{where}: models", models)
        if center is None and self.center == "free":
            raise ValueError(
                f"{where}: center must be given where the center is free, got None; give "
                "result.center."
            )
        if center is None or self.center == "average":
            return x, tree_mean(x)
        return x, self.as_models(f"{where}: center", center)[0]

    def as_models(self, where: str, models: Array) -> Float64Array:
        """Return ``models`` as an (m, n) float64 array; one vector is repeated for every agent."""
        x = floating(where, models).astype(np.float64, copy=False)
        if x.shape not in ((self.n,), (self.m, self.n)):
            raise ValueError(
                f"{where} must have shape ({self.n},) or ({self.m}, {self.n}), got {x.shape}; "
                "give one vector, or one row per agent."
            )
        return np.broadcast_to(x, (self.m, self.n))


def _objective(agent: Agent, x: Array, center: Array) -> float:
    """Return the agent's term of the objective."""
    theta = agent.personalization
    term = agent.coupling / 2 * float(np.sum((x - center) ** 2))
    if theta < 1:
        term += (1 - theta) * agent.loss.value(center)
    if theta > 0:
        term += theta * agent.loss.value(x)
    return term


def _as_roster(agents: object) -> list[Agent]:
    """Return the agents as a list, or raise if there are none or other objects among them."""
    if isinstance(agents, Mapping) or not isinstance(agents, Iterable):
        example = "Problem([agent])" if isinstance(agents, Agent) else "Problem([agent, other])"
        raise ValueError(
            f"Problem: agents must be a list of agents, got {type_text(agents)}; "
            f"give a list, as in {example}."
        )
    roster = list(agents)
    if not roster:
        raise ValueError("Problem: agents must not be empty, got none; add an Agent.")
    for i, agent in enumerate(roster):
        instance(f"Problem: agents[{i}]", agent, Agent, "give Agent(loss, constraint)")
    return roster
