"""What the configuration says of one agent: where its data are, its set and its coupling."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pcfed.config.constraints import Layers
from pcfed.config.section import Section
from pcfed.errors import short_repr
from pcfed.sets import ConvexSet

KEYS = ("file", "target", "features", "constraint", "coupling", "batch")
"""The keys that may stand in an agent's table, besides its name."""


@dataclass(frozen=True)
class AgentSettings:
    r"""One agent, as its owner describes it; what is None is settled elsewhere.

    Attributes
    ----------
    name : str
        How the agent is called.
    file : str or None
        Its data: a path relative to the folder of the configuration.
    target : str or None
        The column to predict.
    features : tuple of str or None
        The columns to predict from.
    constraint : ConvexSet or None
        The private set $X_i$.
    coupling : float or None
        $\sigma_i$, the pull of the agent's model towards the average.
    batch : float or int or None
        Share or number of its rows in one gradient.
    """

    name: str
    file: str | None = None
    target: str | None = None
    features: tuple[str, ...] | None = None
    constraint: ConvexSet | None = None
    coupling: float | None = None
    batch: float | int | None = None

    def completed(self, defaults: AgentSettings) -> AgentSettings:
        """Return the settings with those of ``defaults`` where there are none."""
        given = {key: value for key, value in vars(self).items() if value is not None}
        return replace(defaults, **given)

    def resolved(self) -> dict[str, object]:
        """Return all that is settled but the name, in the form of an agent's table."""
        pairs = ((key, getattr(self, key)) for key in KEYS)
        table = {key: value for key, value in pairs if value is not None}
        if self.constraint is not None:
            table["constraint"] = str(self.constraint)
        if isinstance(self.constraint, Layers):
            sets = self.constraint.sets.items()
            table["constraint"] = {"blocks": {name: str(each) for name, each in sets}}
        if self.features is not None:
            table["features"] = list(self.features)
        return table


def read_agent(section: Section, name: str) -> AgentSettings:
    """Return what a table says of an agent; which keys may be in it, the section knows.

    Parameters
    ----------
    section : Section
        The table, with all or some of ``KEYS``.
    name : str
        The agent's name.

    Examples
    --------
    >>> from pcfed.config.section import Section
    >>> table = {"file": "north.csv", "constraint": {"l1": 5}, "coupling": 0.1}
    >>> agent = read_agent(Section("agent.toml", "", table, KEYS), "north")
    >>> agent.constraint, agent.coupling, agent.target
    (L1Ball(radius=5.0), 0.1, None)
    """
    return AgentSettings(
        name=checked_name(section.where, name),
        file=section.text("file"),
        target=section.text("target"),
        features=section.names("features"),
        constraint=section.constraint("constraint"),
        coupling=section.number("coupling", 0.1, zero=True) if "coupling" in section else None,
        batch=section.part("batch", 1.0) if "batch" in section else None,
    )


def checked_name(where: str, name: str) -> str:
    """Return an agent's name if it can be shown in messages and in tables."""
    if not (0 < len(name) <= 80 and name.isprintable() and name == name.strip()):
        raise ValueError(
            f"{where}: the name of an agent must be 1 to 80 printable characters without spaces "
            f"around them, got {short_repr(name)}; rename it."
        )
    return name
