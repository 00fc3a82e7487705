"""The server's side: rounds, sums, and a checkpoint after each of them.

The checkpoint alone decides which updates have been accepted: every message tells the agent which
of its updates was the last one. If the server dies after replies arrived and before the checkpoint
was written, none of them was accepted, and the round is run again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pcfed.algorithms import STATISTICS, RoundInfo, Sums
from pcfed.algorithms.grid import Grid, Integers, add_integers, split_integers
from pcfed.arrays import Array, Float64Array
from pcfed.federation.certification import totals_of_replies
from pcfed.federation.course import Course
from pcfed.federation.norm_limits import GROWTH, lower_medians, refuse_long, update_norms
from pcfed.federation.paths import CHECKPOINT, HISTORY
from pcfed.federation.protocol import (
    MASKED,
    NO_ROUND,
    NUM_AUDIT_DIRECTIONS,
    PROTOCOL_VERSION,
    SUM_KINDS,
    Message,
    Scalar,
    Transport,
    algorithm_metadata,
    audit_digest,
    audit_directions,
    integer_products,
    round_metadata,
)
from pcfed.federation.replies import reported_metrics, sent_names, split_replies
from pcfed.federation.rollback import keep_checkpoint
from pcfed.federation.row_sums import (
    HeldOutScore,
    Standardization,
    federated_scaling,
    held_out_score,
    scaling_metadata,
)
from pcfed.federation.server_state import Place, ServerConfig, ServerResult, ServerState
from pcfed.federation.status_file import StatusCallback, read_history
from pcfed.guarantees.federated_certificate import (
    REPLY_VECTORS,
    SUMMED_NUMBERS,
    FederatedCertificate,
    Totals,
    federated_certificate,
    totals_of_sum,
)
from pcfed.storage.journal import Journal
from pcfed.tree_sums import TreeSums, tree_mean

if TYPE_CHECKING:  # it needs an optional package
    from pcfed.federation.secure_sums import Request, SecureSums


class MissingAgents(RuntimeError):
    """Agents that are needed are not connected, do not answer or do not consent."""


class Diverged(RuntimeError):
    """The updates of a training have grown without bound."""


class SummedUpdates(NamedTuple):
    """The accepted updates of a round.

    Attributes
    ----------
    accepted : list of str
        The agents.
    vectors : mapping of str to Array
        The sums of their updates.
    refused : mapping of str to str
        Why the replies of others are refused.
    metrics : mapping of str to mapping
        What agents have reported.
    norms : mapping of str to float
        The usual norms of the updates.
    integers : mapping of str to Array
        The sums on the grid of a secure sum.
    context : str
        The hash of the circumstances of a secure sum.
    """

    accepted: list[str]
    vectors: Mapping[str, Float64Array]
    refused: Mapping[str, str]
    metrics: Mapping[str, Mapping[str, float]]
    norms: Mapping[str, float]
    integers: Mapping[str, Integers] = MappingProxyType({})
    context: str = ""


@dataclass(eq=False)
class Server:
    """Runs the rounds of a training; after a restart it resumes from the last checkpoint.

    Use it as a context manager: it keeps the history file open.

    Parameters
    ----------
    config : ServerConfig
        What is trained, by whom and how.
    transport : Transport
        Carries the messages.
    folder : Path
        Directory of the checkpoint and the history.
    on_status : StatusCallback
        Called with every change of the status.
    """

    config: ServerConfig
    transport: Transport
    folder: Path
    on_status: StatusCallback = lambda **changes: None
    state: ServerState = field(init=False)
    _without_consent: set[str] = field(default_factory=set, init=False)
    _certificate: FederatedCertificate | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        algorithm_metadata(self.config.algorithm)  # refuses parameters that can't be sent
        path = self.folder / CHECKPOINT
        self.state = self._resume(path) if path.exists() else self._start()
        self._secure = self._secure_sums() if self.config.secure else None
        if self._secure:  # the server may have died between the checkpoint and forgetting the sum
            self._secure.forget_open_sum(self._place)
        self._history = Journal(self.folder / HISTORY, self.state.history)
        self._course = Course(read_history(self.folder / HISTORY, self.state.round))
        if self.state.history is None:
            self._save(replace(self.state, history=self._history.flush()))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: Any) -> None:
        self._history.__exit__(*error)

    # -- rounds -------------------------------------------------------------------------------

    def run(self) -> ServerState:
        """Run the remaining rounds, or until the gap is reached; return the last state.

        Raises MissingAgents if all attempts at a round had too few agents, or ``gap`` is set and an
        agent's owner does not consent to certificates. Call it again to resume.
        """
        if self.config.standardization is not None and self.state.scaling is None:
            self._standardize(self.config.standardization)
        while self.state.round < self.config.rounds and not self._gap_reached():
            self.run_round()
        return self.state

    def _standardize(self, what: Standardization) -> None:
        """Find the common means and scales of the data; all agents must answer."""
        self._report_stage("standardization")
        for attempt in range(self.config.attempts):
            try:
                scaling = federated_scaling(partial(self._sum_numbers, "Standardization"), what)
            except MissingAgents:
                if attempt == self.config.attempts - 1:
                    raise
            else:
                self._save(replace(self.state, scaling=scaling))
                return

    def run_round(self) -> None:
        """Run one round; repeat it until enough updates are accepted."""
        for attempt in range(self.config.attempts):
            self._report_stage("training", attempt=attempt + 1)
            if self._try_round():
                return
        raise MissingAgents(
            f"Round {self.state.round} had fewer than {self.config.minimum} agents in "
            f"{self.config.attempts} attempts; start more agents, then rerun the command."
        )

    def _gap_reached(self) -> bool:
        """Return whether the training may stop; the gap is certified every few rounds."""
        gap, done = self.config.gap, self.state.round
        if gap is None or done == 0 or done % self.config.gap_every:
            return False
        try:
            return self.certificate().within(gap)
        except MissingAgents as error:
            self._require_consent("rounds.gap")
            self.on_status(note=str(error))
            return False

    def _try_round(self) -> bool:
        """Run a round once; return whether enough updates were accepted."""
        config, before = self.config, self.state
        updates = self._sum_securely(self._secure) if self._secure else self._sum_updates()
        if config.gap is not None:
            self._require_consent("rounds.gap")
        if updates is None:
            return False
        self._check_growth(updates.norms)
        accepted = [name for name in config.roster if name in updates.accepted]
        entry = {
            "round": before.round,
            "accepted": accepted,
            "refused": updates.refused,
            "missing": [n for n in config.roster if n not in accepted and n not in updates.refused],
            "metrics": updates.metrics,
        }
        self._history.append(entry)
        self._course.add_round(entry)
        sums = Sums(updates.vectors, len(accepted))
        server = config.algorithm.aggregate(before.vectors, sums, self._round_info)
        totals = dict(before.totals)
        add_integers(totals, updates.integers)
        last = {**before.accepted, **dict.fromkeys(accepted, before.round)}
        counted = {"context": updates.context, "survivors": sorted(accepted)}
        known = {**before.sums, **({str(before.round): counted} if self._secure else {})}
        # The history is written first: what it has beyond the checkpoint is cut off on a restart.
        self._save(
            replace(
                before,
                round=before.round + 1,
                vectors=server,
                accepted=last,
                history=self._history.flush(),
                norms=before.norms.after(updates.norms),
                totals=totals,
                sums={key: each for key, each in known.items() if int(key) in last.values()},
            )
        )
        if self._secure:
            self._secure.forget_open_sum()
        self.on_status(warning=self._course.warning or "")
        return True

    def _sum_updates(self) -> SummedUpdates | None:
        """Return the sums of the updates that agents send; None if there are too few."""
        config, before = self.config, self.state
        names = sent_names(config.algorithm, before.vectors, len(config.roster))
        updates, refused = self._exchange("train", names, config.minimum)
        norms, too_long = refuse_long(
            updates,
            before.norms,
            config.algorithm,
            limit=config.norm_limit,
            factor=config.norm_factor,
        )
        refused |= too_long
        self.on_status(refused=refused)
        if len(norms) < max(1, config.minimum):
            return None
        # Sums depend on positions in the roster, not on the order of arrival, so that they have the
        # same bits as in the simulator.
        accepted = [name for name in config.roster if name in norms]
        sums = TreeSums()
        for position, name in enumerate(config.roster):
            if name in norms:
                sent = updates[name].vectors
                sums.add([position], {key: vector[None] for key, vector in sent.items()})
        metrics = {name: reported_metrics(updates[name]) for name in accepted}
        return SummedUpdates(
            accepted,
            sums.totals(),
            refused,
            {name: reported for name, reported in metrics.items() if reported},
            lower_medians(norms),
        )

    def _sum_securely(self, secure: SecureSums) -> SummedUpdates | None:
        """Return the sums of updates that the server never sees; None if there are too few."""
        config, before = self.config, self.state
        names = sent_names(config.algorithm, before.vectors, len(config.roster))
        numbers = dict.fromkeys(names, config.n)
        if STATISTICS in numbers:
            numbers[STATISTICS] = len(config.algorithm.statistics)
        grid = Grid(config.grid, len(config.roster))
        sizes = {name: grid.width(name, number) for name, number in numbers.items()}
        opened = secure.sum_updates(
            self._place, sum(sizes.values()) + 1, config.minimum, config.attempts
        )
        if isinstance(opened, str):
            self.on_status(note=f"Round {before.round}: {opened}.")
            return None
        integers, withheld = split_integers(opened.total[:-1], sizes), int(opened.total[-1])
        if withheld:
            raise Diverged(
                f"The training has stopped in round {before.round}: "
                f"{_num_withheld(withheld, len(opened.survivors))} have updates that are too long "
                "or could not be computed, so that the sum is useless; their own logs say why. "
                "Raise rounds.norm_limit if it is too small; then go back with pcfed federation "
                f"rollback, or start another training, and {config.algorithm.advice}."
            )
        vectors = {name: grid.decode(name, integers[name]) for name in names}
        means = {name: vector / len(opened.survivors) for name, vector in vectors.items()}
        return SummedUpdates(
            opened.survivors,
            vectors,
            dict(opened.refused),
            dict(opened.metrics),
            update_norms(means, config.algorithm),
            integers,
            opened.context,
        )

    @property
    def _place(self) -> Place:
        return Place(len(self.state.rollbacks), self.state.round)

    def _check_growth(self, norms: Mapping[str, float]) -> None:
        """Raise if the updates of a round, given by their usual norms, have grown without bound."""
        if (name := self.state.norms.grown(norms)) is not None:
            raise Diverged(
                f"The training has diverged by round {self.state.round}: the updates {name} are "
                f"{GROWTH:g} times as long as in the first rounds; go back to an earlier round "
                f"with pcfed federation rollback, and {self.config.algorithm.advice}."
            )

    # -- certificate, end and audit -----------------------------------------------------------

    def certificate(self) -> FederatedCertificate:
        """Return the certificate of the agents' models after the last round.

        Raises MissingAgents if an agent does not answer, or its owner does not consent.
        """
        done = self.state.round
        if self._certificate is None or self._certificate.round != done:
            self._report_stage("certificate")
            center = self.config.algorithm.shared_model(self.state.vectors)
            if self.config.center == "average":
                center = None  # it is the mean of the feasible models
            m = len(self.config.roster)
            self._certificate = federated_certificate(self._ask_for_certificate, done, m, center)
            self._course.add_gap(self._certificate.gap)
            self.on_status(warning=self._course.warning or "")
        return self._certificate

    def audit(self) -> dict[str, float]:
        """Compare each average that the server holds with the mean of the agents' own vectors.

        Both are multiplied by public random vectors. The result is the largest difference of the
        products, relative to the norm of the random vector; it should be rounding errors only.
        Raises MissingAgents if an agent does not answer.
        """
        self._report_stage("audit")
        if self._secure:
            return self._exact_audit(self._secure)
        config = self.config
        start = config.algorithm.start(np.zeros((1, config.n)))
        names = list(config.algorithm.audited(*start))
        replies = self._ask_all("audit", names, "The audit")
        state = self.state
        digest = audit_digest(config.training, state.round, state.vectors)
        directions = audit_directions(digest, config.n)
        differences = {}
        for name in names:
            mean = tree_mean(np.stack([reply.vectors[name].ravel() for reply in replies.values()]))
            difference = np.abs(mean - directions @ self.state.vectors[name])
            differences[name] = float((difference / np.linalg.norm(directions, axis=1)).max())
        return differences

    def _exact_audit(self, secure: SecureSums) -> dict[str, float]:
        """Compare the sums of all accepted updates with those that the agents have kept.

        Both are integers, and so are the random vectors: any difference is shown, and is at least
        the step of the grid.
        """
        config, state = self.config, self.state
        sizes = {name: len(total) for name, total in sorted(state.totals.items())}
        digest = audit_digest(config.training, state.round, state.vectors)
        expected = integer_products(digest, state.totals, sizes)
        metadata = {"audited": json.dumps(sizes)}
        found = self._sum_all(secure, "audit", len(expected), "The audit", metadata=metadata)
        differences = np.abs((found - expected).view(np.int64) * config.grid)
        rows = differences.reshape(len(sizes), NUM_AUDIT_DIRECTIONS)
        return {name: float(row.max()) for name, row in zip(sizes, rows, strict=True)}

    def finish(
        self, certificate: FederatedCertificate | None = None
    ) -> dict[str, dict[str, float]]:
        """Send every agent its last accepted update, so that it can write its model and its report.

        The result has the agents that have confirmed it, each with the metrics that it reports.
        """
        self._report_stage("finish")
        more = {} if certificate is None else certificate.metadata
        roster = self.config.roster
        confirmed, _ = self._exchange("finish", (), len(roster), metadata=more)
        return {name: reported_metrics(confirmed[name]) for name in roster if name in confirmed}

    def conclude(self) -> ServerResult:
        """Certify the models, finish the training at all agents, and audit.

        It may be called again, for example after an agent has come back.
        """
        result = ServerResult(self.state.round)
        try:
            result = replace(result, certificate=self.certificate())
        except MissingAgents as error:
            result = replace(result, no_certificate=str(error))
        confirmed = self.finish(result.certificate)
        metrics = {name: reported for name, reported in confirmed.items() if reported}
        result = replace(result, finished=list(confirmed), metrics=metrics, score=self._score())
        return self.add_audit(result)

    def _score(self) -> HeldOutScore | None:
        """Return how good the models are on held-out rows; None if that is not known."""
        if self._secure is None:
            return None  # the server would see the score of every agent
        try:
            return held_out_score(partial(self._sum_numbers, "The score"))
        except MissingAgents as error:
            self.on_status(note=str(error))
            return None

    def repeat_audit(self, result: ServerResult) -> ServerResult:
        """Return a result with a new audit, and with a certificate if the end had none."""
        ended = result.finished is not None and result.rounds == self.state.round
        if ended and result.certificate is None:
            return self.conclude()
        return self.add_audit(result)

    def add_audit(self, result: ServerResult) -> ServerResult:
        """Return a result with a new audit, or with the reason why there is none."""
        try:
            return replace(result, audit=self.audit(), no_audit=None)
        except MissingAgents as error:
            return replace(result, audit=None, no_audit=str(error))

    def _ask_for_certificate(self, kind: str, vectors: Mapping[str, Array]) -> Totals:
        """Send a message of the certificate to all agents, and return the totals of the replies.

        Consent is required before it, so that no agent reveals its model for nothing, and after
        it, because a reply may be the first to say that an owner does not consent.
        """
        if self._secure:
            size = len(REPLY_VECTORS[kind]) * self.config.n + len(SUMMED_NUMBERS[kind])
            total = self._sum_numbers("A certificate", kind, size, vectors)
            return totals_of_sum(kind, total, len(self.config.roster))
        self._require_consent("A certificate")
        try:
            replies = self._ask_all(kind, REPLY_VECTORS[kind], "A certificate", vectors)
            return totals_of_replies(replies, kind)
        finally:
            self._require_consent("A certificate")

    def _sum_numbers(
        self, purpose: str, kind: str, size: int, vectors: Mapping[str, Array]
    ) -> Float64Array:
        """Return the secure sum of so many numbers over all agents, or raise."""
        if self._secure is None:
            raise ValueError(f"{purpose} needs a secure sum; set secure = true.")
        grid = Grid(self.config.grid, len(self.config.roster))
        width = grid.width(STATISTICS, size)
        return grid.decode_wide(self._sum_all(self._secure, kind, width, purpose, vectors))

    def _sum_all(
        self,
        secure: SecureSums,
        kind: str,
        size: int,
        purpose: str,
        vectors: Mapping[str, Array] | None = None,
        metadata: Mapping[str, Scalar] | None = None,
    ) -> Integers:
        """Return a secure sum over all agents, or raise."""
        found = secure.sum_all(kind, self._place, size + 1, vectors or {}, metadata or {})
        if isinstance(found, dict):
            raise _missing_agents(purpose, found)
        if withheld := int(found[-1]):
            raise MissingAgents(
                f"{purpose} needs all agents, and "
                f"{_num_withheld(withheld, len(self.config.roster))} could not compute their part; "
                "their own logs say why."
            )
        return found[:-1]

    def _require_consent(self, purpose: str) -> None:
        """Raise if the owner of an agent is known not to consent to certificates."""
        if self._without_consent and not self._secure:
            names = ", ".join(sorted(self._without_consent))
            raise MissingAgents(
                f"{purpose} needs the consent of all agents, and {names} did not give it; the "
                "owner can, with certificate = true in the agent's file."
            )

    def _report_stage(self, stage: str, **changes: int) -> None:
        self.on_status(stage=stage, round=self.state.round, **changes)

    # -- messages -----------------------------------------------------------------------------

    def _ask_all(
        self,
        kind: str,
        expected: Collection[str],
        purpose: str,
        vectors: Mapping[str, Array] | None = None,
    ) -> dict[str, Message]:
        """Return the valid replies of all agents, in the order of the roster, or raise."""
        roster = self.config.roster
        valid, refused = self._exchange(kind, expected, len(roster), vectors)
        missing = {name: refused.get(name, "") for name in roster if name not in valid}
        if missing:
            raise _missing_agents(purpose, missing)
        return {name: valid[name] for name in roster}

    def _exchange(
        self,
        kind: str,
        expected: Collection[str],
        min_present: int,
        vectors: Mapping[str, Array] | None = None,
        metadata: Mapping[str, Scalar] | None = None,
    ) -> tuple[dict[str, Message], dict[str, str]]:
        """Send a message to all agents; return the replies with these vectors, and refusals."""
        messages = self._messages(kind, vectors or {}, metadata or {})
        replies = self._replies(messages, min_present)
        valid, refused = split_replies(replies, self.config, self.state, kind, expected)
        self.on_status(refused=refused)
        return valid, refused

    def _exchange_requests(
        self, requests: Mapping[str, Request], min_present: int
    ) -> tuple[dict[str, Message], dict[str, str]]:
        """Send the requests of a secure sum; return valid replies, and refusals."""
        messages = {
            name: self._message(name, request.kind, request.vectors, request.metadata)
            for name, request in requests.items()
        }
        replies = self._replies(messages, min_present)
        valid: dict[str, Message] = {}
        refused: dict[str, str] = {}
        groups = {(request.kind, request.size) for request in requests.values()}
        for kind, size in groups:
            asked = {n for n, each in requests.items() if (each.kind, each.size) == (kind, size)}
            chosen = [reply for reply in replies if reply.metadata.get("name") in asked]
            names = () if size is None else (MASKED,)
            found = split_replies(chosen, self.config, self.state, kind, names, size)
            valid |= found[0]
            refused |= found[1]
        self.on_status(refused=refused)
        return valid, refused

    def _replies(self, messages: Mapping[str, Message], min_present: int) -> list[Message]:
        """Send messages; return all replies, and remember who consents to certificates."""
        replies = list(self.transport.exchange(messages, min_present))
        for reply in replies:
            name, consent = reply.metadata.get("name"), reply.metadata.get("certificate")
            if isinstance(name, str) and name in self.config.roster and consent is not None:
                change = self._without_consent.discard if consent else self._without_consent.add
                change(name)
        return replies

    @property
    def _round_info(self) -> RoundInfo:
        """The public information on the next round."""
        m, steps = len(self.config.roster), self.config.local_steps
        return self.config.algorithm.round_info(self.state.round, m=m, max_local_steps=steps)

    def _messages(
        self, kind: str, vectors: Mapping[str, Array], metadata: Mapping[str, Scalar]
    ) -> dict[str, Message]:
        """Return the message of a kind for every agent of the roster."""
        return {name: self._message(name, kind, vectors, metadata) for name in self.config.roster}

    def _message(
        self, name: str, kind: str, vectors: Mapping[str, Array], metadata: Mapping[str, Scalar]
    ) -> Message:
        """Return a message of a kind for an agent of the roster."""
        config, state = self.config, self.state
        secure = {
            "grid": config.grid,
            "colluders": config.colluders,
            "norm_limit": config.norm_limit,
        }
        common: dict[str, Scalar] = {
            "protocol": PROTOCOL_VERSION,
            **algorithm_metadata(config.algorithm),
            **round_metadata(self._round_info),
            **metadata,
            "training": config.training,
            "rounds": config.rounds,
            "steps": config.local_steps,
            "seed": config.seed,
            "center": config.center,
            "rollbacks": len(state.rollbacks),
            "keep_every": config.keep_every,
            "keep": config.keep,
            **(secure if config.secure else {}),
            **({} if state.scaling is None else scaling_metadata(state.scaling)),
            "position": config.roster.index(name),
            "accepted_round": state.accepted[name],
        }
        if (found := state.sums.get(str(state.accepted[name]))) is not None:
            common["accepted_sum"] = json.dumps(found)
        return Message(kind, common, {} if kind in SUM_KINDS else {**state.vectors, **vectors})

    def _secure_sums(self) -> SecureSums:
        from pcfed.federation.secure_sums import SecureSums  # needs an optional package

        config = self.config
        return SecureSums(
            config.training,
            config.roster,
            config.colluders,
            config.identities,
            self.folder,
            self._exchange_requests,
        )

    # -- checkpoint ---------------------------------------------------------------------------

    def _start(self) -> ServerState:
        """Return the state before the first round."""
        config = self.config
        vectors = config.algorithm.start(np.zeros((1, config.n)))[0]
        accepted = dict.fromkeys(config.roster, NO_ROUND)
        return ServerState(config.identity(), 0, vectors, accepted)

    def _resume(self, path: Path) -> ServerState:
        """Return the state of a checkpoint, which must belong to this training."""
        state = ServerState.load(path)
        expected = self.config.identity()
        keys = dict.fromkeys([*expected, *state.config])
        changed = [key for key in keys if state.config.get(key) != expected.get(key)]
        if changed:
            raise ValueError(
                f"{path} is the checkpoint of a training with another {', '.join(changed)}; "
                "restore the configuration that it was started with, or give the training another "
                "name."
            )
        return state

    def _save(self, state: ServerState) -> None:
        """Write the checkpoint; from now on its updates are accepted."""
        keep_checkpoint(self.folder, state, self.config.keep_every, self.config.keep)
        state.save(self.folder / CHECKPOINT)
        self.state = state


def _num_withheld(withheld: int, agents: int) -> str:
    """Return how many agents could not answer; any of them may have sent a wrong number."""
    return f"{withheld} of {agents} agents" if 0 < withheld <= agents else "some agents"


def _missing_agents(purpose: str, missing: Mapping[str, str]) -> MissingAgents:
    """Return the error for agents that did not answer, given the reasons by their names."""
    reason = next((f" ({each})" for each in missing.values() if each), "")
    names = ", ".join(sorted(missing))
    return MissingAgents(f"{purpose} needs all agents, and {names} did not answer{reason}.")
