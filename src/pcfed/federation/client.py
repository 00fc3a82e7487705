"""The agent's side: its data, its set and its private state, which never leave it.

An update is *pending* from the moment it is computed. The agent writes it to its state file before
the reply leaves, so that an update which the server has can't be lost by the agent. It becomes part
of the agent's private vectors only when a later message says that the server accepted it; it is
dropped when the server accepted another one or none. An agent computes its update of a round once,
however often it is asked. So an update counts on both sides or on neither, whichever messages are
lost, late or repeated and whenever a process dies.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pcfed.algorithms import STATISTICS, Algorithm, LocalContext, RunInfo, Update
from pcfed.algorithms.grid import Grid, Integers, add_integers, encode_all, joined_integers
from pcfed.arrays import Array, Float64Array
from pcfed.errors import one_line, short_repr
from pcfed.federation.agent_report import AgentEnd, AgentFiles, local_metrics, save_results
from pcfed.federation.client_state import Audit, ClientState, PendingUpdate, Reported
from pcfed.federation.norm_limits import vector_norm
from pcfed.federation.paths import LOCK, PRIVACY, STATE
from pcfed.federation.privacy_ledger import PrivacyLedger
from pcfed.federation.protocol import (
    MASKED,
    NO_ROUND,
    NOT_ASKED,
    PROTOCOL_VERSION,
    SUM_KINDS,
    Message,
    ProtocolError,
    Scalar,
    audit_digest,
    audit_directions,
    check_version,
    integer_products,
    is_secure,
    question_digest,
    read_algorithm,
    read_round_info,
    round_metadata,
)
from pcfed.federation.rollback import earlier_state, keep_state, remove_unneeded
from pcfed.federation.row_sums import ROW_SUMS, SCORE, SQUARES, TOTALS, row_sums_reply
from pcfed.guarantees.federated_certificate import (
    REPLY_VECTORS,
    SUMMED_NUMBERS,
    certificate_reply,
    summands,
)
from pcfed.privacy import (
    Mechanism,
    Privacy,
    PrivateGradients,
    delta_warning,
    loss_digest,
    noise_warning,
    records_digest,
    relative_noise,
)
from pcfed.problem import Agent, MissingFeatureNorm, Problem
from pcfed.sampling import BatchSampler, resolve_batch_size
from pcfed.simulation.threads import one_blas_thread
from pcfed.storage.locks import exclusive_lock
from pcfed.storage.reading import parse_json

if TYPE_CHECKING:  # it needs an optional package
    from pcfed.federation.secure_agent import SecureAgent


PUBLIC_METRICS = ("infeasibility", "rows")
"""The metrics that an agent with a privacy budget may report: they do not depend on its records,
or only through its model."""

COMMITTED_TERMS = ("algorithm", "parameters", "center", "grid", "m")
"""The metadata of a round by which its updates are committed."""

BEFORE_TRAINING = frozenset({*SUM_KINDS, TOTALS, SQUARES})
"""Messages that may come before the scaling of the data is known: they start no state."""


class Client:
    """One agent of a federation, which replies to the server's messages.

    Parameters
    ----------
    name : str
        Its name in the roster.
    agent : Agent or callable
        Its data, set and coupling, or a function that reads them when they are needed: messages
        about keys do not need them.
    folder : Path
        The directory of its state, and at the end of its model and its report.
    batch : float or int
        Fraction or number of its rows in a gradient.
    certificate : bool
        Whether its owner consents to certificates.
    report : sequence of str
        Which of ``METRICS`` its owner allows to report to the server.
    files : AgentFiles, optional
        Its file and the server's model, with which the results are a run directory.
    columns : callable, optional
        Reads its rows for training as they are in its file, if the data are standardised.
    secure : SecureAgent, optional
        Its side of secure sums; None if it has no key, and can't take part in them.
    only_secure : bool
        Whether its owner refuses trainings without a secure sum.
    rollbacks : int
        How often a training with a secure sum may go back, as far as its owner consents.
    privacy : Privacy, optional
        Its privacy budget, if ``agent`` is a function.
    ledger : Path, optional
        The file with what is spent of the agent's privacy budget in all trainings, if it has one;
        by default it is in the folder.
    """

    def __init__(
        self,
        name: str,
        agent: Agent | Callable[[], Agent],
        folder: Path,
        *,
        batch: float | int = 1.0,
        certificate: bool = False,
        report: Sequence[str] = (),
        files: AgentFiles | None = None,
        columns: Callable[[], Float64Array | None] = lambda: None,
        secure: SecureAgent | None = None,
        only_secure: bool = False,
        rollbacks: int = 0,
        privacy: Privacy | None = None,
        ledger: Path | None = None,
    ) -> None:
        self.name, self.folder = name, folder
        if isinstance(agent, Agent):
            self.agent, privacy = agent, agent.privacy
        else:
            self._read_agent = agent
        self._certificate, self._report = certificate, report
        self._files, self._columns = files, columns
        self._secure, self._only_secure, self._rollbacks = secure, only_secure, rollbacks
        self._batch = batch
        self._ledger = self._privacy_ledger(privacy, ledger)

    @cached_property
    def agent(self) -> Agent:
        """Its data, set and coupling."""
        return self._read_agent()

    @cached_property
    def _batches(self) -> BatchSampler:
        """How it draws batches."""
        size = self.agent.loss.size
        return BatchSampler(size, resolve_batch_size(self._batch, size, agent=self.name))

    def _privacy_ledger(self, privacy: Privacy | None, path: Path | None) -> PrivacyLedger | None:
        """Return what is spent of the agent's privacy budget; None if it has none."""
        if privacy is None:
            return None
        if unknown := set(self._report) - {*PUBLIC_METRICS}:
            raise ValueError(
                f"{self.name}: report must have only {', '.join(PUBLIC_METRICS)} where there is a "
                f"privacy budget, got {', '.join(sorted(unknown))}; remove the others."
            )
        return PrivacyLedger(path or self.folder / PRIVACY, privacy)

    @property
    def state_path(self) -> Path:
        """The file of its state."""
        return self.folder / STATE

    def handle(self, message: Message) -> Message:
        """Return the reply to a message; the state has been written when it returns.

        It raises a ValueError if the message does not fit the agent's state, which is a
        ProtocolError if server and agent have different versions or algorithms.
        """
        check_version(message.metadata)
        algorithm = read_algorithm(message.metadata)
        # Only the owner may read the folder: the state is private.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Flower may start a second process for this agent while the first still runs.
        with exclusive_lock(self.folder / LOCK):
            self._check_privacy(message)
            if is_secure(message.metadata) and message.kind not in SUM_KINDS:
                _check_vectors(message)
                self._secure_agent().check_terms(message)
            if message.kind not in SUM_KINDS:
                _ = self.agent  # rows that can't be read are found before anything changes
            state = self._load_state(algorithm, message)
            if self._ledger is not None and (state.pending or state.accepted != NO_ROUND):
                self._ledger.check_begun(state.training)
            self._check_secure(state, message)
            state = self._follow_rollbacks(algorithm, state, message)
            state = self._settle_pending(algorithm, state, message)
            if state.secure and message.kind not in (*BEFORE_TRAINING, "finish"):
                own = _own_digest(self.agent, self._batches)
                self._secure_agent().check_own(message, own)
            if message.kind == "train":
                state = self._train(algorithm, state, message)
            elif message.kind == "audit" and not state.secure:
                state = self._record_audit(state, message)
            state = self._report_metrics(algorithm, state, message)
            reply = self._reply(algorithm, state, message)
            # The state must be on the disk before the server can see the update: an agent that
            # forgot an accepted update would disagree with the server for ever.
            if self.state_path.exists() or message.kind not in BEFORE_TRAINING:
                state.save(self.state_path)
            remove_unneeded(self.folder, state, message.metadata)
            return reply

    def _check_privacy(self, message: Message) -> None:
        """Refuse what would reveal something about records outside of the privacy budget."""
        kind = message.kind
        if self._ledger is None:
            return
        if kind in (*REPLY_VECTORS, TOTALS, SQUARES):
            what = "standardization is" if kind in (TOTALS, SQUARES) else "certificates are"
            raise ProtocolError(
                f"its owner has set a privacy budget, and {what} computed from the records"
            )

    def _can_pay(self, algorithm: Algorithm, message: Message) -> bool:
        """Return whether the privacy budget allows another round, if there is one."""
        metadata = message.metadata
        gradients = algorithm.num_gradients(int(metadata["steps"]))
        return self._ledger is None or self._ledger.can_pay(str(metadata["training"]), gradients)

    def _private_gradients(
        self, algorithm: Algorithm, state: ClientState, message: Message, steps: int
    ) -> list[PrivateGradients]:
        """Return the gradients of a round, which are counted on the disk before they are taken."""
        if self._ledger is None:
            return []
        metadata, index = message.metadata, int(message.metadata["round"])
        if "rounds" not in metadata:
            raise ProtocolError(
                "the server does not say how many rounds there are, which its privacy budget needs"
            )
        gradients = algorithm.num_gradients(steps)
        left = max(1, int(metadata["rounds"]) - index)
        try:
            algorithm.resolved(Problem([self.agent.public_view]), RunInfo(left, steps, noisy=True))
        except MissingFeatureNorm:  # before anything is counted
            raise ProtocolError(
                f"{type(algorithm).__name__} needs privacy.feature_norm in the agent's file"
            ) from None
        training, question = str(metadata["training"]), _question(self.agent, state, message)
        batches, n = self._batches, self.agent.loss.n
        mechanism = Mechanism.of(batches.num_samples, batches.batch_size, batches.sampling)
        charge = self._ledger.charge(training, gradients, left, question, mechanism)
        if (plan := charge.new_plan) is not None:
            noise = plan.noise_multiplier, batches.batch_size, plan.gradients
            for warning in (
                noise_warning(self.name, relative_noise(*noise, n)),
                delta_warning(self.name, charge.noise.privacy, batches.num_samples),
            ):
                if warning is not None:
                    logging.getLogger("pcfed").warning("%s", warning)
        key = charge.noise.key(charge.secret, question)
        return [PrivateGradients(charge.noise, key, gradients)]

    def model(self, server: Mapping[str, Array], algorithm: Algorithm) -> Array:
        """Return the agent's own model, from the server's vectors and the saved state."""
        return self._own_model(algorithm, server, ClientState.load(self.state_path))

    def _own_model(
        self, algorithm: Algorithm, server: Mapping[str, Array], state: ClientState
    ) -> Array:
        """Return the agent's own model."""
        model = np.asarray(np.atleast_2d(algorithm.model(server, state.private))[0])
        return self.agent.feasible_set.project(model) if algorithm.feasible else model

    def _reply(self, algorithm: Algorithm, state: ClientState, message: Message) -> Message:
        """Return the reply to a message, once the state is up to date."""
        kind, received = message.kind, message.metadata
        metadata: dict[str, Scalar] = {
            "protocol": PROTOCOL_VERSION,
            "name": self.name,
            "training": received["training"],
            "round": received["round"],
            "rollbacks": received["rollbacks"],
            "certificate": not state.secure and self._certificate and self._ledger is None,
        }
        vectors: Mapping[str, NDArray[Any]] = {}
        if state.secure and kind in SUM_KINDS:
            metadata |= self._answer_of_sum(message)
            return Message(kind, metadata)
        if state.secure and kind != "finish":
            vectors, more = self._masked_reply(algorithm, state, message)
            metadata |= more
        elif kind == "train" and state.pending is not None:
            vectors = {name: rows[0] for name, rows in state.pending.sent.items()}
        elif kind == "audit" and state.audit is not None:
            # Products with public random vectors: averages are compared without the vectors.
            directions = audit_directions(state.audit.digest, self.agent.loss.n)
            audited = algorithm.audited(message.vectors, state.private)
            vectors = {name: directions @ rows[0] for name, rows in audited.items()}
        elif kind == "finish":
            model = self._own_model(algorithm, message.vectors, state)
            shared = algorithm.shared_model(message.vectors)
            end = AgentEnd(self.name, self.agent, model, shared, algorithm, received)
            save_results(self.folder, end, self._files)
        elif kind not in REPLY_VECTORS:
            raise ValueError(f"{self.name}: messages can't have the kind {kind!r}.")
        elif self._certificate:
            m, model = int(received["m"]), self._own_model(algorithm, message.vectors, state)
            vectors, more = certificate_reply(kind, self.agent, model, message.vectors, m)
            metadata |= more
        if kind in ("train", "finish") and state.reported is not None:
            metadata |= {f"metric_{name}": each for name, each in state.reported.metrics.items()}
        return Message(kind, metadata, vectors)

    def _report_metrics(
        self, algorithm: Algorithm, state: ClientState, message: Message
    ) -> ClientState:
        """Return the state with the metrics that the owner allows to report with this message.

        In a training with a secure sum the server gets them once for every accepted update: it
        could choose its vectors such that many of them tell what the loss or the set is.
        """
        if message.kind not in ("train", "finish") or not self._report:
            return state
        last = state.reported
        if state.secure and last is not None and last[:2] == (state.rollbacks, state.accepted):
            return state
        try:
            model = self._own_model(algorithm, message.vectors, state)
            metrics = local_metrics(self.agent, model, self._report)
        except Exception as error:
            if not state.secure:
                raise
            # A refusal would tell something at vectors that the server has chosen.
            self._log(f"its metrics are not reported: {one_line(str(error))}")
            metrics = {}
        return replace(state, reported=Reported(state.rollbacks, state.accepted, metrics))

    def _answer_of_sum(self, message: Message) -> dict[str, Scalar]:
        """Return the metadata of a reply to a message that is about a secure sum itself."""
        secure = self._secure_agent()
        if "group" in message.metadata and not self._can_pay(
            read_algorithm(message.metadata), message
        ):
            # It announces nothing for the next round, and sits it out; audits go on.
            rest = {key: each for key, each in message.metadata.items() if key != "group"}
            message = Message(message.kind, rest, message.vectors)
        answers = {
            "introduce": secure.introduce,
            "announce": secure.announce,
            "confirm": secure.confirm,
            "unmask": secure.unmask,
        }
        return answers[message.kind](message)

    def _masked_reply(
        self, algorithm: Algorithm, state: ClientState, message: Message
    ) -> tuple[dict[str, Integers], dict[str, Scalar]]:
        """Return the vectors and more metadata of a reply that goes into a secure sum.

        The last integer is 1 if the agent could not answer, and random integers are before it. To
        refuse an answer that is too large, say, would tell the server how large it is, and whose;
        and without it the sum would be that of the others, who may be few.
        """
        kind, secure, grid = message.kind, self._secure_agent(), _grid(message.metadata)
        if kind == "train" and state.pending is not None:
            sent = {name: rows[0] for name, rows in state.pending.sent.items()}
            integers = joined_integers(encode_all(grid, sent))
            withheld, history = state.pending.withheld, None
        else:
            integers, withheld = self._summand(algorithm, state, message, grid)
            history = state.history
        if withheld:
            integers = secure.random_integers(message, integers.size)
        masked, more = secure.mask(message, np.append(integers, np.uint64(withheld)), history)
        return {MASKED: masked}, more

    def _summand(
        self, algorithm: Algorithm, state: ClientState, message: Message, grid: Grid
    ) -> tuple[Integers, bool]:
        """Return an agent's part of a sum over the full roster, and whether it is withheld."""
        kind = message.kind
        if kind == "audit":
            digest = audit_digest(state.training, int(message.metadata["round"]), message.vectors)
            sizes = parse_json(str(message.metadata["audited"]))
            return integer_products(digest, state.totals, sizes), False
        columns = self._columns()
        m, size = int(message.metadata["m"]), _num_summed(kind, self.agent.loss.n, columns)
        try:
            # The same question must have the same answer, to the bit.
            with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
                model = self._own_model(algorithm, message.vectors, state)
                if kind in ROW_SUMS:
                    # Losses on held-out records are not in the privacy budget: it sends none.
                    agent = self.agent if self._ledger is None else replace(self.agent, test=None)
                    numbers = row_sums_reply(message, agent, model, columns)
                else:
                    found = certificate_reply(kind, self.agent, model, message.vectors, m)
                    numbers = summands(kind, *found)
            return grid.encode_wide(kind, numbers), False
        except ProtocolError:  # it is about the message alone
            raise
        except Exception as error:  # it depends on what is private
            self._log(
                f"random numbers take the place of its part of {kind}: {one_line(str(error))}"
            )
            return grid.encode_wide(kind, np.zeros(size)), True

    def _log(self, text: str) -> None:
        """Write a warning to the owner's log."""
        logging.getLogger("pcfed").warning("%s: %s", self.name, text)

    def _check_secure(self, state: ClientState, message: Message) -> None:
        """Raise if the agent can't or may not answer a message with or without a secure sum."""
        secure = is_secure(message.metadata)
        if self._only_secure:
            refuse_plain(message.metadata)
        if secure != state.secure:
            begun = "with" if state.secure else "without"
            raise ValueError(
                f"{self.name}: the training {state.training!r} began {begun} a secure sum, which "
                "can't change; give it another name."
            )
        if not secure:
            return
        agent = self._secure_agent()
        if int(message.metadata["rollbacks"]) > self._rollbacks:
            raise ProtocolError(
                "its owner has not consented to go back; the owner can, with rollbacks = "
                f"{int(message.metadata['rollbacks'])} in the agent's file"
            )
        agent.check_accepted(message)

    def _secure_agent(self) -> SecureAgent:
        """Return the agent's side of secure sums, or raise."""
        if self._secure is None:
            raise ValueError(
                f"{self.name}: a secure sum needs the agent's key, {self.name}.key beside its "
                "file; write it with pcfed federation agent init."
            )
        return self._secure

    def _load_state(self, algorithm: Algorithm, message: Message) -> ClientState:
        """Return the saved state, or that before the first round."""
        metadata = message.metadata
        training, accepted = str(metadata["training"]), int(metadata["accepted_round"])
        if not self.state_path.exists():
            if accepted == NO_ROUND and message.kind in SUM_KINDS:
                return _empty_state(metadata)
            if accepted == NO_ROUND:
                return self._new_state(algorithm, metadata)
            raise ValueError(
                f"{self.name}: its updates have been accepted up to round {accepted}, but "
                f"there is no state in {self.state_path}; restore it, or start another training."
            )
        state = ClientState.load(self.state_path)
        if state.training != training:
            raise ValueError(
                f"{self.name}: {self.state_path} belongs to the training {state.training!r}, but "
                f"the server trains {training!r}; give this training a folder of its own."
            )
        return state

    def _new_state(self, algorithm: Algorithm, metadata: Mapping[str, Scalar]) -> ClientState:
        """Return the state before the first round."""
        models = np.zeros((1, self.agent.loss.n))
        if algorithm.feasible:
            models[0] = self.agent.feasible_set.project(models[0])
        return replace(_empty_state(metadata), private=algorithm.start(models)[1])

    def _follow_rollbacks(
        self, algorithm: Algorithm, state: ClientState, message: Message
    ) -> ClientState:
        """Return the state of the server's checkpoint if the training has gone back."""
        metadata = message.metadata
        rollbacks, accepted = int(metadata["rollbacks"]), int(metadata["accepted_round"])
        if rollbacks == state.rollbacks:
            return state
        if rollbacks < state.rollbacks:
            raise ValueError(
                f"{self.name}: a message from before rollback {state.rollbacks} of the training "
                "arrived after it: it is old, or the server started again; then it must give the "
                "training another name."
            )
        restored: ClientState | None = state
        if accepted == NO_ROUND:
            restored = self._new_state(algorithm, metadata)
        elif accepted < state.accepted:
            restored = earlier_state(self.folder, accepted)
        if restored is None:
            raise ValueError(
                f"{self.name}: the training has gone back to its update of round {accepted}, whose "
                f"state is not in {self.folder} any more; go back to a later round, or start "
                "another training."
            )
        # A pending update counts only if the checkpoint contains it.
        pending = restored.pending
        if pending is not None and pending.round_info.index != accepted:
            pending = None
        return replace(restored, pending=pending, rollbacks=rollbacks, audit=state.audit)

    def _settle_pending(
        self, algorithm: Algorithm, state: ClientState, message: Message
    ) -> ClientState:
        """Return the state after the pending update was committed, if it was accepted."""
        accepted = int(message.metadata["accepted_round"])
        if accepted == state.accepted:
            return state  # an update that is still pending may be accepted in this round
        if accepted < state.accepted:
            raise ValueError(
                f"{self.name}: its update of round {state.accepted} was accepted, but the "
                f"server knows of accepted updates up to round {accepted}: the message is "
                "old, or the server started again; then it must give the training another name."
            )
        pending = state.pending
        if pending is None or pending.round_info.index != accepted:
            raise ValueError(
                f"{self.name}: the server has accepted its update of round {accepted}, which "
                f"{self.state_path} does not contain; restore the newest copy of that file."
            )
        totals, history = dict(state.totals), state.history
        if state.secure:
            history = self._secure_agent().commit(message, history)
            # Updates of earlier versions do not have their terms.
            grid = _grid({**message.metadata, **pending.terms})
            add_integers(totals, encode_all(grid, pending.sent))
        keep_state(self.folder, replace(state, pending=None), accepted, message.metadata)
        private = state.private
        if not pending.withheld:
            if pending.terms:
                algorithm = read_algorithm({**pending.terms, **round_metadata(pending.round_info)})
            new = algorithm.commit(private, pending.kept, pending.received, pending.round_info)
            private = {name: np.asarray(rows, np.float64) for name, rows in new.items()}
        return replace(
            state,
            accepted=accepted,
            private=private,
            pending=None,
            totals=totals,
            history=history,
        )

    def _record_audit(self, state: ClientState, message: Message) -> ClientState:
        """Return the state with the audit of a message as the last one, or refuse it.

        Each answer has a few numbers about the private state. With one audit for every accepted
        update, they can't add up to the state: it has changed before the next answer.
        """
        training, rounds = str(message.metadata["training"]), int(message.metadata["round"])
        digest = audit_digest(training, rounds, message.vectors)
        last = state.audit
        if last is not None and digest != last.digest and state.accepted <= last.accepted:
            raise ProtocolError(
                "it has answered another audit since its last accepted update; train one more "
                "round with it first"
            )
        return replace(state, audit=Audit(state.accepted, digest))

    def _train(self, algorithm: Algorithm, state: ClientState, message: Message) -> ClientState:
        """Return the state with the update of the round pending."""
        metadata, round_info = message.metadata, read_round_info(message.metadata)
        if int(metadata["steps"]) < 1:
            raise ProtocolError(f"a round must have a local step or more, got {metadata['steps']}")
        last = -1 if state.pending is None else state.pending.round_info.index
        if last == round_info.index:
            # The server may have received the update of the first request, and accept either
            # reply. It must not matter which, so the update is never computed again.
            return state
        if last > round_info.index:
            raise ValueError(
                f"{self.name}: a message of round {round_info.index} arrived after one of round "
                f"{last}: it is old, or the server started again; then it must give the training "
                "another name."
            )
        if state.secure:
            self._secure_agent().remember_question(message)
        steps = int(metadata["steps"])
        private = self._private_gradients(algorithm, state, message, steps)
        context = LocalContext(
            [self.agent],
            [int(metadata["position"])],
            steps,
            [self._batches],
            seed=int(metadata["seed"]),
            index=round_info.index,
            private=private,
        )
        received = {name: vector.astype(np.float64) for name, vector in message.vectors.items()}
        terms = {key: metadata[key] for key in COMMITTED_TERMS if key in metadata}
        withheld = False
        try:
            # The server refuses an update that is not finite; NumPy's warnings would add nothing.
            with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
                update = algorithm.local(context, received, state.private, round_info)
            if state.secure:
                self._check_norms(update, metadata)
                update = _grid(metadata).rounded(update)
        except Exception as error:
            if not state.secure:
                raise
            index = round_info.index
            self._log(
                f"random numbers take the place of its update of round {index}: "
                f"{one_line(str(error))}"
            )
            update, withheld = _zero_update(algorithm, received, round_info.m), True
        pending = PendingUpdate(
            *(round_info, update.pending, update.sent, received), terms, withheld
        )
        return replace(state, pending=pending)

    def _check_norms(self, update: Update, metadata: Mapping[str, Scalar]) -> None:
        """Raise if an update is too long: under a secure sum nobody else may see that."""
        limit = float(metadata["norm_limit"])
        for name, rows in update.sent.items():
            norm = vector_norm(rows[0])
            if name != STATISTICS and not norm <= limit:
                raise ValueError(
                    f"the norm of its {name} is {norm:.3g}, above the limit {limit:.3g} of the "
                    "training; if it is right, the server must raise rounds.norm_limit."
                )


