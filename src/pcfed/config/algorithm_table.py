"""The method of a training, from its table in the configuration."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pcfed.algorithms import Algorithm, FedAvg, FedProx, Local, PCFedAvg, Scaffold, Schedule
from pcfed.config.section import Section
from pcfed.errors import error_context

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.__name__: kind for kind in (PCFedAvg, FedAvg, FedProx, Scaffold, Local)
}


def read_algorithm(where: str, table: object) -> Algorithm:
    """Return the method that ``[algorithm]`` describes; its parameters are the keys.

    All methods know the step and the penalty ``"auto"``, which stay words until the run begins.

    Parameters
    ----------
    where : str
        What messages call the file.
    table : object
        What the file has there.

    Examples
    --------
    >>> read_algorithm("train.toml", {})
    PCFedAvg(step='auto', penalty='auto', exact=True)
    >>> read_algorithm("train.toml", {"name": "FedAvg", "step": 0.1})
    FedAvg(step=0.1, penalty=0.0)
    """
    keys = dict.fromkeys(key.name for kind in ALGORITHMS.values() for key in fields(kind))
    section = Section(where, "algorithm", table, ("name", *keys))
    name = section.choice("name", tuple(ALGORITHMS), "PCFedAvg")
    kind = ALGORITHMS[name]
    section = Section(where, "algorithm", table, ("name", *(key.name for key in fields(kind))))
    step = section.schedule("step", "auto", zero=False, words=kind.keywords)
    usual: Schedule = "auto" if kind is PCFedAvg else 0.0
    penalty = section.schedule("penalty", usual, zero=True, words=kind.keywords)
    more: dict[str, Any] = {}
    if kind is PCFedAvg:
        more["exact"] = section.flag("exact", True)
    if kind is Scaffold:
        more["server_step"] = section.number("server_step", 1.0)
    if kind is FedProx:
        if "prox" not in section:
            raise ValueError(
                f"{where}: algorithm.prox is missing, which FedProx needs; give one such as 0.1."
            )
        more["prox"] = section.number("prox", 0.1, zero=True)
    with error_context(f"{where}: algorithm"):
        return kind(step, penalty, **more)
