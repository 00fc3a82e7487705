r"""Gradients of one agent in one round, clipped and with noise: all that leaves its records.

Every gradient has a batch and noise of its own, which are drawn from a secret: the batch of a
gradient must be unknown to those who see it. They are a function of (secret, place, number of the
gradient, points at which it is taken). The same question therefore has the same answer, which
spends nothing more, and other points have other noise, so that no difference of two answers is free
of noise. Bits are those of SHAKE-256, a cryptographic function.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from pcfed.arrays import Array, Float64Array
from pcfed.losses import Loss
from pcfed.losses.base import Rows
from pcfed.losses.probe import record_errors
from pcfed.privacy.accounting import Mechanism
from pcfed.privacy.budget import Privacy


@dataclass(frozen=True)
class NoisePlan:
    """What the gradients of an agent in one training have in common.

    Attributes
    ----------
    privacy : Privacy
        The agent's budget.
    mechanism : Mechanism
        The numbers of records, of the agent and of a batch.
    noise_multiplier : float
        The standard deviation of the noise, as a multiple of how far a record can move a gradient.
    """

    privacy: Privacy
    mechanism: Mechanism
    noise_multiplier: float

    def key(self, secret: bytes, *place: object) -> bytes:
        """Return the key of all random numbers at a place, such as a round of a training."""
        text = "\0".join(map(repr, (self, *place)))
        return hashlib.sha256(secret + text.encode()).digest()


class PrivateGradients:
    """The gradients of one agent in one round.

    Parameters
    ----------
    plan : NoisePlan
        How much noise they have.
    key : bytes
        A secret that is used for nothing else, see `NoisePlan.key`.
    allowed : int
        The largest number of gradients, which is what was accounted for.

    Attributes
    ----------
    count : int
        How many have been computed.
    """

    def __init__(self, plan: NoisePlan, key: bytes, allowed: int) -> None:
        self._plan, self._key, self._allowed = plan, key, allowed
        self.count = 0

    def write(self, loss: Loss, x: Array, out: Array) -> None:
        """Write the next gradient at x, of shape (n,), or at several points, to ``out``.

        The gradients at several points, of shape (points, n), are clipped and counted as one.
        """
        if self.count >= self._allowed:
            raise ValueError(
                f"privacy: an agent must take at most the {self._allowed} gradients of a round "
                "that were accounted for, got more; correct num_gradients of the algorithm, or "
                "local_steps and participation if they are functions, which must always return the "
                "same for a round."
            )
        digest = hashlib.sha256(self._key + struct.pack("<q", self.count) + x.tobytes()).digest()
        self.count += 1
        plan, mechanism = self._plan, self._plan.mechanism
        rows = draw_rows(digest, mechanism)
        points, grads = np.atleast_2d(x), np.atleast_2d(out)
        # In float64, and with nothing but samples in it until the noise is added: rounding to a
        # coarse grid, that of float32 or that of a long regulariser, would swallow the noise.
        total = self._clipped(loss, points, rows)
        # A record that replaces another moves the sum of clipped gradients by at most 2 clip.
        size = rows.stop - rows.start if isinstance(rows, slice) else mechanism.batch_size
        deviation = plan.noise_multiplier * 2 * plan.privacy.clip / size
        total += deviation * standard_normal(digest, total.size).reshape(total.shape)
        loss.add_regularizer_gradient(points, total)
        with np.errstate(all="ignore"):
            np.copyto(grads, total, casting="same_kind")

    def _clipped(self, loss: Loss, points: Array, rows: Rows) -> Float64Array:
        """Return the mean of the clipped gradients of some records."""
        privacy, total = self._plan.privacy, np.empty(points.shape)
        with record_errors(loss):
            loss.clipped_gradients(points, rows, privacy.clip, privacy.feature_norm, total)
        return total


def random_bits(key: bytes, purpose: bytes, number: int) -> NDArray[np.uint64]:
    """Return 64-bit integers that nobody without the key can tell from uniform ones."""
    stream = hashlib.shake_256(key + purpose).digest(8 * number)
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def standard_normal(key: bytes, number: int) -> Float64Array:
    """Return independent standard normal numbers."""
    # With a further bit, the largest number would be rounded to 1, whose quantile is infinite.
    uniform = ((random_bits(key, b"noise", number) >> np.uint64(12)) + 0.5) * 2.0**-52
    normal: Float64Array = ndtri(uniform)
    return normal


def draw_rows(key: bytes, mechanism: Mechanism) -> Rows:
    """Return the rows of a batch: drawn without replacement, or a block, or all."""
    N, b = mechanism.num_samples, mechanism.batch_size
    if b == N:
        return None
    if not mechanism.is_sampled:
        # The block of a uniformly drawn row has a probability proportional to its size.
        start = int(random_bits(key, b"batch", 1)[0] % np.uint64(N)) // b * b
        return slice(start, min(start + b, N))
    return np.sort(np.argpartition(random_bits(key, b"batch", N), b)[:b])
