"""The report on a training at the server: progress, rounds, agents, certificate and audit.

The server has no models, so it shows what it knows: who took part, and what owners let it know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pcfed.federation.paths import HISTORY, RESULT, SETTINGS, STATUS
from pcfed.federation.server_settings import ServerSettings
from pcfed.federation.server_state import ServerResult
from pcfed.federation.status_file import Status, read_history
from pcfed.report.page import (
    Block,
    Definitions,
    Details,
    Page,
    Paragraph,
    Section,
    provenance_table,
    table_of,
    write_page,
)

MAX_ROUNDS = 10_000
"""Rounds that are counted at most: the last ones."""
MAX_ROUNDS_SHOWN = 100
"""Rows of the table of rounds at most."""

GLOSSARY = {
    "accepted": "the agent's update of the round was aggregated.",
    "refused": "the agent answered, but its update was not valid; the reason is in the table.",
    "missing": "the agent was offline or did not answer in time.",
    "certificate": "a proved bound on how far the objective of the feasible models is above the "
    "optimum; it needs the consent of all owners.",
    "audit": "how far the server's averages are from the means of the agents' private vectors; it "
    "should be rounding errors only.",
    "metrics": "of an agent's own model on its own rows, as far as its owner lets the server know.",
}


@dataclass(frozen=True)
class ServerRecord:
    """What is in the server's directory of a training."""

    path: Path
    status: Status
    history: Sequence[Mapping[str, Any]]
    result: ServerResult | None
    settings: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path) -> ServerRecord:
        """Read a directory."""
        settings, result = path / SETTINGS, path / RESULT
        return cls(
            path,
            Status.load(path / STATUS),
            read_history(path / HISTORY, MAX_ROUNDS),
            ServerResult.load(result) if result.exists() else None,
            ServerSettings.load(settings).settings if settings.exists() else {},
        )

    @property
    def has_ended(self) -> bool:
        """Whether the result is that of the last round."""
        ended = self.result is not None and self.result.finished is not None
        return ended and self.result is not None and self.result.rounds == self.status.round


def write_server_report(path: Path, page: Path) -> None:
    """Write the page on the training in a server's directory."""
    record = ServerRecord.load(path)
    title = record.status.training
    lead = (
        "The server's side of a federation. It has no data, constraints or models of agents: each "
        "agent has a report of its own."
    )
    sections = [
        Section("progress", "Progress", _progress(record)),
        Section("agents", "Agents", [_agent_table(record)]),
        Section("rounds", "Rounds", _round_blocks(record)),
        Section("settings", "Settings", _setting_blocks(record)),
    ]
    write_page(Page(f"{title}: pcfed", f"Training {title}", lead, sections, GLOSSARY), page)


def _progress(record: ServerRecord) -> list[Block]:
    """Return how far the training is, and its certificate and audit."""
    status, result = record.status, record.result
    entries = {
        "status": "ended" if record.has_ended else status.stage,
        "rounds": f"{status.round} of {status.rounds}",
        "agents": str(len(status.roster)),
        "last update": f"{datetime.fromtimestamp(status.updated_at):%Y-%m-%d %H:%M:%S}",
    }
    blocks: list[Block] = [Definitions(entries, "tiles")]
    blocks += [
        Paragraph(text, css_class="note")
        for text in (status.error, status.warning, status.note)
        if text
    ]
    if result is None:
        return [*blocks, Paragraph("Rerun the training until it ends.", "No result yet.", "note")]
    if not record.has_ended:
        text = f"The following is the result after {result.rounds} rounds."
        blocks.append(Paragraph(text, css_class="note"))
    certificate = result.certificate.sentence if result.certificate else result.no_certificate
    audit = result.no_audit
    if result.audit is not None:
        largest = max(result.audit.values(), default=0.0)
        audit = f"The averages agree with the agents' private vectors up to {largest:.1e}."
    missing = [name for name in status.roster if name not in (result.finished or ())]
    answers = "All agents have written their models."
    if missing:
        answers = f"{', '.join(missing)} did not answer at the end; run the training again."
    found = {"certificate": certificate or "There is none.", "audit": audit or "There is none."}
    if result.score is not None:
        found["held-out rows"] = result.score.sentence
    return [*blocks, Definitions({**found, "models": answers})]


def _agent_table(record: ServerRecord) -> Block:
    """Return how often every agent took part, and its last metrics."""
    metrics: dict[str, Mapping[str, float]] = {}
    for entry in record.history:
        metrics |= entry["metrics"]
    if record.result is not None and record.has_ended:
        metrics |= record.result.metrics
    names = dict.fromkeys(key for values in metrics.values() for key in values)
    rows = []
    for agent in record.status.roster:
        counts = [
            str(sum(agent in entry[column] for entry in record.history))
            for column in ("accepted", "refused", "missing")
        ]
        values = metrics.get(agent, {})
        shown = [f"{values[name]:.4g}" if name in values else "–" for name in names]
        online = "yes" if agent in record.status.present else "no"
        rows.append([agent, *counts, online, *shown])
    columns = ["agent", "rounds accepted", "refused", "missing", "online at the last update"]
    return table_of("Agents", [*columns, *names], rows, "numbers agents")


def _round_blocks(record: ServerRecord) -> list[Block]:
    """Return the last rounds, the newest first."""
    rows = [
        [
            str(entry["round"] + 1),
            ", ".join(entry["accepted"]),
            "; ".join(f"{name}: {reason}" for name, reason in entry["refused"].items()),
            ", ".join(entry["missing"]),
        ]
        for entry in reversed(record.history[-MAX_ROUNDS_SHOWN:])
    ]
    if not rows:
        return [Paragraph("No round is done yet.")]
    table = table_of("Rounds", ["round", "accepted", "refused", "missing"], rows, "verdicts")
    if len(record.history) <= len(rows):
        return [table]
    text = f"The last {len(rows)} rounds; {HISTORY} has all of them."
    return [table, Paragraph(text, css_class="hint")]


def _setting_blocks(record: ServerRecord) -> list[Block]:
    """Return the settings, and where the files of the training are."""
    settings = {key: _text(value) for key, value in record.settings.items()}
    return [
        Details("All settings, with defaults", settings),
        provenance_table("Folder", {"folder": str(record.path)}),
    ]


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
