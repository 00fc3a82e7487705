"""Seeds that are secrets: the noise of a run is drawn from its seed."""

from __future__ import annotations

import secrets

MIN_SECRET_SEED = 2**62
"""With a smaller seed, somebody could try all of them and subtract the noise."""


def why_not_secret(seed: int) -> str | None:
    """Return what is wrong with a seed that could be guessed, with one that could not; or None."""
    if seed >= MIN_SECRET_SEED:
        return None
    drawn = MIN_SECRET_SEED + secrets.randbelow(MIN_SECRET_SEED)
    return (
        "must be a secret of at least 2**62 where an agent has a privacy budget, because who knows "
        f"it can subtract the noise; got {seed}; take {drawn}, which was drawn now."
    )
