r"""Masks and shares: how integers are summed without anybody seeing a summand.

This is the double masking of Bonawitz et al., "Practical secure aggregation for privacy-preserving
machine learning" (2017). Agent i sends

$$ x_i + b_i + \sum_{j > i} s_{ij} - \sum_{j < i} s_{ij} \pmod{2^{64}}, $$

where the mask $s_{ij}$ follows from a key that i and j agree on, and cancels in the sum, and $b_i$
is a mask of its own. The seeds of both are shared among the agents, so that any t of them can tell
the server the own masks of those in the sum, or the keys of those that are not, and never both for
one agent. An *announcement* is the public half of such secrets; it serves for one sum.

Where all agents of the roster must be in a sum, nothing has to be opened later: a *complete*
announcement has no shares, and agents mask with $s_{ij}$ only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from pcfed.algorithms.grid import Integers
from pcfed.extras import MissingExtra
from pcfed.federation.identity import Identity, canonical, digest, is_signed

try:
    from Crypto.Protocol.SecretSharing import Shamir
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError as missing:
    raise MissingExtra(__name__, str(missing.name), "flower") from None

SEED_BYTES, KEY_BYTES = 16, 32
"""Sizes of what is shared, one block of Shamir's scheme, and of keys."""


PUBLIC = ("name", "place", "group", "mask_key", "commitment", "share_key", "signature")
"""What other agents need to know of an announcement; the last is the signature of the others."""


class SecureSumError(ValueError):
    """A message of a secure sum that breaks one of its rules; nothing is revealed."""


def threshold(agents: int, colluders: int) -> int:
    """Return t, the smallest number with 2t > agents + colluders.

    Then no two sets of t agents can open two different sums, even if the colluders are in both.
    """
    return (agents + colluders) // 2 + 1


# -- introductions --------------------------------------------------------------------------------


class Introduction(NamedTuple):
    """An agent's public keys: its identity, and the key to which shares for it are encrypted."""

    name: str
    identity: str
    box: str
    signature: str

    @classmethod
    def of(cls, training: str, name: str, identity: Identity, box: X25519PrivateKey) -> Self:
        """Return the signed introduction of an agent in a training."""
        key = public_bytes(box)
        signature = identity.sign("introduction", training, name, key)
        return cls(name, identity.public, key.hex(), signature.hex())

    def is_valid(self, training: str) -> bool:
        """Return whether the signature is right."""
        parts = "introduction", training, self.name, bytes.fromhex(self.box)
        return is_signed(self.identity, bytes.fromhex(self.signature), *parts)


def group_digest(members: Iterable[Introduction], colluders: int) -> str:
    """Return a hash of who may hold shares, with their keys, and of the number of colluders."""
    parts = [canonical(*each[:3]) for each in sorted(members)]
    return digest("group", colluders, *parts).hex()


# -- announcements --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Secrets:
    """What an agent keeps of an announcement: the seeds of its mask key and of its own mask."""

    key_seed: bytes
    mask_seed: bytes

    @classmethod
    def create(cls) -> Self:
        """Return new random secrets."""
        return cls(os.urandom(SEED_BYTES), os.urandom(SEED_BYTES))


@dataclass(frozen=True)
class Announcement:
    """What an agent publishes before a sum.

    Attributes
    ----------
    name : str
        The agent's name.
    place : str
        The place in the training for which it is made: numbers of rollbacks and of rounds.
    group : str
        The group among which the secrets are shared (`group_digest`); empty if it is complete.
    mask_key : str
        The public key from which masks with other agents follow.
    commitment : str
        A hash of the own mask's seed, by which wrong shares are found.
    share_key : str
        The public key with which the shares are encrypted.
    signature : str
        Of all this, by the agent.
    shares : mapping of str to str
        The encrypted shares by the name of their holder.
    checks : mapping of str to list of str
        Hashes of the shares, by which the server finds wrong ones.
    """

    name: str
    place: str
    group: str
    mask_key: str
    commitment: str
    share_key: str
    signature: str
    shares: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of_public(cls, public: Mapping[str, Any], shares: Mapping[str, str] | None = None) -> Self:
        """Return an announcement from what is public of it, with some of its shares."""
        name, place, group, mask_key, commitment, share_key, signature = (
            str(public[key]) for key in PUBLIC
        )
        seal = commitment, share_key, signature
        return cls(name, place, group, mask_key, *seal, shares or {})

    @property
    def public(self) -> dict[str, str]:
        """What other agents need to know of it."""
        return {key: str(getattr(self, key)) for key in PUBLIC}

    def is_valid(self, training: str, identity: str) -> bool:
        """Return whether the signature is that of an identity."""
        return is_signed(identity, bytes.fromhex(self.signature), *_signed(training, self.public))


