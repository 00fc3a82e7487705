"""The result of a training at the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Self

from pcfed.federation.certification import FederatedCertificate
from pcfed.storage.saved import Metadata, SavedJson


@dataclass(frozen=True)
class ServerResult(SavedJson):
    """What the server knows about a training after its last round.

    Attributes
    ----------
    rounds : int
        Number of completed rounds.
    finished : list of str or None
        The agents that have confirmed the end of the training and have written their models; None
        if the training has not ended yet.
    metrics : mapping of str to mapping
        The metrics that agents report, by agent.
    certificate : FederatedCertificate or None
        The certificate of the feasible models.
    no_certificate : str or None
        Why there is no certificate: a sentence.
    audit : mapping of str to float or None
        For each audited vector, the distance of the server's average from the agents'.
    no_audit : str or None
        Why there is no audit: a sentence.
    """

    file_kind: ClassVar[str] = "result of a training"
    format: ClassVar[int] = 1

    rounds: int
    finished: list[str] | None = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    certificate: FederatedCertificate | None = None
    no_certificate: str | None = None
    audit: Mapping[str, float] | None = None
    no_audit: str | None = None

    def _to_json(self) -> Metadata:
        return asdict(self)

    @classmethod
    def _from_json(cls, contents: Metadata) -> Self:
        values = {key: value for key, value in contents.items() if key != "format"}
        certificate = values.pop("certificate")
        if certificate is not None:
            certificate = FederatedCertificate(**certificate)
        return cls(**values, certificate=certificate)