def _empty_state(metadata: Mapping[str, Scalar]) -> ClientState:
    """Return the state before the first round, without private vectors."""
    return ClientState(
        str(metadata["training"]),
        NO_ROUND,
        {},
        rollbacks=int(metadata["rollbacks"]),
        secure=is_secure(metadata),
    )


def _num_summed(kind: str, n: int, columns: Float64Array | None) -> int:
    """Return how many numbers an agent adds to a sum over the full roster."""
    if kind in REPLY_VECTORS:
        return len(REPLY_VECTORS[kind]) * n + len(SUMMED_NUMBERS[kind])
    number = 0 if columns is None else columns.shape[1]
    sizes = {SCORE: 2, TOTALS: 1 + number, SQUARES: 2 * number}
    if kind not in sizes:
        raise ValueError(f"messages can't have the kind {kind!r}.")
    return sizes[kind]


def _zero_update(algorithm: Algorithm, server: Mapping[str, Array], m: int) -> Update:
    """Return zeros in place of an update that is not sent."""
    n = next(iter(server.values())).size
    sent = {name: np.zeros((1, n)) for name in algorithm.sent_vectors(server, m)}
    if algorithm.statistics:
        sent[STATISTICS] = np.zeros((1, len(algorithm.statistics)))
    return Update(sent, {})