def announce(
    training: str,
    name: str,
    place: str,
    identity: Identity,
    secrets: Secrets,
    group: Sequence[Introduction] = (),
    colluders: int = 0,
) -> Announcement:
    """Return the announcement of an agent's secrets; a complete one without a group.

    The secrets are shared among the group, the agent itself included.
    """
    members, share_key = sorted(group), X25519PrivateKey.generate()
    public = {
        "name": name,
        "place": place,
        "group": group_digest(members, colluders) if members else "",
        "mask_key": public_bytes(key_of(secrets.key_seed)).hex(),
        "commitment": commitment(secrets.mask_seed),
        "share_key": public_bytes(share_key).hex(),
    }
    signature = identity.sign(*_signed(training, public)).hex()
    if not members:
        return Announcement(**public, signature=signature, shares={}, checks={})
    t = threshold(len(members), colluders)
    pieces = zip(
        Shamir.split(t, len(members), secrets.key_seed, ssss=False),
        Shamir.split(t, len(members), secrets.mask_seed, ssss=False),
        strict=True,
    )
    shares, checks = {}, {}
    for member, ((_, key_share), (_, mask_share)) in zip(members, pieces, strict=True):
        key, about = _share_key(share_key, member.box), _about_share(training, public, member.name)
        box = ChaCha20Poly1305(_derived(key, about))
        # The key is used once: a constant nonce is right.
        shares[member.name] = box.encrypt(bytes(12), key_share + mask_share, about).hex()
        checks[member.name] = [share_check(key_share), share_check(mask_share)]
    return Announcement(**public, signature=signature, shares=shares, checks=checks)


def open_shares(
    training: str, announcement: Announcement, name: str, box: X25519PrivateKey
) -> tuple[bytes, bytes]:
    """Return an agent's shares of the two secrets of an announcement, or raise."""
    about = _about_share(training, announcement.public, name)
    try:
        key = box.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(announcement.share_key)))
        encrypted = bytes.fromhex(announcement.shares[name])
        opened = ChaCha20Poly1305(_derived(key, about)).decrypt(bytes(12), encrypted, about)
    except (InvalidTag, ValueError, KeyError):
        raise SecureSumError(f"the shares of {announcement.name} can't be opened") from None
    return opened[:SEED_BYTES], opened[SEED_BYTES:]


