"""The server's side: rounds, sums, and a checkpoint after each of them.

The server tells every agent with each message which of its updates was the last to be counted, and
it knows that from its checkpoint. If it dies after the replies came and before the checkpoint was
written, nobody was counted, and the round is played again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from pcfed.algorithms import RoundInfo, Sums
from pcfed.algorithms.sums import add_rows
from pcfed.arrays import Array, Float64Array
from pcfed.federation.certification import STEPS, Certified, certify_together
from pcfed.federation.paths import CHECKPOINT, HISTORY
from pcfed.federation.protocol import AUDITS, Counted, Fact, Message, describe, directions, facts_of
from pcfed.federation.replies import Expected, sift, told
from pcfed.federation.server_config import Terms, Transport, Watcher, silent
from pcfed.federation.server_state import ServerState
from pcfed.storage.journal import Journal


class TooFew(RuntimeError):
    """Agents that are needed are not here, or do not agree."""


@dataclass(eq=False)
class Server:
    """Plays the rounds of a training; after a restart, from the last checkpoint on.

    Use it as a context manager: it keeps the file of the history open.

    Parameters
    ----------
    terms : Terms
        What was settled.
    transport : Transport
        What carries the messages.
    folder : Path
        Where the checkpoint and the history are.
    watch : callable
        What is told how it goes.
    """

    terms: Terms
    transport: Transport
    folder: Path
    watch: Watcher = silent
    state: ServerState = field(init=False)
    _unwilling: set[str] = field(default_factory=set, init=False)
    _seen: Certified | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        path = self.folder / CHECKPOINT
        self.state = self._known(path) if path.exists() else self._begin()
        self._history = Journal(self.folder / HISTORY, self.state.history)
        if self.state.history is None:
            self._keep(replace(self.state, history=self._history.flush()))

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._history.__exit__(kind, error, trace)

    # -- rounds -------------------------------------------------------------------------------

    def run(self) -> ServerState:
        """Play the rounds that are left, or as many as the gap takes; return how it stands.

        Raises
        ------
        TooFew
            If a round had too few agents as often as it may be tried, or there is a gap to stop at
            and an agent's owner does not agree to certificates; the same call goes on.
        """
        while self.state.round < self.terms.rounds and not self.good_enough():
            self.play()
        return self.state

    def play(self) -> None:
        """Play one round, as often as it takes to have enough agents."""
        for attempt in range(self.terms.attempts):
            self._enter("training", attempt=attempt + 1)
            if self._attempt():
                return
        raise TooFew(
            f"Round {self.state.round} had fewer than {self.terms.minimum} agents "
            f"{self.terms.attempts} times; start more agents, then go on."
        )

    def good_enough(self) -> bool:
        """Whether there is a gap to stop at and it is reached; looked at every few rounds."""
        gap, done = self.terms.gap, self.state.round
        if gap is None or done == 0 or done % self.terms.gap_every:
            return False
        try:
            return self.certificate().within(gap)
        except TooFew as missing:
            self._need_consent("rounds.gap")
            self.watch(note=str(missing))
            return False

    def _attempt(self) -> bool:
        """Try to play a round; say whether enough agents took part."""
        terms, before = self.terms, self.state
        shapes = dict.fromkeys(terms.algorithm.sends, (terms.n,))
        updates, refused = self._exchange("train", shapes, least=terms.minimum)
        if terms.gap is not None:
            self._need_consent("rounds.gap")
        if len(updates) < max(1, terms.minimum):
            return False
        sums: dict[str, Float64Array] = {}
        present = [name for name in terms.roster if name in updates]
        for name in present:
            for key, vector in updates[name].vectors.items():
                add_rows(sums.setdefault(key, np.zeros(terms.n)), vector[None])
        steps = terms.local_steps * len(present)
        total = Sums(sums, len(present), steps)
        missing = [each for each in terms.roster if each not in updates and each not in refused]
        self._history.append(
            {
                "round": before.round,
                "counted": present,
                "refused": refused,
                "missing": missing,
                "told": {name: said for name in present if (said := told(updates[name]))},
            }
        )
        after = ServerState(
            before.terms,
            before.round + 1,
            terms.algorithm.aggregate(before.server, total, self._facts),
            {**before.counted, **dict.fromkeys(present, Counted(before.round, steps))},
            self._history.flush(),
        )
        self._keep(after)
        return True

    # -- what all agents do together ----------------------------------------------------------

    def certificate(self) -> Certified:
        """Return what all agents certify of their models as they are.

        Raises
        ------
        TooFew
            If an agent of the roster is away, or its owner does not agree.
        """
        done = self.state.round
        if self._seen is None or self._seen.round != done:
            self._enter("certificate")
            self._seen = certify_together(self._ask_for_certificate, done)
        return self._seen

    def audit(self) -> dict[str, float]:
        """Return for each audited vector how far its mean over the agents is from the server's.

        Relative to the length of the public random vectors; rounding is all that it should be.

        Raises
        ------
        TooFew
            If an agent of the roster does not answer.
        """
        self._enter("audit")
        terms, server = self.terms, self.state.server
        start = terms.algorithm.start(np.zeros((1, terms.n)))
        names = list(terms.algorithm.audited(*start))
        replies = self._ask_all("audit", dict.fromkeys(names, (AUDITS,)), what="The audit")
        public = directions(terms.training, self.state.round, terms.n)
        found = {}
        for name in names:
            mean = np.mean([reply.vectors[name] for reply in replies.values()], axis=0)
            off = np.abs(mean - public @ server[name])
            found[name] = float((off / np.linalg.norm(public, axis=1)).max())
        return found

    def finish(self, certified: Certified | None = None) -> dict[str, dict[str, float]]:
        """Tell everybody what was counted last, so that agents can write down their models.

        Parameters
        ----------
        certified : Certified, optional
            What agents should know of the certificate.

        Returns
        -------
        dict
            Who has heard it, each with what its owner allows to be told.
        """
        self._enter("finish")
        more = {} if certified is None else {"certificate": certified.sentence}
        heard, _ = self._exchange("finish", {}, least=len(self.terms.roster), facts=more)
        return {name: told(heard[name]) for name in self.terms.roster if name in heard}

    def conclude(self) -> dict[str, Any]:
        """Certify, tell everybody that it is over, audit; return what came of it.

        Where there is no certificate or no audit, a sentence says why: ``no_certificate``,
        ``no_audit``. The same call asks again.
        """
        result: dict[str, Any] = {"rounds": self.state.round}
        certified = None
        try:
            certified = self.certificate()
            result["certificate"] = asdict(certified)
        except TooFew as missing:
            result["no_certificate"] = str(missing)
        heard = self.finish(certified)
        result["finished"] = list(heard)
        result["told"] = {name: said for name, said in heard.items() if said}
        return {**result, **self.audited()}

    def audited(self) -> dict[str, Any]:
        """Return the audit, or a sentence that says why there is none."""
        try:
            return {"audit": self.audit()}
        except TooFew as missing:
            return {"no_audit": str(missing)}

    def _ask_for_certificate(
        self, kind: str, vectors: Mapping[str, Array]
    ) -> Mapping[str, Message]:
        """Send a message of the certificate, unless it is known that it would be in vain."""
        self._need_consent("A certificate")
        shapes = dict.fromkeys(STEPS[kind], (self.terms.n,))
        try:
            return self._ask_all(kind, shapes, vectors, what="A certificate")
        finally:
            self._need_consent("A certificate")

    def _need_consent(self, what: str) -> None:
        """Refuse what is impossible without the consent of an owner."""
        if self._unwilling:
            raise TooFew(
                f"{what} needs the consent of all agents, and {_listed(self._unwilling)} did not "
                "give it; the owner can, by certificate = true in the agent's file."
            )

    def _enter(self, stage: str, **facts: int) -> None:
        """Tell the watcher what comes next."""
        self.watch(stage=stage, round=self.state.round, **facts)

    def _ask_all(
        self,
        kind: str,
        shapes: Mapping[str, tuple[int, ...]],
        vectors: Mapping[str, Array] | None = None,
        *,
        what: str,
    ) -> dict[str, Message]:
        """Return the replies of all agents in the order of the roster, or say who is missing."""
        roster = self.terms.roster
        fine, refused = self._exchange(kind, shapes, least=len(roster), vectors=vectors or {})
        missing = [name for name in roster if name not in fine]
        if missing:
            why = f" ({refused[missing[0]]})" if missing[0] in refused else ""
            raise TooFew(f"{what} needs all agents, and {_listed(missing)} did not answer{why}.")
        return {name: fine[name] for name in roster}

    # -- messages -----------------------------------------------------------------------------

    def _exchange(
        self,
        kind: str,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        least: int,
        vectors: Mapping[str, Array] | None = None,
        facts: Mapping[str, Fact] | None = None,
    ) -> tuple[dict[str, Message], dict[str, str]]:
        """Send a message to every agent; return the replies that are fine, and why others aren't.

        Who consents to certificates is noted by the way.
        """
        terms = self.terms
        messages = self._messages(kind, vectors or {}, facts or {})
        replies = list(self.transport.exchange(messages, least))
        for reply in replies:
            name, willing = reply.facts.get("name"), reply.facts.get("certificate")
            if isinstance(name, str) and name in terms.roster and willing is not None:
                (self._unwilling.discard if willing else self._unwilling.add)(name)
        limit = terms.norm_limit if kind == "train" else np.inf
        expected = Expected(kind, terms.training, self.state.round, terms.roster, shapes, limit)
        fine, refused = sift(replies, expected)
        self.watch(refused=refused)
        return fine, refused

    @property
    def _facts(self) -> RoundInfo:
        """The public facts of the next round."""
        m, most = len(self.terms.roster), self.terms.local_steps
        return self.terms.algorithm.round_info(self.state.round, m=m, max_local_steps=most)

    def _messages(
        self, kind: str, vectors: Mapping[str, Array], facts: Mapping[str, Fact]
    ) -> dict[str, Message]:
        """Return the message of a kind to every agent of the roster."""
        terms, state = self.terms, self.state
        common: dict[str, Fact] = {
            **describe(terms.algorithm),
            **facts_of(self._facts),
            **facts,
            "training": terms.training,
            "steps": terms.local_steps,
            "seed": terms.seed,
        }
        messages = {}
        for position, name in enumerate(terms.roster):
            counted = {f"counted_{key}": n for key, n in vars(state.counted[name]).items()}
            own = {**common, **counted, "position": position}
            messages[name] = Message(kind, own, {**state.server, **vectors})
        return messages

    # -- what is kept -------------------------------------------------------------------------

    def _begin(self) -> ServerState:
        terms = self.terms
        server = terms.algorithm.start(np.zeros((1, terms.n)))[0]
        return ServerState(terms.identity(), 0, server, dict.fromkeys(terms.roster, Counted()))

    def _keep(self, state: ServerState) -> None:
        """Write the checkpoint; from then on it counts."""
        state.save(self.folder / CHECKPOINT)
        self.state = state

    def _known(self, path: Path) -> ServerState:
        state = ServerState.load(path)
        if state.terms != self.terms.identity():
            raise ValueError(
                f"{path} must be the checkpoint of this training, but it is of one with other "
                "terms; give the training another name, or the terms that it was started with."
            )
        return state


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
