r"""FedRep: a shared representation and every agent's own head.

$$ \min_\varphi \frac1m \sum_i \min_{h_i} f_i(\varphi, h_i) $$

The entries of the parameter vector are divided into the own block h and the shared block
$\varphi$.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms.base import RoundInfo, Update, Vectors
from pcfed.algorithms.local_context import LocalContext
from pcfed.algorithms.own_models import OwnModelAlgorithm, take_steps
from pcfed.algorithms.registry import register
from pcfed.arrays import Array, Float64Array
from pcfed.errors import did_you_mean, join_names, short_repr
from pcfed.sets.combine import Slice, parameter_slices
from pcfed.validation import count


@register
@dataclass(frozen=True)
class FedRep(OwnModelAlgorithm):
    r"""Federated representation learning: some entries of a model are shared, the others own.

    In a round an agent takes ``own_steps`` gradient steps on its own block, with the shared block
    as it was received, and then all local steps on the shared block. Only the difference of the
    shared block is sent; the own block of what is sent is zero.

    A projected step on the own block keeps that block of the projection of the whole model. The
    agent's model is the projection of the shared model's $\varphi$ with its own h. Sets that limit
    own blocks alone, as `pcfed.sets.Blocks` can, leave $\varphi$ to all agents; in a budget for the
    whole model, $\varphi$ may leave nothing for h.

    Parameters
    ----------
    step : float, callable or "auto"
        The local step $\gamma$ of the shared block.
    own_step : float or "auto"
        The step of own blocks; ``"auto"`` is that of the shared block.
    constrained : bool
        Whether steps of own blocks, and the models, are projected onto the agent's own set; with
        False it is the published method.
    own : tuple of (start, stop)
        The slices of the own block as in `pcfed.sets.Blocks`: a negative number counts from the
        end, None means the end. They may overlap: an entry is own if it is in one of them. For
        layers of a PyTorch module see `slices_for_module`.
    own_steps : int
        Number of steps on the own block in a round; they use the first batches of the round.

    References
    ----------
    Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for personalized
    federated learning" (2021), Algorithm 1.

    Examples
    --------
    >>> FedRep(step=0.1, own=((-3, None),))
    FedRep(step=0.1, own_step='auto', constrained=True, own=((-3, None),), own_steps=10)
    """

    _: KW_ONLY
    own: tuple[Slice, ...]
    own_steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        count("FedRep: own_steps", self.own_steps)
        object.__setattr__(self, "own", _slices(self.own))

    @staticmethod
    def slices_for_module(module: Any, names: Iterable[str]) -> tuple[tuple[int, int], ...]:
        """Return the slices of some layers or parameters of a PyTorch module.

        Parameters
        ----------
        module : torch.nn.Module
            The model of a `pcfed.losses.TorchLoss`.
        names : iterable of str
            Names as in ``module.named_parameters()``, or of layers, which are all of their
            parameters: ``"2"`` is ``"2.weight"`` and ``"2.bias"``.

        Raises
        ------
        ValueError
            If there is no such layer or trainable parameter.

        Examples
        --------
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        >>> FedRep.slices_for_module(net, ["2"])
        ((12, 24), (24, 27))
        """
        slices = parameter_slices("FedRep.slices_for_module", module)
        found: dict[str, tuple[int, int]] = {}
        for name in [names] if isinstance(names, str) else names:
            own = {
                each: where for each, where in slices.items() if f"{each}.".startswith(f"{name}.")
            }
            if not own:
                raise ValueError(
                    f"FedRep.slices_for_module: the module has no trainable parameter or layer "
                    f"{name!r}; {did_you_mean(name, slices)}Its parameters are "
                    f"{join_names(slices)}."
                )
            found |= own
        return tuple(found.values())

    def start(self, models: Float64Array) -> tuple[Vectors, Vectors]:
        """Start the shared model at the mean, and own blocks at their own."""
        self._own_entries(models.shape[-1])
        return super().start(models)

    def num_gradients(self, local_steps: int) -> int:
        """Return those on the own block and those on the shared one."""
        return self.own_steps + local_steps

    def local(
        self, context: LocalContext, received: Vectors, private: Vectors, round_info: RoundInfo
    ) -> Update:
        """Take steps on the own block, then on the shared one, whose difference is sent."""
        x = received["x"].astype(context.dtype)[None]
        own = self._own_entries(x.size)
        more = context.with_steps(self.own_steps + context.steps)
        y = context.rows(self.model(received, private))
        take_steps(
            more,
            y,
            range(self.own_steps),
            step=self._own_step(round_info),
            project=self.constrained,
            entries=own,
        )
        shared = range(self.own_steps, more.steps)
        take_steps(more, y, shared, step=round_info.step, project=False, entries=~own)
        delta = np.subtract(y, x, out=context.empty())
        delta[:, own] = 0.0
        return Update(sent={"delta": delta}, pending={"v": y})

    def model(self, server: Vectors, private: Vectors) -> Array:
        """Return the shared block of the shared model with the agent's own block."""
        x = server["x"]
        return np.where(self._own_entries(x.size), private["v"], x)

    def _own_entries(self, n: int) -> NDArray[np.bool_]:
        """Return which of n entries are in the own block."""
        own = np.zeros(n, np.bool_)
        for start, stop in self.own:
            if not own[start:stop].size or max(start, stop or 0) > n or min(start, stop or 0) < -n:
                raise ValueError(
                    f"FedRep: own must have slices within the parameters that are not empty, got "
                    f"({start}, {stop}) for a model of {n}; correct the slice."
                )
            own[start:stop] = True
        return own


def _slices(own: Any) -> tuple[Slice, ...]:
    """Return slices as pairs of start and stop, or explain that they are none."""
    try:
        pairs = tuple((index(start), None if stop is None else index(stop)) for start, stop in own)
    except (TypeError, ValueError):
        pairs = ()
    if not pairs:
        raise ValueError(
            f"FedRep: own must have slices (start, stop), got {short_repr(own)}; give for example "
            "((0, 10),)."
        )
    return pairs
