"""What recognises a loss: its values at a fixed random point, and a hash of all that it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcfed.arrays import Float64Array
from pcfed.errors import one_line
from pcfed.losses.base import Loss

HASHED_ROWS = 4096
"""So many rows of an array are hashed at once, so that no array is copied as a whole."""


def probe_point(n: int) -> Float64Array:
    """Return a fixed random vector of about unit length."""
    point: Float64Array = np.random.RandomState(0).standard_normal(n) / np.sqrt(n)
    return point


@contextmanager
def record_errors(loss: Loss) -> Iterator[None]:
    """Turn errors of a loss, of which modules of users may raise any, into one sentence."""
    try:
        yield
    except Exception as error:
        reason = one_line(str(error).strip().rstrip("."), 150)
        raise ValueError(
            "privacy: the loss of an agent with a budget must run without errors on all records, "
            f"got {type(error).__name__} from {type(loss).__name__} ({reason}); correct the module "
            "or the records, and keep this message secret, because it depends on them."
        ) from None


def check_records(loss: Loss) -> None:
    """Raise a ValueError if a loss can't be computed on all records, at zero."""
    with record_errors(loss):
        loss.value(np.zeros(loss.n))


def records_digest(loss: Loss) -> str | None:
    """Return a hash of the records of a loss, in their order; None if they are not known.

    Unlike `loss_digest`, it does not depend on how a machine rounds.
    """
    records = loss.records()
    return None if records is None else _records_hash(loss, records).hexdigest()


def loss_digest(loss: Loss) -> str:
    """Return a hash of the records of a loss, in their order, and of the function that it is.

    The function is evaluated at zero and at a random point. The hash is secret like the records.
    """
    with record_errors(loss):
        return _digest(loss)


def _digest(loss: Loss) -> str:
    """Return the hash."""
    records = loss.records()
    found = _records_hash(loss, records or ())
    if records is None:
        # Sums over some of the samples, so that another order of the samples is another hash.
        numbers = np.arange(loss.size)
        bits = (numbers >> bit & 1 for bit in range(loss.size.bit_length()))
        batches = [np.flatnonzero(part == half) for part in bits for half in (0, 1)]
    for x in (np.zeros(loss.n), probe_point(loss.n)):
        found.update(np.float64(loss.value(x)).tobytes() + loss.gradient(x).tobytes())
        if records is None:
            for rows in batches:
                if len(rows):
                    found.update(loss.gradient(x, rows).tobytes())
    return found.hexdigest()


def _records_hash(loss: Loss, records: Sequence[NDArray[Any]]) -> hashlib._Hash:
    """Return the hash of the kind of a loss and of its records."""
    kind = type(loss)
    about = [kind.__module__, kind.__qualname__, loss.size, loss.shape, str(loss.dtype)]
    found = hashlib.sha256(repr(about).encode())
    for array in records:
        found.update(repr([array.shape, str(array.dtype)]).encode())
        for start in range(0, len(array), HASHED_ROWS):
            found.update(np.ascontiguousarray(array[start : start + HASHED_ROWS]).tobytes())
    return found
