"""The server's side of secure sums: it learns sums and nothing else.

A sum of updates takes three exchanges:

===========  ==================================  ==============================================
message      in it                               reply of an agent
===========  ==================================  ==============================================
``train``    announcements of all participants   its update, with masks
``confirm``  who has replied: the survivors      its signature of that list
``unmask``   signatures, shares for the agent    its shares that open the sum, and
                                                 an announcement for the next round
===========  ==================================  ==============================================

In the first round, and where too few announcements are left, two exchanges come before:
``introduce`` for the agents' keys, and ``announce``. Agents that come or come back introduce
themselves while the others train, and take part from the next round on. A sum over the full roster,
for certificates and audits, takes one exchange: where everybody must be in it, all masks cancel.

`pcfed.federation.masking` has the mathematics, `pcfed.federation.secure_agent` the agents' rules.
What is needed to open a sum is on the disk before any agent is asked to: agents open one sum of a
round, so that it must not be lost.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from pcfed.algorithms.grid import Integers
from pcfed.arrays import Array
from pcfed.federation.identity import is_signed
from pcfed.federation.masking import (
    Announcement,
    Introduction,
    combine,
    commitment,
    group_digest,
    is_key,
    key_of,
    public_bytes,
    share_check,
    threshold,
    unmask,
)
from pcfed.federation.paths import OPEN_SUM
from pcfed.federation.protocol import INVALID_FIELDS, MASKED, Message, Scalar
from pcfed.federation.replies import reported_metrics
from pcfed.federation.secure_agent import COMPLETE, MIN_HONEST, SHARED
from pcfed.federation.server_state import Place
from pcfed.storage.archive import AnyArray
from pcfed.storage.reading import parse_json
from pcfed.storage.saved import Metadata, SavedArchive


class Request(NamedTuple):
    """A message for one agent.

    Attributes
    ----------
    kind : str
        The kind of the message.
    metadata, vectors : mapping
        What is added to what every message has.
    size : int or None
        The number of masked integers in the reply; None if it has no vectors.
    """

    kind: str
    metadata: Mapping[str, Scalar]
    vectors: Mapping[str, Array]
    size: int | None = None


class Exchange(Protocol):
    """Sends requests to agents, and returns valid replies and the reasons to refuse others."""

    def __call__(
        self, requests: Mapping[str, Request], min_present: int
    ) -> tuple[dict[str, Message], dict[str, str]]:
        """Send the requests, by the names of the agents."""


@dataclass(frozen=True, eq=False)
class OpenSum(SavedArchive):
    """A sum of updates that is complete and still masked.

    Attributes
    ----------
    place : Place
        The round in which the updates were computed.
    context : str
        The hash of its circumstances.
    threshold : int
        How many agents must open it.
    holders : list of str
        All holders of shares, in the order of their shares.
    participants : mapping of str to Announcement
        The announcements, by agent.
    survivors : list of str
        Who is in the sum.
    signatures : mapping of str to str
        The agents' signatures of who is in it.
    refused : mapping of str to str
        Why replies were refused.
    metrics : mapping of str to mapping
        What the agents have reported.
    total : array of uint64
        The sum of all masked updates.
    """

    file_kind: ClassVar[str] = "sum that is not opened yet"
    format: ClassVar[int] = 2
    advice: ClassVar[str] = "restore it from a backup, or go back to an earlier round."

    place: Place
    context: str
    threshold: int
    holders: list[str]
    participants: Mapping[str, Announcement]
    survivors: list[str]
    signatures: Mapping[str, str]
    refused: Mapping[str, str]
    metrics: Mapping[str, Mapping[str, float]]
    total: Integers

    def _to_archive(self) -> tuple[Metadata, Mapping[str, AnyArray]]:
        metadata = {name: value for name, value in vars(self).items() if name != "total"}
        metadata["participants"] = {name: vars(each) for name, each in self.participants.items()}
        return metadata, {"total": self.total}

    @classmethod
    def _from_archive(cls, metadata: Metadata, arrays: Mapping[str, AnyArray]) -> Self:
        found = metadata["participants"].items()
        participants = {name: Announcement(**each) for name, each in found}
        place = Place(*metadata["place"])
        more = {"participants": participants, "place": place, "total": arrays["total"]}
        return cls(**{**metadata, **more})


class OpenedSum(NamedTuple):
    """The sum of the updates of some agents, the survivors."""

    context: str
    survivors: list[str]
    total: Integers
    refused: Mapping[str, str]
    metrics: Mapping[str, Mapping[str, float]]


@dataclass(eq=False)
class SecureSums:
    """Runs secure sums over the exchanges of a server.

    Parameters
    ----------
    training : str
        The name of the training.
    roster : sequence of str
        The names of all agents.
    colluders : int
        How many agents may work together with the server.
    identities : mapping of str to str
        The registered public keys of agents, if there are any.
    folder : Path
        The directory of the server's files.
    exchange : Exchange
        Sends messages.
    """

    training: str
    roster: Sequence[str]
    colluders: int
    identities: Mapping[str, str]
    folder: Path
    exchange: Exchange
    _introductions: dict[str, Introduction] = field(default_factory=dict, init=False)
    _announced: dict[str, dict[str, Announcement]] = field(
        default_factory=lambda: {SHARED: {}, COMPLETE: {}}, init=False
    )
    _groups: dict[str, list[str]] = field(default_factory=dict, init=False)
    """The members of the groups of shares, by their digests."""
    _asked_group: str = field(default="", init=False)
    """The digest of the group for which agents were asked to announce secrets."""
    _rejected: dict[str, str] = field(default_factory=dict, init=False)
    """Why keys of agents can't be used since the last sum, by name."""
    _present: set[str] = field(default_factory=set, init=False)
    """Who has sent an update or come in the last round: the group of the next one."""

    # -- sums of updates ----------------------------------------------------------------------

    def sum_updates(self, place: Place, size: int, minimum: int, attempts: int) -> OpenedSum | str:
        """Return the sum of the updates of a round, or a sentence that says what is missing.

        Parameters
        ----------
        place : Place
            The round.
        size : int
            Number of integers of an update.
        minimum : int
            The smallest number of agents in the sum.
        attempts : int
            How often agents are asked to open the sum.
        """
        path = self.folder / OPEN_SUM
        masked: OpenSum | str = OpenSum.load(path) if path.exists() else "none"
        if isinstance(masked, str) or masked.place != place:
            masked = self._masked_sum(place, size, minimum)
        if isinstance(masked, str):
            return masked
        # From now on agents may have opened this sum, and would not open another one.
        masked.save(path)
        for _ in range(attempts):
            total = self._open(masked)
            if total is not None:
                about = masked.context, masked.survivors
                return OpenedSum(*about, total, masked.refused, masked.metrics)
        names = ", ".join(masked.survivors)
        return f"{masked.threshold} of {names} must open the sum of their updates, and fewer did"

    def forget_open_sum(self, place: Place | None = None) -> None:
        """Forget the sum of a round that is in the checkpoint, unless it is that of this place."""
        path = self.folder / OPEN_SUM
        if place is None or (path.exists() and OpenSum.load(path).place != place):
            path.unlink(missing_ok=True)

    def _masked_sum(self, place: Place, size: int, minimum: int) -> OpenSum | str:
        """Return the masked sum of a round, with all signatures, or what is missing."""
        participants = self._participants(place, minimum)
        if isinstance(participants, str):
            return participants
        group = next(iter(participants.values())).group
        holders = self._groups[group]
        t = threshold(len(holders), self.colluders)
        # An announcement serves once, whatever comes of it.
        self._announced[SHARED] = {}
        listed = json.dumps([participants[name].public for name in sorted(participants)])
        train = Request("train", {"participants": listed}, {}, size)
        others = [name for name in self.roster if name not in participants]
        requests = {**dict.fromkeys(participants, train), **self._introduce(others)}
        replies, refused = self.exchange(requests, max(minimum, t))
        self._add_introductions(replies)
        contexts = [
            str(replies[name].metadata.get("context")) for name in participants if name in replies
        ]
        # Masks cancel only among agents that have heard the same.
        context = Counter(contexts).most_common(1)[0][0] if contexts else ""
        survivors = sorted(
            name
            for name in participants
            if name in replies and replies[name].metadata.get("context") == context
        )
        if len(survivors) < max(minimum, t):
            return f"{max(minimum, t)} agents must be in a sum"
        total = np.zeros(size, np.uint64)
        for name in survivors:
            total += integers_of(replies[name])
        purpose = f"train {place}"
        asked = {"purpose": purpose, "context": context, "survivors": json.dumps(survivors)}
        confirm = Request("confirm", asked, {})
        signed, _ = self.exchange(dict.fromkeys(survivors, confirm), t)
        signatures = {name: str(reply.metadata.get("signature")) for name, reply in signed.items()}
        signatures = {
            name: signature
            for name, signature in signatures.items()
            if self._is_signed(name, signature, "survivors", context, *survivors)
        }
        if len(signatures) < t:
            return f"{t} agents must sign who is in a sum"
        self._present = {*survivors, *(name for name in others if name in replies)}
        metrics = {name: reported_metrics(replies[name]) for name in survivors}
        return OpenSum(
            place,
            context,
            t,
            holders,
            participants,
            survivors,
            signatures,
            self._refusals(refused, survivors),
            {name: reported for name, reported in metrics.items() if reported},
            total,
        )

    def _refusals(self, refused: Mapping[str, str], survivors: Sequence[str]) -> dict[str, str]:
        """Return why agents are not in a sum, and forget why their keys were rejected."""
        found = {**self._rejected, **refused}
        self._rejected = {}
        return {name: reason for name, reason in found.items() if name not in survivors}

    def _open(self, masked: OpenSum) -> Integers | None:
        """Ask the survivors to open a sum; None if too few did."""
        next_place = Place(masked.place.rollbacks, masked.place.round + 1)
        group = self._group(self._present)
        common: dict[str, Scalar] = {
            "purpose": f"train {masked.place}",
            "context": masked.context,
            "survivors": json.dumps(masked.survivors),
            "signatures": json.dumps(masked.signatures),
        }
        announces = len(group) >= max(2, self.colluders + MIN_HONEST)
        if announces:
            common |= self._announce_metadata(group, next_place)
        requests = {}
        for name in masked.survivors:
            shares = {
                other: each.shares.get(name, "") for other, each in masked.participants.items()
            }
            requests[name] = Request("unmask", {**common, "shares": json.dumps(shares)}, {})
        for member in group:
            if announces and member.name not in requests:
                metadata = self._announce_metadata(group, next_place)
                requests[member.name] = Request("announce", metadata, {})
        replies, _ = self.exchange(requests, masked.threshold)
        self._add_announcements(replies, next_place)
        answers = {name: replies[name] for name in masked.survivors if name in replies}
        mask_seeds = self._secrets(masked, answers, "mask_shares", masked.survivors)
        absent = [name for name in masked.participants if name not in masked.survivors]
        key_seeds = self._secrets(masked, answers, "key_shares", absent)
        if mask_seeds is None or key_seeds is None:
            return None
        return unmask(masked.total, masked.participants, masked.context, mask_seeds, key_seeds)

    def _secrets(
        self, masked: OpenSum, answers: Mapping[str, Message], kind: str, agents: Collection[str]
    ) -> dict[str, bytes] | None:
        """Return the secrets of agents from shares in the answers; None if one is missing."""
        found = {}
        for agent in agents:
            announcement = masked.participants[agent]
            shares = []
            for holder, answer in answers.items():
                share = _share(answer, kind, agent)
                check = announcement.checks.get(holder, ["", ""])[kind == "mask_shares"]
                if share is not None and share_check(share) == check:
                    shares.append((masked.holders.index(holder) + 1, share))
            if len(shares) < masked.threshold:
                return None
            seed = combine(shares[: masked.threshold])
            if kind == "mask_shares":
                is_right = commitment(seed) == announcement.commitment
            else:
                is_right = public_bytes(key_of(seed)).hex() == announcement.mask_key
            if not is_right:
                return None
            found[agent] = seed
        return found

    # -- sums over the full roster ------------------------------------------------------------

    def sum_all(
        self,
        kind: str,
        place: Place,
        size: int,
        vectors: Mapping[str, Array],
        metadata: Mapping[str, Scalar],
    ) -> Integers | dict[str, str]:
        """Return a sum over all agents, or why agents are missing: a reason by name, or "".

        Parameters
        ----------
        kind : str
            The kind of the message.
        place : Place
            The number of rounds before it.
        size : int
            Number of integers in a reply.
        vectors, metadata : mapping
            What the message contains.
        """
        announced = self._at(self._announced[COMPLETE], place)
        if len(announced) < len(self.roster):
            missing = self._ask_for_announcements(place, len(self.roster))
            announced = self._at(self._announced[COMPLETE], place)
            if len(announced) < len(self.roster):
                # With too few introductions nobody was asked for an announcement.
                heard = announced or self._introductions
                return {name: missing.get(name, "") for name in self.roster if name not in heard}
        self._announced[COMPLETE] = {}
        listed = json.dumps([announced[name].public for name in sorted(announced)])
        more = {**metadata, "participants": listed, "next_place": str(place)}
        request = Request(kind, more, vectors, size + 1)
        replies, refused = self.exchange(dict.fromkeys(self.roster, request), len(self.roster))
        self._add_announcements(replies, place)
        missing_names = [name for name in self.roster if name not in replies]
        if missing_names:
            return {name: refused.get(name, "") for name in missing_names}
        if len({reply.metadata.get("context") for reply in replies.values()}) > 1:
            return dict.fromkeys(self.roster, "agents have heard different questions")
        total = np.zeros(size + 1, np.uint64)
        for reply in replies.values():
            total += integers_of(reply)
        if total[-1]:  # every agent has added 0
            return dict.fromkeys(self.roster, "agents do not agree on whose updates count")
        return total[:-1]

    # -- keys and announcements ---------------------------------------------------------------

    def _participants(self, place: Place, minimum: int) -> dict[str, Announcement] | str:
        """Return the announcements for a round, all with one group, or what is missing."""
        for again in (False, True):
            announced = self._at(self._announced[SHARED], place)
            groups = {each.group for each in announced.values()}
            if len(groups) == 1:
                t = threshold(len(self._groups[groups.pop()]), self.colluders)
                if len(announced) >= max(minimum, t):
                    return announced
            if not again:
                self._ask_for_announcements(place, minimum)
        reasons = "".join(f" ({name}: {reason})" for name, reason in self._rejected.items())
        return f"{max(minimum, 2)} agents must announce keys{reasons}"

    def _ask_for_announcements(self, place: Place, minimum: int) -> dict[str, str]:
        """Ask all agents for introductions and announcements; return why some are refused."""
        replies, refused = self.exchange(self._introduce(self.roster), minimum)
        self._introductions = {}
        self._add_introductions(replies)
        group = self._group(self._introductions)
        if len(group) < max(2, self.colluders + MIN_HONEST):
            return refused
        request = Request("announce", self._announce_metadata(group, place), {})
        requests = {member.name: request for member in group}
        replies, more = self.exchange(requests, min(minimum, len(group)))
        self._announced = {SHARED: {}, COMPLETE: {}}
        self._add_announcements(replies, place)
        return {**refused, **more}

    def _introduce(self, names: Collection[str]) -> dict[str, Request]:
        return dict.fromkeys(names, Request("introduce", {}, {}))

    def _group(self, names: Collection[str]) -> list[Introduction]:
        """Return the introductions of agents, and remember the group."""
        group = sorted(self._introductions[name] for name in names if name in self._introductions)
        if group:
            self._groups[group_digest(group, self.colluders)] = [each.name for each in group]
        return group

    def _announce_metadata(self, group: Sequence[Introduction], place: Place) -> dict[str, Scalar]:
        self._asked_group = group_digest(group, self.colluders)
        return {"group": json.dumps(group), "next_place": str(place)}

    def _add_introductions(self, replies: Mapping[str, Message]) -> None:
        """Remember the introductions in replies, if they are those of the agents."""
        for name, reply in replies.items():
            if reply.kind != "introduce":
                continue
            try:
                found = Introduction(*parse_json(str(reply.metadata.get("introduction"))))
                known = self.identities.get(name, found.identity)
                is_own = found.name == name and found.identity == known
                is_right = is_own and found.is_valid(self.training) and is_key(found.box)
            except INVALID_FIELDS:
                is_right = False
            if is_right:
                self._introductions[name] = found
            else:
                self._rejected[name] = "its public keys are not valid"

    def _add_announcements(self, replies: Mapping[str, Message], place: Place) -> None:
        """Remember the announcements in replies, if they are those of the agents."""
        for name, reply in replies.items():
            if "announcements" not in reply.metadata:
                continue
            try:
                announced = parse_json(str(reply.metadata["announcements"]))
                found = {
                    kind: Announcement(**announced[kind])
                    for kind in (SHARED, COMPLETE)
                    if kind in announced
                }
                are_right = all(
                    self._is_usable(each, kind, name, place) for kind, each in found.items()
                )
            except INVALID_FIELDS:
                are_right = False
            if not are_right:
                self._rejected[name] = "what it announces for the next sum is not valid"
                continue
            for kind, each in found.items():
                self._announced[kind][name] = each

    def _is_usable(self, found: Announcement, kind: str, name: str, place: Place) -> bool:
        """Return whether others can use an announcement: with a wrong one they would refuse all."""
        introduction = self._introductions.get(name)
        group = self._asked_group if kind == SHARED else ""
        holders = set(self._groups[group]) if group else set()
        return (
            introduction is not None
            and (found.name, found.place, found.group) == (name, str(place), group)
            and _are_shares(found)
            and set(found.shares) == set(found.checks) == holders
            and is_key(found.mask_key)
            and is_key(found.share_key)
            and found.is_valid(self.training, introduction.identity)
        )

    def _at(self, announced: Mapping[str, Announcement], place: Place) -> dict[str, Announcement]:
        return {name: each for name, each in announced.items() if each.place == str(place)}

    def _is_signed(self, name: str, signature: str, *parts: str) -> bool:
        introduction = self._introductions.get(name)
        try:
            found = bytes.fromhex(signature)
        except ValueError:
            return False
        return introduction is not None and is_signed(introduction.identity, found, *parts)


def integers_of(reply: Message) -> Integers:
    """Return the masked integers of a reply, which has been checked."""
    return np.asarray(reply.vectors[MASKED], np.uint64)


def _are_shares(found: Announcement) -> bool:
    """Return whether the shares of an announcement and their hashes are texts by name."""
    shares, checks = found.shares, found.checks
    return (
        isinstance(shares, dict)
        and isinstance(checks, dict)
        and all(isinstance(each, str) for each in shares.values())
        and all(isinstance(each, list) and len(each) == 2 for each in checks.values())
    )


def _share(answer: Message, kind: str, agent: str) -> bytes | None:
    """Return a share in an answer; None if it is not there."""
    try:
        shares: Any = parse_json(str(answer.metadata.get(kind)))
        return bytes.fromhex(shares[agent])
    except INVALID_FIELDS:
        return None
