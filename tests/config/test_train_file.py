"""train.toml: its keys, the defaults, and the digest of what the numbers depend on."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pcfed import (
    Ditto,
    FedAvg,
    FedDualAvg,
    FedMiD,
    FedProx,
    FedRep,
    Local,
    PCFedAvg,
    PCFedSplit,
    PerFedAvg,
    PFedHN,
    PFedMe,
    ProxAL,
    Scaffold,
)
from pcfed.algorithms.registry import algorithm_names, register
from pcfed.config.train_file import NOT_IN_DIGEST
from pcfed.storage.reading import read_file
from pcfed.training import build_setup, load_config, prepare, read_config
from tests.training.folders import (
    FULL_CONFIG,
    OWN_CONFIG,
    SHARED,
    SHARED_CONFIG,
    folder_with,
    paper_problem,
    without_intercept,
)


def test_the_documented_form(tmp_path):
    config = load_config(folder_with(tmp_path, config=FULL_CONFIG))
    assert config.model.resolved() == {"kind": "softmax", "intercept": False, "l2": 0.0}
    assert config.data.features == ("a", "b")
    assert config.algorithm == PCFedSplit()
    assert config.training.gap == 0.01
    assert config.training.norm_limit == 1e6
    assert [agent.name for agent in config.agents] == ["north"]
    assert str(config.agent("north").constraint) == "L1Ball(radius=5.0)"
    assert str(config.agent("anybody").constraint) == "WholeSpace()"
    assert config.agent("anybody").target == "load"


def test_the_bound_on_intercepts(tmp_path):
    text = OWN_CONFIG.replace("[data]", "intercept_bound = 50\n[data]")
    config = load_config(folder_with(tmp_path, config=text))
    assert config.model.resolved()["intercept_bound"] == 50.0
    assert digest(tmp_path, config=text) != digest(tmp_path, config=OWN_CONFIG)
    assert config.with_intercept_bound(None) is config
    assert config.with_intercept_bound(7.0).resolved()["model"]["intercept_bound"] == 7.0
    for wrong, message in (
        ("0", "model.intercept_bound must be a number > 0, got 0"),
        ("inf", "model.intercept_bound must be a number > 0, got inf"),
        ("1\nintercept = false", "model.intercept_bound must be left out if model.intercept is"),
    ):
        with pytest.raises(ValueError, match=message):
            load_config(folder_with(tmp_path, config=text.replace("50", wrong)))


def test_defaults(tmp_path):
    config = load_config(folder_with(tmp_path))
    assert config.resolved() == {
        "model": {"kind": "softmax", "intercept": True, "l2": 0.0},
        "data": {
            "file": "all.csv",
            "agent": "home",
            "target": "load",
            "missing": "error",
            "decimal": ".",
            "held_out": 0.2,
            "dtype": "float64",
            "standardize": False,
        },
        "algorithm": {"name": "PCFedSplit", "prox": "auto", "relaxation": 1.8},
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
            "center": "free",
        },
        "defaults": {"constraint": "WholeSpace()", "coupling": 0.1, "personalization": 0.5},
        "agents": {
            "north": {
                "target": "load",
                "constraint": "L1Ball(radius=5.0)",
                "coupling": 0.1,
                "personalization": 0.5,
            }
        },
    }


@pytest.mark.parametrize("text", [FULL_CONFIG, SHARED_CONFIG, OWN_CONFIG])
def test_what_is_resolved_reads_back(text, tmp_path):
    config = load_config(folder_with(tmp_path, config=text))
    again = read_config(json.loads(json.dumps(config.resolved())), config.path)
    assert again.resolved() == config.resolved()
    assert again.digest(FILES) == config.digest(FILES)


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ('name = "FedAvg"', FedAvg("auto", 0.0)),
        ('name = "FedAvg"\npenalty = "auto"', FedAvg("auto", "auto")),
        ('name = "FedProx"\nprox = 0.5\nstep = 1', FedProx(1.0, 0.0, prox=0.5)),
        ('name = "Scaffold"\nserver_step = 0.5', Scaffold("auto", 0.0, server_step=0.5)),
        ('name = "Local"\npenalty = 2', Local("auto", 2.0)),
        ('name = "Ditto"\nprox = 1', Ditto("auto", prox=1.0)),
        ('name = "PFedMe"\nprox = 1\nown_steps = 3', PFedMe("auto", prox=1.0, own_steps=3)),
        ('name = "PerFedAvg"\nown_step = 0.5', PerFedAvg("auto", own_step=0.5)),
        ('name = "FedRep"\nown = [[0, 2]]', FedRep("auto", own=((0, 2),))),
        ('name = "FedMiD"\nserver_step = 0.5', FedMiD("auto", server_step=0.5)),
        ('name = "FedDualAvg"\nproject_onto = "l2(3)"', FedDualAvg("auto", project_onto="l2(3)")),
        ('name = "PFedHN"\nlayers = 0', PFedHN("auto", layers=0)),
        ('name = "ProxAL"\nprox = 2\ntolerance = 0', ProxAL("auto", prox=2.0, tolerance=0.0)),
        ('name = "PCFedAvg"\nstep = "theory"', PCFedAvg("theory", "auto")),
        ("", PCFedSplit()),
        ('prox = "auto"\nrelaxation = 1', PCFedSplit(relaxation=1.0)),
        ('name = "PCFedSplit"\nprox = 2', PCFedSplit(2.0)),
    ],
)
def test_algorithms(text, algorithm, tmp_path):
    path = folder_with(tmp_path, config=f"{SHARED_CONFIG}\n[algorithm]\n{text}")
    assert load_config(path).algorithm == algorithm


def test_an_algorithm_that_a_user_registered(tmp_path, monkeypatch):
    monkeypatch.setattr("pcfed.algorithms.registry._ALGORITHMS", {})
    text = f"{SHARED_CONFIG}\n[algorithm]\nname = 'Mine'\nflavour = 'x'\ntimes = 3"

    @register
    @dataclass(frozen=True)
    class Mine(FedAvg):
        flavour: str = "y"
        times: int = 1

    assert algorithm_names() == ("Mine",)
    assert load_config(folder_with(tmp_path, config=text)).algorithm == Mine("auto", 0.0, "x", 3)
    with pytest.raises(ValueError, match=r"algorithm.times must be an integer, got 'a'; give one"):
        load_config(folder_with(tmp_path, config=text.replace("= 3", "= 'a'")))


def test_an_agent_is_completed_by_the_defaults(tmp_path):
    text = SHARED_CONFIG + "coupling = 0\n[defaults]\ncoupling = 2\nconstraint = 'l2(1)'\n"
    config = load_config(folder_with(tmp_path, config=text))
    north, south = config.agent("north"), config.agent("south")
    assert (str(north.constraint), north.coupling) == ("L1Ball(radius=5.0)", 0.0)
    assert (str(south.constraint), south.coupling) == ("L2Ball(radius=1.0)", 2.0)
    assert north.target == south.target == "load"


FILES = {"all.csv": "a" * 64, "north.csv": "b" * 64, "south.csv": "c" * 64}
"""Digests of data files."""


def digest(folder, **files):
    """The digest of a configuration, whose data files are not read."""
    return load_config(folder_with(folder, **files)).digest({"./all.csv": "a" * 64, **FILES})


def test_digests_stay_the_same_from_version_to_version(tmp_path):
    """Runs of the paper's problem without an intercept can be resumed from version 0.1 on."""
    shared = paper_problem(without_intercept(SHARED_CONFIG) + "[training]\n")
    own = paper_problem(without_intercept(OWN_CONFIG))
    full = FULL_CONFIG.replace("[training]", '[training]\ncenter = "average"')
    full = full.replace("[defaults]", "[defaults]\npersonalization = 0")
    expected = {
        full: "0660db1e77d7c35785df565eea0bcca2e58142671399e9b02dc52210d0e7df7f",
        shared: "080924a8ed106363ab8de3bb1cca34b7557459d70ac4569b206a51c1228e3503",
        own: "a61ae9cd31aeed8d677fd97ea451392704f20f738e74337c42f6becbc88ac8c5",
        # Earlier versions, which had another default, had this algorithm, too.
        f'{own}[algorithm]\nname = "FedAvg"\n': (
            "9850f5765d4bcec8e9c313eba9930d63f705fbd812b17b454cf866d20cdf9896"
        ),
    }
    assert {text: digest(tmp_path, config=text) for text in expected} == expected


