"""Identities: every agent has a key that it signs with, and a roster binds names to keys.

The key is the one by which Flower knows the agent's node (`pcfed.federation.keys`). Public keys are
written as OpenSSH writes them, and people compare their fingerprints, as with ``ssh-keygen -l``.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

from pcfed.config.fields import check_agent_name
from pcfed.config.json_schema import toml_value
from pcfed.errors import display_path
from pcfed.extras import MissingExtra
from pcfed.federation.keys import key_name
from pcfed.federation.paths import ROSTER
from pcfed.storage.atomic import write_atomically
from pcfed.storage.reading import parse_toml, read_file

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric import ec
except ModuleNotFoundError as missing:
    raise MissingExtra(__name__, str(missing.name), "flower") from None

MAX_KEY_BYTES, MAX_ROSTER_BYTES = 2**16, 2**22

SIGNATURE = ec.ECDSA(hashes.SHA256())


def canonical(*parts: str | int | bytes) -> bytes:
    """Return parts as bytes, each with its length, so that no two lists give the same bytes."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def digest(*parts: str | int | bytes) -> bytes:
    """Return a hash of parts."""
    return hashlib.sha256(canonical(*parts)).digest()


class Identity:
    """The key with which an agent signs.

    Attributes
    ----------
    public : str
        The public key, in one line.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.public = _line(key.public_key())

    @classmethod
    def create(cls) -> Self:
        """Return a new identity, of which there is no file."""
        return cls(ec.generate_private_key(ec.SECP384R1()))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the private key of an agent, ``NAME.key``."""
        try:
            key = pem.load_ssh_private_key(read_file(path, MAX_KEY_BYTES), None)
        except (OSError, ValueError, TypeError):
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(
                f"{display_path(path)} must be the private key of the agent; restore it, or write "
                "a new one with pcfed federation agent init."
            )
        return cls(key)

    @classmethod
    def beside(cls, agent_file: Path, name: str) -> Self | None:
        """Return the identity whose key is beside an agent's file, or in the folder keys there."""
        for folder in (agent_file.parent, agent_file.parent / "keys"):
            if (path := folder / key_name(name)).exists():
                return cls.load(path)
        return None

    def sign(self, *parts: str | int | bytes) -> bytes:
        """Return a signature of parts."""
        return self._key.sign(canonical(*parts), SIGNATURE)


def is_signed(public: str, signature: bytes, *parts: str | int | bytes) -> bool:
    """Return whether a signature of parts is that of a public key."""
    try:
        _public_key(public).verify(signature, canonical(*parts), SIGNATURE)
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint(public: str) -> str:
    """Return the fingerprint of a public key, as OpenSSH shows it."""
    blob = base64.b64decode(public.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def check_public_key(public: str) -> str:
    """Return a public key without its comment, or raise a ValueError."""
    return _line(_public_key(public))


@dataclass(frozen=True)
class Roster:
    """The file roster.toml: who takes part, by name and public key.

    Agents that have it, and not from the server alone, know whom they sum with.

    Attributes
    ----------
    keys : mapping of str to str
        The public keys by the names of the agents.
    colluders : int
        How many agents may work together with the server, and others stay private.
    minimum : int
        The smallest number of agents in a sum.
    """

    keys: Mapping[str, str]
    colluders: int = 1
    minimum: int = 0

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a roster.toml."""
        try:
            table = parse_toml(read_file(path, MAX_ROSTER_BYTES).decode())
            agents = table["agent"]
            numbers = [table.get("colluders", 1), table.get("minimum", 0)]
            keys = {
                check_agent_name(str(each["name"])): check_public_key(str(each["key"]))
                for each in agents
            }
            if len(keys) != len(agents) or len(set(keys.values())) != len(keys):
                raise ValueError("a name or a key is there twice")
            if not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError("colluders and minimum must be whole numbers")
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(
                f"{display_path(path)} must have a table [[agent]] with a name and a key for every "
                f"agent ({error}); get it from the server's folder again."
            ) from None
        return cls(keys, *numbers)

    @classmethod
    def beside(cls, file: Path) -> Self | None:
        """Return the roster beside a server's or an agent's file; None if there is none."""
        path = file.with_name(ROSTER)
        return cls.load(path) if path.exists() else None

    @classmethod
    def of_keys(
        cls, folder: Path, names: Collection[str] | None, colluders: int, minimum: int
    ) -> Self:
        """Return the roster of the public keys in a folder, ``NAME.key.pub``, of these names."""
        keys = {}
        for path in sorted(folder.glob("*.key.pub")):
            try:
                public = check_public_key(read_file(path, MAX_KEY_BYTES).decode())
            except (OSError, ValueError):
                raise ValueError(
                    f"{display_path(path)} must be the public key of an agent; get it from the "
                    "agent again."
                ) from None
            name = path.name.removesuffix(".key.pub")
            if names is None or name in names:
                keys[name] = public
        return cls(keys, colluders, minimum)

    def save(self, path: Path) -> None:
        """Write a roster.toml."""
        head = f"colluders = {self.colluders}\nminimum = {self.minimum}  # agents in a sum\n"
        tables = [
            f"[[agent]]\nname = {toml_value(name)}\nkey = {toml_value(key)}\n# {fingerprint(key)}\n"
            for name, key in sorted(self.keys.items())
        ]
        write_atomically(path, "\n".join([head, *tables]).encode())


@lru_cache(maxsize=4096)
def _public_key(public: str) -> ec.EllipticCurvePublicKey:
    try:
        key = pem.load_ssh_public_key(public.encode())
    except Exception:  # bytes from outside can make the library raise anything
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"not a public key of an agent: {public[:40]!r}")
    return key


def _line(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(pem.Encoding.OpenSSH, pem.PublicFormat.OpenSSH).decode()