def _check_vectors(message: Message) -> None:
    """Refuse vectors of other types, which could have another meaning and the same hash."""
    for name, vector in message.vectors.items():
        if vector.dtype != np.float64 or vector.ndim != 1:
            raise ProtocolError(
                f"the vector {short_repr(name)} of the server must be one-dimensional and in "
                f"float64, got the shape {vector.shape} in {vector.dtype}"
            )


def refuse_plain(metadata: Mapping[str, Scalar]) -> None:
    """Raise if a message belongs to a training without a secure sum."""
    if not is_secure(metadata):
        raise ProtocolError(
            "its owner takes part only with a secure sum; set secure = true in server.toml, or "
            "ask the owner to set secure = false in agent.toml"
        )


def _own_digest(agent: Agent, batches: BatchSampler) -> str:
    """Return a hash of all of an agent that its answers depend on."""
    losses = [agent.loss] if agent.test is None else [agent.loss, agent.test]
    with one_blas_thread():
        digests = [records_digest(each) or loss_digest(each) for each in losses]
    # The owner may raise the budget itself, which only makes the noise smaller.
    privacy = agent.privacy and (agent.privacy.clip, agent.privacy.feature_norm)
    own = [privacy, agent.feasible_set, agent.coupling, agent.personalization, batches.batch_size]
    return hashlib.sha256(repr([*digests, *own]).encode()).hexdigest()


def _question(agent: Agent, state: ClientState, message: Message) -> str:
    """Return a digest of all that the gradients of a round depend on."""
    # After a rollback, the state and the vectors tell whether the question is the same.
    asked = question_digest(message, (NOT_ASKED | {"rollbacks"}) - {"position"})
    own = [agent.privacy, agent.feasible_set, agent.coupling, agent.personalization]
    with one_blas_thread():
        text = repr([asked, loss_digest(agent.loss), *own])
    found = hashlib.sha256(text.encode())
    for name, vector in sorted(state.private.items()):
        found.update(repr([name, vector.shape]).encode())
        found.update(np.ascontiguousarray(vector, np.float64).tobytes())
    return found.hexdigest()


def _grid(metadata: Mapping[str, Scalar]) -> Grid:
    """Return the grid of a training with a secure sum."""
    return Grid(float(metadata["grid"]), int(metadata["m"]))
