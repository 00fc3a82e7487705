"""One agent's table, as it stands in a configuration or in a file of the agent's own."""

from __future__ import annotations

import pytest

from pcfed.config.agent_table import KEYS
from pcfed.config.section import Section, read_toml
from pcfed.sets import L1Ball
from pcfed.training import AgentSettings, read_agent

FILE = """
file = "north.csv"
target = "load"
features = ["a", "b"]
constraint = "l1(5)"
coupling = 0
batch = 0.1
"""


def reading(folder, text):
    path = folder / "agent.toml"
    path.write_text(text)
    return read_agent(Section("agent.toml", "", read_toml(path), KEYS), "north")


def test_a_file_of_its_own(tmp_path):
    agent = reading(tmp_path, FILE)
    assert isinstance(agent.constraint, L1Ball)
    assert agent.resolved() == {
        "file": "north.csv",
        "target": "load",
        "features": ["a", "b"],
        "constraint": "L1Ball(radius=5.0)",
        "coupling": 0.0,
        "batch": 0.1,
    }


def test_what_is_left_out_is_none(tmp_path):
    assert reading(tmp_path, "") == AgentSettings("north")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("files = 'a.csv'", r"agent.toml: the file has no key 'files'; did you mean 'file'\?"),
        ("batch = 0.0", r"agent.toml: batch must be a share in \(0, 1\]"),
        ("constraint = 3", "agent.toml: constraint: parse_set: a set must be a string"),
        ("coupling = nan", "agent.toml: coupling must be a number ≥ 0, got nan"),
    ],
)
def test_errors_name_the_key(text, expected, tmp_path):
    with pytest.raises(ValueError, match=expected):
        reading(tmp_path, text)
