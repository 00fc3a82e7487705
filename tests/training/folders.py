"""Small configurations and data files that are valid, to be written into a folder and broken."""

from __future__ import annotations

from pathlib import Path

from pcfed.training import TrainingSetup, build_setup, load_config

SHARED = """home,area,rooms,load
north,1,2,a
north,2,1,b
north,3,5,a
south,1,4,b
south,5,4,a
south,2,2,b
"""

SHARED_CONFIG = """
[model]
kind = "softmax"

[data]
file = "all.csv"
agent = "home"
target = "load"

[agents.north]
constraint = {l1 = 5}
"""

NORTH = "area,rooms,load\n1,2,1.5\n2,1,2.5\n3,5,3.5\n4,4,4\n"
SOUTH = "rooms,load,area\n1,2,1\n2,4,3\n5,2,2\n"

OWN_CONFIG = """
[model]
kind = "least-squares"

[data]
target = "load"

[training]
batch = 1.0

[agents.north]
file = "north.csv"
constraint = {l1 = 5}

[agents.south]
file = "south.csv"
"""

FULL_CONFIG = """
[model]
kind = "softmax"
intercept = false
l2 = 0.0

[data]
file = "all.csv"
agent = "household"
target = "load"
features = ["a", "b"]
held_out = 0.2
dtype = "float64"

[algorithm]
name = "PCFedSplit"
prox = "auto"
relaxation = 1.8

[training]
rounds = 200
gap = 0.01
local_steps = 10
batch = 1.0
participation = 1.0
seed = 0
eval_every = 1
max_refusals = 100
norm_limit = 1e6

[agents.north]
target = "load"
constraint = {l1 = 5}
coupling = 0.1

[defaults]
constraint = "whole_space"
coupling = 0.1
"""


def without_intercept(config: str) -> str:
    """Return a configuration whose models have no intercept, which is not the default."""
    assert config.count("\n[data]") == 1
    return config.replace("\n[data]", "intercept = false\n\n[data]")


def paper_problem(config: str) -> str:
    """Return a configuration of the paper's problem, which is not the default."""
    assert config.count("[training]\n") == 1
    table = '[defaults]\npersonalization = 0\n\n[training]\ncenter = "average"\n'
    return config.replace("[training]\n", table)


def folder_with(folder: Path, **files: str | bytes) -> Path:
    """Write the valid files, or others in their place, and return the path of the configuration.

    ``config`` is the configuration and ``all``, ``north`` and ``south`` the CSV files.
    """
    names = {"config": "train.toml", "all": "all.csv", "north": "north.csv", "south": "south.csv"}
    valid = {"config": SHARED_CONFIG, "all": SHARED, "north": NORTH, "south": SOUTH}
    for name, content in (valid | files).items():
        content = content.encode() if isinstance(content, str) else content
        (folder / names[name]).write_bytes(content)
    return folder / names["config"]


def setup_in(folder: Path, **files: str | bytes) -> TrainingSetup:
    return build_setup(load_config(folder_with(folder, **files)))