def test_old_runs_with_an_intercept_cannot_be_resumed(tmp_path):
    """Version 0.1 did not centre the data: its checkpoints are of other coordinates."""
    text = paper_problem(OWN_CONFIG)
    old = "d355d9d562e261684b34bb526b0e3cd372a0781d757b66f99f11d27fbb6afc34"
    assert digest(tmp_path, config=text) != old


NUMBERS = [match.span(1) for match in re.finditer(r" = ([\d.e]+)", FULL_CONFIG)]


@pytest.mark.parametrize("place", NUMBERS, ids=lambda place: FULL_CONFIG[: place[0]].split()[-2])
def test_the_digest_changes_with_every_number(place, tmp_path):
    number = json.loads(FULL_CONFIG[slice(*place)])
    other = number + 1 if isinstance(number, int) else number / 2 + 0.25 * (number == 0)
    text = f"{FULL_CONFIG[: place[0]]}{other}{FULL_CONFIG[place[1] :]}"
    key = FULL_CONFIG[: place[0]].split()[-2]
    same = digest(tmp_path, config=text) == digest(tmp_path, config=FULL_CONFIG)
    assert same == (key in NOT_IN_DIGEST)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"softmax"', '"logistic"'),
        ('"load"\nf', '"power"\nf'),
        ('"float64"', '"float32"'),
        ('"household"', '"home"'),
        ('["a", "b"]', '["b", "a"]'),
        ('prox = "auto"', "prox = 1.0"),
        ('name = "PCFedSplit"\nprox = "auto"\nrelaxation = 1.8', 'name = "PCFedAvg"'),
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
    first = build_setup(load_config(folder_with(tmp_path))).digest
    sha256 = hashlib.sha256(SHARED.encode()).hexdigest()
    assert first == load_config(tmp_path / "train.toml").digest({"all.csv": sha256})
    for before, after in ((",5,a", ",5.0,a"), ("north,1", "north, 1"), ("b\n", "b\r\n")):
        other = build_setup(load_config(folder_with(tmp_path, all=SHARED.replace(before, after))))
        assert other.digest != first
    other = build_setup(load_config(folder_with(tmp_path, north=b"not used")))
    assert other.digest == first