def combine(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """Return a secret from t of its shares, each with the position of its holder from 1 on."""
    return bytes(Shamir.combine(list(shares), ssss=False))


def share_check(share: bytes) -> str:
    """Return the hash of a share."""
    return digest("share", share).hex()


def commitment(mask_seed: bytes) -> str:
    """Return the hash of the seed of an own mask."""
    return digest("own mask", mask_seed).hex()


# -- masks ----------------------------------------------------------------------------------------


def context_of(question: str, participants: Iterable[Announcement]) -> str:
    """Return a hash of all that the agents of a sum must agree on.

    ``question`` is the hash of what the server asks (`pcfed.federation.protocol.question_digest`).
    Masks follow from it: those of agents that were asked different questions do not cancel.
    """
    lines = sorted(canonical(*each.public.values()) for each in participants)
    return digest("sum", question, *lines).hex()


def masked(
    integers: Integers,
    name: str,
    secrets: Secrets,
    participants: Iterable[Announcement],
    context: str,
    history: Mapping[str, str] | None = None,
) -> Integers:
    """Return an agent's integers with all its masks.

    In a complete sum the masks with another agent follow from the ``history`` with it, too.
    """
    total = integers.copy()
    if history is None:
        total += own_mask(secrets.mask_seed, context, total.size)
    key = key_of(secrets.key_seed)
    for other in participants:
        if other.name != name:
            about = context
            if history is not None:
                about = digest("history", context, history.get(other.name, "")).hex()
            total += pair_mask(key, name, other, about, total.size)
    return total


def own_mask(mask_seed: bytes, context: str, size: int) -> Integers:
    """Return the mask that an agent has of its own."""
    return _expanded(_derived(mask_seed, canonical("own mask", context)), size)


def random_integers(secret: bytes, question: str, size: int) -> Integers:
    """Return integers that nobody without a secret can tell from uniform ones."""
    return _expanded(_derived(secret, canonical("in place of an answer", question)), size)


def pair_mask(
    key: X25519PrivateKey, name: str, other: Announcement, context: str, size: int
) -> Integers:
    """Return the mask of an agent, given by its key and name, with another one.

    That of the other agent with this one is its negative.
    """
    shared = key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other.mask_key)))
    pair = sorted([name, other.name])
    mask = _expanded(_derived(shared, canonical("pair mask", context, *pair)), size)
    return mask if name == pair[0] else np.negative(mask)


def key_of(seed: bytes) -> X25519PrivateKey:
    """Return the private key that follows from a seed."""
    return X25519PrivateKey.from_private_bytes(_derived(seed, b"mask key"))


def public_bytes(key: X25519PrivateKey) -> bytes:
    """Return the public half of a key."""
    return key.public_key().public_bytes_raw()


def is_key(text: str) -> bool:
    """Return whether a text is a public key with which others can agree on a secret."""
    try:
        public = X25519PublicKey.from_public_bytes(bytes.fromhex(text))
        X25519PrivateKey.generate().exchange(public)  # some keys have only one secret with all
    except (ValueError, TypeError):
        return False
    return True


def unmask(
    total: Integers,
    participants: Mapping[str, Announcement],
    context: str,
    mask_seeds: Mapping[str, bytes],
    key_seeds: Mapping[str, bytes],
) -> Integers:
    """Return the sum of integers from the sum of masked ones.

    Parameters
    ----------
    total : array of uint64
        The sum of what the survivors sent.
    participants : mapping of str to Announcement
        Those who had announced secrets, by name.
    context : str
        The hash of the sum's circumstances.
    mask_seeds, key_seeds : mapping of str to bytes
        The seeds of the own masks of survivors, and of the mask keys of all others.
    """
    total = total.copy()
    for seed in mask_seeds.values():
        total -= own_mask(seed, context, total.size)
    for absent, seed in key_seeds.items():
        key = key_of(seed)
        for survivor in mask_seeds:
            # It is the negative of what the survivor has added.
            total += pair_mask(key, absent, participants[survivor], context, total.size)
    return total


def _signed(training: str, public: Mapping[str, Any]) -> tuple[str, ...]:
    return ("announcement", training, *(str(public[name]) for name in PUBLIC[:-1]))


def _about_share(training: str, public: Mapping[str, str], holder: str) -> bytes:
    """Return what a share is bound to."""
    return canonical("share", *_signed(training, public), holder)


def _share_key(key: X25519PrivateKey, box: str) -> bytes:
    return key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(box)))


def _derived(secret: bytes, about: bytes) -> bytes:
    """Return a key for one purpose."""
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=b"pcfed", info=about).derive(secret)


def _expanded(key: bytes, size: int) -> Integers:
    """Return so many uniform integers that follow from a key."""
    # The key is used once: a constant nonce is right.
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)), dtype="<u8").astype(np.uint64)
