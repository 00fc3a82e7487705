"""The agent's side of secure sums: its secrets, and the rules by which it answers.

Whatever the server asks, in whatever order and however often, an agent

1. uses a secret for one sum, and an announcement of another agent in one sum;
2. opens one sum of a round, and then sits out repeats of the round;
3. opens a sum only if at least t of those in it have signed who is in it;
4. reveals a share of an agent's own mask or of its key, never both;
5. answers one question of each kind over the full roster until its next update is accepted, and
   only together with agents that have committed the same sums;
6. masks one vector with a secret: masks follow from the question, which can't change in a round;
7. takes part only in sums of enough agents, as its owner's roster says;
8. does not go back to an earlier round, unless its owner consents;
9. takes part only while the settings of the training and its own data stay as they were at first.

What breaks a rule is refused with a sentence in the agent's own log. All that the rules need to
remember is on the disk before a reply leaves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

import numpy as np

from pcfed.algorithms.grid import Integers
from pcfed.errors import one_line, short_repr
from pcfed.extras import MissingExtra
from pcfed.federation.identity import Identity, Roster, digest, is_signed
from pcfed.federation.masking import (
    Announcement,
    Introduction,
    Secrets,
    SecureSumError,
    announce,
    context_of,
    masked,
    open_shares,
    random_integers,
    threshold,
)
from pcfed.federation.protocol import (
    INVALID_FIELDS,
    SUM_KINDS,
    Message,
    ProtocolError,
    Scalar,
    question_digest,
)
from pcfed.federation.server_state import Place
from pcfed.storage.atomic import private_files
from pcfed.storage.reading import parse_json
from pcfed.storage.saved import InvalidFile, Metadata, SavedJson

try:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
except ModuleNotFoundError as missing:
    raise MissingExtra(__name__, str(missing.name), "flower") from None

SHARED, COMPLETE = "shared", "complete"
"""The kinds of announcements: with shares, and for sums over the full roster."""

MIN_HONEST = 2
"""So many agents of a sum do not work together with the server."""

TERMS = (
    *("algorithm", "parameters", "center", "m", "steps", "seed", "position"),
    *("grid", "colluders", "model", "scaling"),
)
"""The settings in the metadata of messages that can't change in a training."""

MAX_PLACE = 2**31
"""Rounds and rollbacks are smaller."""

MAX_UNUSED = 8
"""So many secrets that were announced and not used are kept."""


@dataclass
class OwnSecret:
    """A secret that the agent has announced.

    ``group`` is the digest of the group in which it is shared, or empty, and ``threshold`` is how
    many of them can open it; ``used`` is the context of the sum for which it served, or None, and
    ``summand`` is a hash of what it has masked.
    """

    key_seed: str
    mask_seed: str
    group: str
    threshold: int
    used: str | None = None
    summand: str | None = None

    @property
    def secrets(self) -> Secrets:
        """The two seeds."""
        return Secrets(bytes.fromhex(self.key_seed), bytes.fromhex(self.mask_seed))


@dataclass
class SumRecord:
    """What the agent has done for a sum with one purpose, in all attempts at it.

    Attributes
    ----------
    question : str or None
        The hash of what the server asked.
    participants : dict of str to list
        The public parts of all announcements, by the context of the attempt.
    signed : dict of str to list of str
        Who is in the sum, as the agent has signed it, by context.
    opened : str or None
        The hash of the request to open the sum that the agent has answered.
    """

    question: str | None = None
    participants: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    signed: dict[str, list[str]] = field(default_factory=dict)
    opened: str | None = None