def test_a_data_file_is_read_once(tmp_path, monkeypatch):
    """What is hashed is what was parsed, even if the file changes meanwhile."""
    path = folder_with(tmp_path, config=OWN_CONFIG)
    reads = []

    def read(file: Path, max_bytes: int) -> bytes:
        reads.append(file.name)
        return read_file(file, max_bytes)

    monkeypatch.setattr("pcfed.data.readers.read_file", read)
    prepare(path, tmp_path / "run")
    assert sorted(reads) == ["north.csv", "south.csv", "train.toml"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{l1 = 5}", "{l1 = 5.0}  # a comment"),
        ("{l1 = 5}", '"l1(5)"'),
        ("{l1 = 5}", '"L1Ball(radius=5)"\ncoupling = 0.1'),
        ("[model]", "[training]\nrounds = 200\nseed = 0\n[model]"),
        ('kind = "softmax"', 'l2 = -0.0\nkind = "softmax"'),
        ('[data]\nfile = "all.csv"', '[data]\nfile = "./all.csv"'),
        ("[model]", '[algorithm]\nname = "PCFedSplit"\nprox = "auto"\n[model]'),
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


def test_paths_are_relative_to_the_configuration(tmp_path, monkeypatch):
    path = folder_with(tmp_path)
    monkeypatch.chdir("/")
    assert load_config(str(path)).located("all.csv") == tmp_path / "all.csv"
    assert load_config(path).located("/data/all.csv").as_posix() == "/data/all.csv"


def test_resolved_is_a_copy(tmp_path):
    config = load_config(folder_with(tmp_path))
    config.resolved()["training"]["rounds"] = np.nan
    assert config.training.rounds == 200
