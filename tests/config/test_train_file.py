"""Configurations: the form, the defaults, and the digest of what the numbers depend on."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from pcfed import FedAvg, FedProx, Local, PCFedAvg, Scaffold
from pcfed.config.train_file import DURATION
from pcfed.training import AgentSettings, load_config, read_config
from tests.training.folders import FULL_CONFIG, OWN_CONFIG, SHARED, SHARED_CONFIG, folder_with


def test_the_documented_form(tmp_path):
    config = load_config(folder_with(tmp_path, config=FULL_CONFIG))
    assert config.model.resolved() == {"kind": "softmax", "intercept": False, "l2": 0.0}
    assert config.data.features == ("a", "b")
    assert config.algorithm == PCFedAvg("auto", "auto", exact=True)
    assert config.training.gap == 0.01
    assert config.training.norm_limit == 1e6
    assert [agent.name for agent in config.agents] == ["north"]
    assert str(config.agent("north").constraint) == "L1Ball(radius=5.0)"
    assert str(config.agent("anybody").constraint) == "WholeSpace()"
    assert config.agent("anybody").target == "load"


def test_the_module_shows_a_valid_form(tmp_path):
    """What the description of the module shows can be copied."""
    from pcfed.training import config

    lines = (line[4:] for line in config.__doc__.splitlines() if line.startswith("    "))
    made = load_config(folder_with(tmp_path, config="\n".join(lines)))
    assert made.agents[0].file == "north.csv"


def test_defaults(tmp_path):
    config = load_config(folder_with(tmp_path))
    assert config.resolved() == {
        "model": {"kind": "softmax", "intercept": False, "l2": 0.0},
        "data": {
            "file": "all.csv",
            "agent": "home",
            "target": "load",
            "held_out": 0.2,
            "dtype": "float64",
            "standardize": False,
        },
        "algorithm": {"name": "PCFedAvg", "step": "auto", "penalty": "auto", "exact": True},
        "training": {
            "rounds": 200,
            "local_steps": 10,
            "batch": 1.0,
            "participation": 1.0,
            "seed": 0,
            "eval_every": 1,
            "save_every": 10,
            "max_refusals": 100,
            "local_only": True,
        },
        "defaults": {"constraint": "WholeSpace()", "coupling": 0.1},
        "agents": {
            "north": {"target": "load", "constraint": "L1Ball(radius=5.0)", "coupling": 0.1}
        },
    }


@pytest.mark.parametrize("text", [FULL_CONFIG, SHARED_CONFIG, OWN_CONFIG])
def test_what_is_resolved_reads_back(text, tmp_path):
    config = load_config(folder_with(tmp_path, config=text))
    again = read_config(json.loads(json.dumps(config.resolved())), config.path)
    assert again.resolved() == config.resolved()
    assert again.digest() == config.digest()


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ('name = "FedAvg"', FedAvg("auto", 0.0)),
        ('name = "FedAvg"\npenalty = "auto"', FedAvg("auto", "auto")),
        ('name = "FedProx"\nprox = 0.5\nstep = 1', FedProx(1.0, 0.0, prox=0.5)),
        ('name = "Scaffold"\nserver_step = 0.5', Scaffold("auto", 0.0, server_step=0.5)),
        ('name = "Local"\npenalty = 2', Local("auto", 2.0)),
        ('step = "theory"\npenalty = "theory"\nexact = false', PCFedAvg("theory", "theory")),
    ],
)
def test_algorithms(text, algorithm, tmp_path):
    path = folder_with(tmp_path, config=f"{SHARED_CONFIG}\n[algorithm]\n{text}")
    assert load_config(path).algorithm == algorithm


def test_an_agent_is_completed_by_the_defaults():
    agent = AgentSettings("north", coupling=0.0).completed(
        AgentSettings("", target="y", coupling=1)
    )
    assert agent == AgentSettings("north", target="y", coupling=0.0)


def digest(folder, **files):
    return load_config(folder_with(folder, **files)).digest()


NUMBERS = [match.span(1) for match in re.finditer(r" = ([\d.e]+)", FULL_CONFIG)]


@pytest.mark.parametrize("place", NUMBERS, ids=lambda place: FULL_CONFIG[: place[0]].split()[-2])
def test_the_digest_changes_with_every_number(place, tmp_path):
    number = json.loads(FULL_CONFIG[slice(*place)])
    other = number + 1 if isinstance(number, int) else number / 2 + 0.25 * (number == 0)
    text = f"{FULL_CONFIG[: place[0]]}{other}{FULL_CONFIG[place[1] :]}"
    key = FULL_CONFIG[: place[0]].split()[-2]
    same = digest(tmp_path, config=text) == digest(tmp_path, config=FULL_CONFIG)
    assert same == (key in DURATION)  # how long it goes on changes no number


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"softmax"', '"logistic"'),
        ('"load"\nf', '"power"\nf'),
        ('"float64"', '"float32"'),
        ('"household"', '"home"'),
        ('["a", "b"]', '["b", "a"]'),
        ("exact = true", "exact = false"),
        ("intercept = false", "intercept = true"),
        ("agents.north", "agents.south"),
        ('"whole_space"', '"nonnegative"'),
        ("batch = 1.0", "batch = 1"),
    ],
)
def test_the_digest_changes_with_every_word(before, after, tmp_path):
    assert before in FULL_CONFIG
    other = FULL_CONFIG.replace(before, after)
    assert digest(tmp_path, config=other) != digest(tmp_path, config=FULL_CONFIG)


def test_the_digest_changes_with_every_byte_of_the_data(tmp_path):
    first = digest(tmp_path)
    for k in range(0, len(SHARED), 7):
        content = bytearray(SHARED.encode())
        content[k] ^= 1
        assert digest(tmp_path, all=bytes(content)) != first
    assert digest(tmp_path, north=b"not used") == first


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{l1 = 5}", "{l1 = 5.0}  # a comment"),
        ("{l1 = 5}", '"l1(5)"'),
        ("{l1 = 5}", '"L1Ball(radius=5)"\ncoupling = 0.1'),
        ("[model]", "[training]\nrounds = 200\nseed = 0\n[model]"),
        ('kind = "softmax"', 'l2 = -0.0\nkind = "softmax"'),
        ('[data]\nfile = "all.csv"', '[data]\nfile = "./all.csv"'),
        ("[model]", "[algorithm]\nexact = true\n[model]"),
    ],
)
def test_the_digest_does_not_change_otherwise(before, after, tmp_path):
    assert before in SHARED_CONFIG
    same = SHARED_CONFIG.replace(before, after)
    assert digest(tmp_path, config=same) == digest(tmp_path)


def test_defaults_that_nobody_takes_are_not_in_the_digest(tmp_path):
    own = OWN_CONFIG.replace("south.csv", "north.csv") + 'constraint = "l2(1)"\ncoupling = 1\n'
    own = own.replace("{l1 = 5}", "{l1 = 5}\ncoupling = 2")
    other = own + '[defaults]\nconstraint = "l2(7)"\ncoupling = 3\n'
    assert digest(tmp_path, config=other) == digest(tmp_path, config=own)


def test_the_order_of_agents_is_in_the_digest(tmp_path):
    parts = OWN_CONFIG.split("[agents")
    other = "[agents".join([parts[0], parts[2], parts[1]])
    assert digest(tmp_path, config=other) != digest(tmp_path, config=OWN_CONFIG)


def test_the_digest_says_which_file_is_missing(tmp_path):
    path = folder_with(tmp_path, config=OWN_CONFIG)
    (tmp_path / "south.csv").unlink()
    with pytest.raises(ValueError, match=r"south\.csv: there must be a file"):
        load_config(path).digest()


def test_paths_are_relative_to_the_configuration(tmp_path, monkeypatch):
    path = folder_with(tmp_path)
    monkeypatch.chdir("/")
    assert load_config(str(path)).located("all.csv") == tmp_path / "all.csv"
    assert load_config(path).located("/data/all.csv").as_posix() == "/data/all.csv"


def test_resolved_is_a_copy(tmp_path):
    config = load_config(folder_with(tmp_path))
    config.resolved()["training"]["rounds"] = np.nan
    assert config.training.rounds == 200
