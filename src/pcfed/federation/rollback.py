"""Going back to an earlier round: what the server and the agents keep for it.

The server keeps the checkpoint of every k-th round, the last few of them. An agent keeps its states
that belong to these rounds: its state after the accepted update of round a is the one in every
round up to its next accepted update b, so that the file is called ``a_b.npz``.

A rollback changes the server's checkpoint only. Every message says how often the training has gone
back, and an agent that hears of a new rollback restores the state of the server's checkpoint. It
forgets the update that is pending unless the checkpoint contains it, and the server refuses replies
from before the rollback. So every update still counts on both sides or on neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pcfed.errors import display_path
from pcfed.federation.client_state import ClientState
from pcfed.federation.paths import CHECKPOINT, EARLIER, LOCK, RESULT
from pcfed.federation.protocol import Scalar
from pcfed.federation.server_state import ServerState
from pcfed.storage.locks import exclusive_lock


def kept_rounds(rounds: int, every: int, keep: int) -> range:
    """Return the rounds that a training with so many completed rounds can go back to.

    Examples
    --------
    >>> list(kept_rounds(47, every=10, keep=3))
    [20, 30, 40]
    """
    last = rounds - rounds % every
    return range(max(0, last - (keep - 1) * every), last + 1, every)


# -- the server's checkpoints ---------------------------------------------------------------------


def keep_checkpoint(folder: Path, state: ServerState, every: int, keep: int) -> None:
    """Write a copy of a checkpoint if its round is kept, and remove those that are too old.

    It is called before the checkpoint itself is written, so that no copy can be missing.
    """
    if state.round % every:
        return
    (folder / EARLIER).mkdir(mode=0o700, parents=True, exist_ok=True)
    state.save(_copy(folder, state.round))
    for rounds in _copies(folder):
        if rounds not in kept_rounds(state.round, every, keep):
            _copy(folder, rounds).unlink()


def roll_back(folder: Path, to_round: int | None) -> ServerState:
    """Make an earlier checkpoint the current one; return the checkpoint from before.

    Parameters
    ----------
    folder : Path
        The server's folder of the training.
    to_round : int or None
        The number of completed rounds to go back to; None raises an error that lists them.
    """
    if not (folder / CHECKPOINT).exists():
        raise ValueError(f"rollback: there is no training in {display_path(folder)}; train first.")
    with exclusive_lock(folder / LOCK):
        now = ServerState.load(folder / CHECKPOINT)
        # The copy of a round that was never completed may be there after a crash.
        possible = [rounds for rounds in _copies(folder) if rounds < now.round]
        if to_round not in possible:
            choice = ", ".join(map(str, possible)) or "none yet"
            given = "nothing" if to_round is None else to_round
            raise ValueError(
                f"rollback: --to-round must be a round whose checkpoint is kept, got {given}; "
                f"{now.round} rounds are done, and the kept ones before are: {choice}."
            )
        earlier = ServerState.load(_copy(folder, to_round))
        rollbacks = (*now.rollbacks, (now.round, to_round))
        replace(earlier, rollbacks=rollbacks).save(folder / CHECKPOINT)
        for rounds in _copies(folder):
            if rounds > to_round:
                _copy(folder, rounds).unlink()
        (folder / RESULT).unlink(missing_ok=True)
    return now


def _copy(folder: Path, rounds: int) -> Path:
    return folder / EARLIER / f"{rounds}.npz"


def _copies(folder: Path) -> list[int]:
    """Return the numbers of completed rounds of all copies."""
    stems = [path.stem for path in (folder / EARLIER).glob("*.npz")]
    return sorted(int(stem) for stem in stems if stem.isdigit())


# -- an agent's states ----------------------------------------------------------------------------


def keep_state(
    folder: Path, state: ClientState, accepted: int, message: Mapping[str, Scalar]
) -> None:
    """Write a copy of a state that a newer accepted update replaces, if a kept round needs it."""
    if _is_needed(state.accepted, accepted, message):
        (folder / EARLIER).mkdir(mode=0o700, parents=True, exist_ok=True)
        state.save(folder / EARLIER / f"{state.accepted}_{accepted}.npz")


def earlier_state(folder: Path, accepted: int) -> ClientState | None:
    """Return the kept state after the accepted update of a round; None if there is none."""
    for path in (folder / EARLIER).glob(f"{accepted}_*.npz"):
        return ClientState.load(path)
    return None


def remove_unneeded(folder: Path, state: ClientState, message: Mapping[str, Scalar]) -> None:
    """Remove the kept states that no kept round needs, or that a rollback has undone."""
    for path in (folder / EARLIER).glob("*_*.npz"):
        first, last = map(int, path.stem.split("_"))
        if last > state.accepted or not _is_needed(first, last, message):
            path.unlink()


def _is_needed(first: int, last: int, message: Mapping[str, Scalar]) -> bool:
    """Return whether the server keeps a checkpoint of rounds first + 1 to last."""
    kept = kept_rounds(*(int(message[key]) for key in ("round", "keep_every", "keep")))
    return any(first < rounds <= last for rounds in kept)