@dataclass
class SecretState(SavedJson):
    """What an agent remembers of secure sums, in a file that never leaves it.

    ``names`` are those of all agents that it has heard of, and ``masked`` has by context the sums
    into which an update went that may still be accepted: rollbacks, round and the smallest number
    of agents. ``opened`` is the last sum that it has opened: rollbacks, round and a hash of the
    context and the survivors. ``answered`` has by kind the last question over the full roster:
    rollbacks, accepted round, and the hashes of the question and of what the agent has added.
    ``terms`` are the settings of the training as the agent has first heard them, and ``own`` is a
    hash of its own data, constraint and settings, as they were when it first used them.
    """

    file_kind: ClassVar[str] = "file of an agent's secrets"
    format: ClassVar[int] = 2
    advice: ClassVar[str] = "restore the newest copy: an older one forgets which secrets were used."

    training: str
    box: str
    agents: int
    identities: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    secrets: dict[str, OwnSecret] = field(default_factory=dict)
    place: tuple[int, int] = (0, 0)
    sums: dict[str, SumRecord] = field(default_factory=dict)
    masked: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    opened: tuple[int, int, str] | None = None
    answered: dict[str, list[Any]] = field(default_factory=dict)
    terms: dict[str, Any] = field(default_factory=dict)
    own: str | None = None

    def _to_json(self) -> Metadata:
        return {
            **vars(self),
            "secrets": {key: vars(each) for key, each in self.secrets.items()},
            "sums": {key: vars(each) for key, each in self.sums.items()},
        }

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        opened = contents["opened"]
        more = {
            "secrets": {key: OwnSecret(**each) for key, each in contents["secrets"].items()},
            "sums": {key: SumRecord(**each) for key, each in contents["sums"].items()},
            "place": tuple(contents["place"]),
            "masked": {key: tuple(each) for key, each in contents["masked"].items()},
            "opened": None if opened is None else tuple(opened),
        }
        return cls(**{**contents, **more})


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Method = Callable[Concatenate["SecureAgent", Message, Parameters], Result]


def _refuses_invalid(method: Method[Parameters, Result]) -> Method[Parameters, Result]:
    """Make a method say in a sentence that a message has missing or wrong fields."""

    @wraps(method)
    def checked(
        self: SecureAgent,
        message: Message,
        /,
        *arguments: Parameters.args,
        **options: Parameters.kwargs,
    ) -> Result:
        try:
            return method(self, message, *arguments, **options)
        except (SecureSumError, ProtocolError, InvalidFile):
            raise
        except INVALID_FIELDS as error:
            raise SecureSumError(
                f"the message of kind {short_repr(message.kind)} is not valid "
                f"({type(error).__name__})"
            ) from error

    return checked


