"""Keys of a federation: a certificate authority, the server's certificate, and agents' keys."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pcfed.extras import MissingExtra
from pcfed.storage.atomic import write_atomically

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
except ModuleNotFoundError as missing:
    raise MissingExtra(__name__, str(missing.name), "flower") from None

DAYS = 365
"""How long certificates are valid, in days."""


def make_keys(folder: Path, hosts: Sequence[str], agents: Sequence[str]) -> None:
    """Write ``ca.crt``, ``server.crt``, ``server.key`` and a key pair for every agent.

    The authority's own key is not saved, so that nobody can sign another certificate with it.

    Parameters
    ----------
    folder : Path
        The folder to write to; existing files are not overwritten.
    hosts : sequence of str
        Names or addresses by which agents reach the server.
    agents : sequence of str
        Names of the agents: ``NAME.key`` is for the agent, ``NAME.key.pub`` for the server.
    """
    names = [key_name(agent) for agent in agents]
    _prepare(folder, ["ca.crt", "server.crt", "server.key", *names])
    authority = ec.generate_private_key(ec.SECP384R1())
    server = ec.generate_private_key(ec.SECP384R1())
    issuer = _name("pcfed federation")
    root = _certificate(issuer, issuer, authority.public_key(), authority, hosts=None)
    server_certificate = _certificate(
        _name(hosts[0]), issuer, server.public_key(), authority, hosts=hosts
    )
    write_atomically(folder / "ca.crt", root.public_bytes(pem.Encoding.PEM))
    write_atomically(folder / "server.crt", server_certificate.public_bytes(pem.Encoding.PEM))
    _write_private(folder / "server.key", server, pem.PrivateFormat.PKCS8)
    for name in names:
        _write_pair(folder / name)


def make_agent_key(folder: Path, agent: str) -> Path:
    """Write the key of an agent, ``NAME.key``, and return the path of its ``NAME.key.pub``."""
    name = key_name(agent)
    _prepare(folder, [name])
    return _write_pair(folder / name)


def key_name(agent: str) -> str:
    """Return the name of the file of an agent's key."""
    if Path(agent).name != agent or agent.startswith("."):
        raise ValueError(f"keys: {agent!r} is not a valid file name; rename the agent.")
    return f"{agent}.key"


def _prepare(folder: Path, names: Sequence[str]) -> None:
    """Create a folder that only this user may read; refuse to overwrite files in it."""
    for name in names:
        if (folder / name).exists():
            raise ValueError(
                f"keys: {folder / name} exists already and is not overwritten; choose another "
                "folder, or delete the file."
            )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write_pair(path: Path) -> Path:
    """Write a new private key and, beside it, the public one; return the path of the latter."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, pem.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(pem.Encoding.OpenSSH, pem.PublicFormat.OpenSSH)
    public_path = path.with_name(f"{path.name}.pub")
    write_atomically(public_path, public + b"\n")
    return public_path


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    hosts: Sequence[str] | None,
) -> x509.Certificate:
    """Return a certificate: for a server with these hosts, or for the authority without hosts."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks may differ
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), critical=True)
    )
    if hosts is not None:
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA256())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: pem.PrivateFormat) -> None:
    """Write a private key that only the user of this process may read."""
    write_atomically(path, key.private_bytes(pem.Encoding.PEM, form, pem.NoEncryption()))
    path.chmod(0o600)