class SecureAgent:
    """One agent in secure sums.

    Parameters
    ----------
    name : str
        The agent's name.
    identity : Identity
        Its key.
    path : Path
        The file of its secrets.
    roster : Roster, optional
        The names and keys of all agents, if the owner has them. Without it the agent believes the
        first key that it hears of each other agent.
    """

    def __init__(
        self, name: str, identity: Identity, path: Path, roster: Roster | None = None
    ) -> None:
        self.name, self.identity, self.roster = name, identity, roster
        self._path = path

    # -- messages -----------------------------------------------------------------------------

    @_refuses_invalid
    def introduce(self, message: Message) -> dict[str, Scalar]:
        """Answer ``introduce``: tell the agent's public keys."""
        state = self._load(message)
        self._save(state)
        box = X25519PrivateKey.from_private_bytes(bytes.fromhex(state.box))
        introduction = Introduction.of(state.training, self.name, self.identity, box)
        return {"introduction": json.dumps(introduction)}

    @_refuses_invalid
    def announce(self, message: Message) -> dict[str, Scalar]:
        """Answer ``announce``: make new secrets, and announce them."""
        state = self._load(message)
        announced = self._announce(state, message)
        self._save(state)
        return announced

    @_refuses_invalid
    def remember_question(self, message: Message) -> None:
        """Remember what is asked of the agent's update, before it is computed.

        Otherwise the server could ask the same round with many norm limits, and learn the norm.
        """
        state = self._load(message)
        _remember_question(state, message)
        self._save(state)

    @_refuses_invalid
    def check_terms(self, message: Message) -> None:
        """Remember the settings of the training, or refuse to go on with others."""
        self._save(self._load(message))

    @_refuses_invalid
    def random_integers(self, message: Message, size: int) -> Integers:
        """Return what takes the place of an answer that can't be sent: the sum is then useless.

        Zeros would leave the sum of the others, who may be few. The same message gets the same.
        """
        secret = bytes.fromhex(self._load(message).box)
        return random_integers(secret, question_digest(message), size)

    @_refuses_invalid
    def check_own(self, message: Message, own: str) -> None:
        """Refuse to go on with other data, constraint or settings of the agent than at first.

        Otherwise two sums could differ in nothing but what one owner has changed.

        Parameters
        ----------
        message : Message
            The message.
        own : str
            A hash of them.
        """
        state = self._load(message)
        if state.own is None:
            state.own = own
            self._save(state)
        elif state.own != own:
            raise ProtocolError(
                "its owner has changed the data, the constraint or the settings in agent.toml "
                "since this training began; the owner must restore them, or take part in another "
                "training"
            )

    @_refuses_invalid
    def mask(
        self, message: Message, integers: Integers, history: Mapping[str, str] | None = None
    ) -> tuple[Integers, dict[str, Scalar]]:
        """Return integers with masks, and more metadata of the reply.

        Parameters
        ----------
        message : Message
            The message, with all announcements.
        integers : array of uint64
            What is to be summed.
        history : mapping of str to str, optional
            What the agent has committed with every other one (`commit`), if the sum is over the
            full roster. Masks with an agent that has another history do not cancel.
        """
        complete = history is not None
        if complete:
            # Its sum shows whether the masks cancel.
            integers = np.append(integers, np.uint64(0))
        state = self._load(message)
        record, question = _remember_question(state, message)
        participants, colluders = _announcements(message), self._colluders(message)
        context = context_of(question, participants)
        if context not in record.participants:
            own = self._check_participants(state, message, participants, complete=complete)
            if record.opened is not None:
                raise SecureSumError("it has opened a sum of this round, and sits out repeats")
            if own.used is not None:
                raise SecureSumError("its secret was used for another sum")
            self._check_names(state, [each.name for each in participants], colluders)
            own.used = context
            record.participants[context] = [each.public for each in participants]
        own = next(each for each in state.secrets.values() if each.used == context)
        # The difference of two vectors with the same masks has none.
        summand = digest(integers.tobytes()).hex()
        if complete:
            self._check_question(state, message, question, summand)
        else:
            self._remember_masked(state, message, context, own)
        vector = digest(summand, json.dumps(history, sort_keys=True)).hex()
        if own.summand not in (None, vector):
            raise SecureSumError("its secret was used for another vector")
        own.summand = vector
        result = masked(integers, self.name, own.secrets, participants, context, history)
        more = self._announce(state, message) if complete else {}
        self._save(state)
        return result, {**more, "context": context}

    @_refuses_invalid
    def confirm(self, message: Message) -> dict[str, Scalar]:
        """Answer ``confirm``: sign who is in the sum."""
        state = self._load(message)
        context, survivors = str(message.metadata["context"]), _survivors(message)
        record, _ = self._check_survivors(state, message, context, survivors)
        if record.signed.setdefault(context, survivors) != survivors:
            raise SecureSumError("it has signed another list of those who are in the sum")
        self._save(state)
        signature = self.identity.sign("survivors", context, *survivors)
        return {"signature": signature.hex()}

    @_refuses_invalid
    def unmask(self, message: Message) -> dict[str, Scalar]:
        """Answer ``unmask``: open the shares of own masks of survivors, and of keys of others."""
        state = self._load(message)
        context, survivors = str(message.metadata["context"]), _survivors(message)
        record, t = self._check_survivors(state, message, context, survivors)
        request = digest(context, *survivors).hex()
        if record.opened not in (None, request):
            raise SecureSumError("it has opened another sum of this round")
        signatures = parse_json(str(message.metadata["signatures"]))
        signed = [
            name
            for name in survivors
            if name in signatures
            and is_signed(
                self._identity(state, name),
                bytes.fromhex(signatures[name]),
                "survivors",
                context,
                *survivors,
            )
        ]
        if len(signed) < t:
            raise SecureSumError(
                f"{len(signed)} agents have signed who is in the sum, and {t} must"
            )
        shares = self._shares(state, message, record.participants[context], survivors)
        record.opened, state.opened = request, (*state.place, request)
        announced = self._announce(state, message) if "group" in message.metadata else {}
        self._save(state)
        return {**shares, **announced}

    @_refuses_invalid
    def check_accepted(self, message: Message) -> None:
        """Refuse to go on if an update that the agent has helped to open does not count."""
        if not self._path.exists():
            return
        state, metadata = SecretState.load(self._path), message.metadata
        if state.opened is None or state.opened[0] != int(metadata["rollbacks"]):
            return
        index = state.opened[1]
        if int(metadata["round"]) > index > int(metadata["accepted_round"]):
            raise SecureSumError(
                f"its update of round {index} was in a sum that it has opened, and now the server "
                "says that it did not count; only a rollback, with the owner's consent, undoes it"
            )

    @_refuses_invalid
    def commit(self, message: Message, history: Mapping[str, str]) -> dict[str, str]:
        """Return the history with the accepted update of a message, or raise if it can't count.

        Agents that commit the same sum get the same entries for each other. So what differs from
        one sum over the full roster to the next are updates of at least t agents that were asked
        the same, whatever the server has sent to each of them.

        Parameters
        ----------
        message : Message
            The first message that says that the agent's last update was accepted.
        history : mapping of str to str
            By the name of each other agent, a hash of all sums that both have committed.
        """
        state, metadata = SecretState.load(self._path), message.metadata
        index, accepted = int(metadata["accepted_round"]), parse_json(str(metadata["accepted_sum"]))
        context, survivors = str(accepted["context"]), list(map(str, accepted["survivors"]))
        rollbacks, masked_round, least = state.masked.get(context, (0, None, 0))
        if masked_round != index:
            raise SecureSumError(f"its update of round {index} went into another sum")
        known = state.names if self.roster is None else self.roster.keys
        if sorted(set(survivors)) != survivors or not {self.name} <= {*survivors} <= {*known}:
            raise SecureSumError("the list of those whose updates count is not right")
        if len(survivors) < least:
            raise SecureSumError(f"{len(survivors)} updates count, and {least} must")
        committed = digest(context, *survivors).hex()
        opened = state.opened
        if opened is not None and opened[:2] == (rollbacks, index) and opened[2] != committed:
            raise SecureSumError("it has opened another sum of this round")
        new = {
            name: digest(history.get(name, ""), committed).hex()
            for name in survivors
            if name != self.name
        }
        return {**history, **new}

    # -- rules --------------------------------------------------------------------------------

    def _check_participants(
        self,
        state: SecretState,
        message: Message,
        participants: Sequence[Announcement],
        *,
        complete: bool,
    ) -> OwnSecret:
        """Return the agent's own secret for a sum with these announcements, or raise."""
        names = [each.name for each in participants]
        if len(set(names)) != len(names):
            raise SecureSumError("an agent is there twice")
        mine = [each for each in participants if each.name == self.name]
        own = state.secrets.get(mine[0].mask_key) if mine else None
        if own is None:
            raise SecureSumError("none of its own secrets is there")
        place = _place_text(message)
        used = {
            public["mask_key"]
            for record in state.sums.values()
            for others in record.participants.values()
            for public in others
        }
        for each in participants:
            if not each.is_valid(state.training, self._identity(state, each.name)):
                raise SecureSumError(f"the announcement of {each.name} is not signed by it")
            if each.place != place or each.group != own.group:
                raise SecureSumError(f"the announcement of {each.name} is for another sum")
            if each.mask_key in used:
                raise SecureSumError(f"the announcement of {each.name} was used before")
        if complete != (own.group == ""):
            raise SecureSumError("its secret is for sums of another kind")
        if complete and not self._is_full(state, names):
            raise SecureSumError("this sum must be over the full roster")
        if not complete and len(names) < max(own.threshold, self._minimum):
            raise SecureSumError(f"{len(names)} agents are too few for a sum")
        return own

    def _check_question(
        self, state: SecretState, message: Message, question: str, summand: str
    ) -> None:
        """Raise if the agent has answered something else since its last accepted update."""
        metadata = message.metadata
        place = [int(metadata["rollbacks"]), int(metadata["accepted_round"])]
        asked = [*place, question]
        last = state.answered.setdefault(message.kind, [*asked, summand])
        if last[:2] == place and last[:3] != asked:
            raise SecureSumError(
                f"it has answered another {message.kind} since its last accepted update"
            )
        if last[:3] == asked and last[3] != summand:
            # The difference of the two sums would be what has changed.
            raise SecureSumError(
                f"its answer to {message.kind} has changed since it gave one, for example because "
                "its owner has changed the constraint or the data; train one more round with it"
            )
        state.answered[message.kind] = [*asked, summand]

    def _remember_masked(
        self, state: SecretState, message: Message, context: str, own: OwnSecret
    ) -> None:
        """Remember into which sum an update goes, and forget sums that can't count any more."""
        # That of the last accepted round is kept: the agent may die before it has committed it.
        accepted = int(message.metadata["accepted_round"])
        state.masked = {key: each for key, each in state.masked.items() if each[1] >= accepted}
        state.masked[context] = (*state.place, max(own.threshold, self._minimum))

    def _is_full(self, state: SecretState, names: Sequence[str]) -> bool:
        """Return whether these are all agents of the training."""
        if self.roster is not None:
            return set(names) == set(self.roster.keys)
        return len(names) == state.agents

    def _check_survivors(
        self, state: SecretState, message: Message, context: str, survivors: Sequence[str]
    ) -> tuple[SumRecord, int]:
        """Return the record of a sum with these survivors and the threshold t, or raise."""
        record = state.sums.get(str(message.metadata["purpose"]))
        own = next((each for each in state.secrets.values() if each.used == context), None)
        if record is None or own is None or context not in record.participants or not own.group:
            raise SecureSumError("it has not taken part in this sum")
        names = {public["name"] for public in record.participants[context]}
        t = max(own.threshold, self._minimum)
        if sorted(set(survivors)) != list(survivors) or not set(survivors) <= names:
            raise SecureSumError("the list of those who are in the sum is not right")
        if self.name not in survivors:
            raise SecureSumError("it is not in the sum")
        if len(survivors) < t:
            raise SecureSumError(f"{len(survivors)} agents are in the sum, and {t} must be")
        return record, own.threshold

    def _shares(
        self,
        state: SecretState,
        message: Message,
        participants: Sequence[dict[str, str]],
        survivors: Sequence[str],
    ) -> dict[str, Scalar]:
        """Return the agent's shares that open a sum; one that can't be opened is left out."""
        encrypted = parse_json(str(message.metadata["shares"]))
        box = X25519PrivateKey.from_private_bytes(bytes.fromhex(state.box))
        key_shares, mask_shares = {}, {}
        for public in participants:
            name = public["name"]
            try:
                shares = {self.name: str(encrypted.get(name, ""))}
                announcement = Announcement.of_public(public, shares)
                of_key, of_mask = open_shares(state.training, announcement, self.name, box)
            except SecureSumError:
                continue
            if name in survivors:
                mask_shares[name] = of_mask.hex()
            else:
                key_shares[name] = of_key.hex()
        return {"mask_shares": json.dumps(mask_shares), "key_shares": json.dumps(key_shares)}

    def _announce(self, state: SecretState, message: Message) -> dict[str, Scalar]:
        """Return announcements of new secrets, as the message asks for them."""
        metadata = message.metadata
        place, colluders = str(metadata["next_place"]), self._colluders(message)
        group: list[Introduction] = []
        if "group" in metadata:
            group = [Introduction(*each) for each in parse_json(str(metadata["group"]))]
            self._check_group(state, group, colluders)
        announced = {}
        for kind, members in ((SHARED, group), (COMPLETE, ())):
            if kind == SHARED and not members:
                continue
            secrets = Secrets.create()
            made = announce(
                state.training, self.name, place, self.identity, secrets, members, colluders
            )
            state.secrets[made.mask_key] = OwnSecret(
                secrets.key_seed.hex(),
                secrets.mask_seed.hex(),
                made.group,
                threshold(len(members), colluders),
            )
            announced[kind] = vars(made)
        return {"announcements": json.dumps(announced)}

    def _check_group(
        self, state: SecretState, group: Sequence[Introduction], colluders: int
    ) -> None:
        """Raise unless all keys of a group are known, or new and signed; remember new ones."""
        names = [each.name for each in group]
        if len(set(names)) != len(names) or self.name not in names:
            raise SecureSumError("the group for shares is not right")
        self._check_names(state, names, colluders)
        for each in group:
            if not each.is_valid(state.training):
                raise SecureSumError(f"the keys of {each.name} are not signed")
            if self._identity(state, each.name, each.identity) != each.identity:
                raise SecureSumError(f"the key of {each.name} is not the one that is known")
        known = {*state.identities.values()}
        if len(known) != len(state.identities):
            raise SecureSumError("two names have the same key")

    def _check_names(self, state: SecretState, names: Sequence[str], colluders: int) -> None:
        """Raise if so few or so many agents can't be those of a sum; remember new names.

        With fewer, the colluders would know all summands but one. With more agents than there are
        in the training, the differences of sums over several full rosters would have few summands.
        """
        if len(names) < max(colluders + MIN_HONEST, self._minimum):
            raise SecureSumError(
                f"{len(names)} agents are too few for a sum with {colluders} colluders"
            )
        known = {*state.names, *names, self.name}
        if len(known) > state.agents:
            raise SecureSumError(
                f"there are more than {state.agents} agents, the number of the training"
            )
        state.names = sorted(known)

    def _identity(self, state: SecretState, name: str, new: str | None = None) -> str:
        """Return the known public key of an agent; a new one is remembered."""
        if name == self.name:
            return self.identity.public
        if self.roster is not None:
            if name not in self.roster.keys:
                raise SecureSumError(f"{name} is not in the roster")
            return self.roster.keys[name]
        if name not in state.identities and new is not None:
            state.identities[name] = new
        if name not in state.identities:
            raise SecureSumError(f"the key of {name} is not known")
        return state.identities[name]

    def _colluders(self, message: Message) -> int:
        """Return the number of colluders of a message; the owner's roster may ask for more."""
        colluders = int(message.metadata["colluders"])
        if colluders < (0 if self.roster is None else self.roster.colluders):
            raise SecureSumError("the roster of its owner has more colluders than the server")
        return colluders

    @property
    def _minimum(self) -> int:
        """The smallest number of agents in a sum that the owner's roster allows."""
        return 0 if self.roster is None else self.roster.minimum

    # -- state --------------------------------------------------------------------------------

    def _load(self, message: Message) -> SecretState:
        """Return the state at the place of a message, or raise if that is over."""
        metadata = message.metadata
        agents = int(metadata["m"])
        if self._path.exists():
            state = SecretState.load(self._path)
        else:
            state = SecretState(str(metadata["training"]), os.urandom(32).hex(), agents)
        if self.roster is not None and agents != len(self.roster.keys):
            raise SecureSumError(
                f"the roster of its owner has {len(self.roster.keys)} agents, and the training "
                f"{agents}"
            )
        if state.training != metadata["training"] or state.agents != agents:
            raise SecureSumError(one_line(f"its secrets are for {state.training!r}, not for this"))
        # Keys alone reveal nothing: before anything else is asked, settings may be corrected.
        _check_terms(state, metadata, remember=message.kind not in SUM_KINDS)
        place = int(metadata["rollbacks"]), int(metadata["round"])
        if not (0 <= place[0] < MAX_PLACE and 0 <= place[1] < MAX_PLACE):
            raise SecureSumError("a message of a round that can't be")
        if place < state.place:
            raise SecureSumError("a message of a sum that is over")
        if place > state.place:
            state.place, state.sums = place, {}
        return state

    def _save(self, state: SecretState) -> None:
        """Write the state, without the secrets that can't be needed any more."""
        contexts = {context for each in state.sums.values() for context in each.participants}
        unused = [key for key, each in state.secrets.items() if each.used is None]
        kept = {*unused[-MAX_UNUSED:]}
        state.secrets = {
            key: each for key, each in state.secrets.items() if key in kept or each.used in contexts
        }
        with private_files():
            state.save(self._path)


def _check_terms(state: SecretState, metadata: Mapping[str, Scalar], *, remember: bool) -> None:
    """Raise if a setting of the training has changed; remember new ones if asked.

    Agents commit sums without knowing what the others receive, so all must use the same settings
    from the first message on. A position may be any of the training's, but always the same.
    """
    for key in TERMS:
        if key not in metadata and key not in state.terms:
            continue
        if remember:
            state.terms.setdefault(key, metadata.get(key))
        known = state.terms.get(key, metadata.get(key))
        if known != metadata.get(key):
            raise SecureSumError(
                f"the server has changed the setting {key} of the training from "
                f"{short_repr(known)} to {short_repr(metadata.get(key))}"
            )
    if "position" in metadata and not 0 <= int(metadata["position"]) < state.agents:
        raise SecureSumError("its position is not one of the training")


def _remember_question(state: SecretState, message: Message) -> tuple[SumRecord, str]:
    """Return the record of a sum and the hash of its question, which must not change."""
    record = state.sums.setdefault(_purpose(message), SumRecord())
    question = question_digest(message)
    if record.question not in (None, question):
        raise SecureSumError("it has heard another question in the same round")
    record.question = question
    return record, question


def _purpose(message: Message) -> str:
    return f"{message.kind} {_place_text(message)}"


def _place_text(message: Message) -> str:
    return str(Place(int(message.metadata["rollbacks"]), int(message.metadata["round"])))


def _announcements(message: Message) -> list[Announcement]:
    listed = parse_json(str(message.metadata["participants"]))
    return [Announcement.of_public(each) for each in listed]


def _survivors(message: Message) -> list[str]:
    return [str(name) for name in parse_json(str(message.metadata["survivors"]))]
