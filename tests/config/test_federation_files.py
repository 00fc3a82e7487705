"""The files of server and agents: read, or refused in a sentence that names the key."""

from __future__ import annotations

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
from pcfed.config.federation_files import read_agent_file, read_server_file
from pcfed.federation.server_state import ServerConfig

SERVER = """training = "heating"
roster = ["north", "south"]
[model]
kind = "softmax"
features = ["a", "b"]
labels = ["x", "y", "z"]
[algorithm]
name = "PCFedAvg"
step = 0.1
penalty = 1.0
[rounds]
minimum = 2
"""
TABLE = 'name = "PCFedAvg"\nstep = 0.1\npenalty = 1.0'
AGENT = """name = "north"
file = "north.csv"
target = "kind"
constraint = {l1 = 5}
"""


def server(tmp_path, text):
    (tmp_path / "server.toml").write_text(text)
    return read_server_file(tmp_path / "server.toml")


def agent(tmp_path, text):
    (tmp_path / "agent.toml").write_text(text)
    return read_agent_file(tmp_path / "agent.toml")


def test_defaults_of_the_server(tmp_path):
    found = server(tmp_path, SERVER)
    config = ServerConfig.from_file(found)
    assert (config.training, config.roster, found.num_agents) == ("heating", ("north", "south"), 2)
    assert (config.rounds, config.gap, config.local_steps, config.attempts) == (100, None, 10, 10)
    assert (config.n, found.rounds.deadline) == (9, 60.0)  # with intercepts
    assert config.algorithm == PCFedAvg(0.1, 1.0)


def test_the_bound_on_intercepts(tmp_path):
    assert server(tmp_path, SERVER).model.resolved_intercept_bound == 30.0
    without = SERVER.replace('"softmax"', '"softmax"\nintercept = false')
    assert server(tmp_path, without).model.resolved_intercept_bound is None
    given = SERVER.replace('"softmax"', '"softmax"\nintercept_bound = 5')
    assert server(tmp_path, given).model.resolved_intercept_bound == 5.0
    numbers = SERVER.replace('"softmax"', '"least-squares"').replace('labels = ["x", "y", "z"]', "")
    assert server(tmp_path, numbers).model.resolved_intercept_bound is None
    wrong = without.replace("intercept = false", "intercept = false\nintercept_bound = 5")
    with pytest.raises(
        ValueError, match=r"intercept_bound must be left out if model\.intercept is"
    ):
        server(tmp_path, wrong)
    with pytest.raises(ValueError, match=r"model.intercept_bound is missing; rounds.gap = 0.1 nee"):
        server(tmp_path, numbers + "gap = 0.1\n")
    bounded = numbers.replace('"least-squares"', '"least-squares"\nintercept_bound = 1e3')
    assert server(tmp_path, bounded + "gap = 0.1\n").model.resolved_intercept_bound == 1000.0


def test_data_are_standardized_by_secure_sums_only(tmp_path):
    text = SERVER.replace('"softmax"', '"softmax"\nstandardize = true')
    with pytest.raises(ValueError, match=r"model\.standardize must be false without a secure sum"):
        server(tmp_path, text)
    found = ServerConfig.from_file(server(tmp_path, f"secure = true\n{text}"))
    assert found.standardization == (2, True, False)  # labels are not centred
    numbers = text.replace('"softmax"', '"least-squares"').replace('labels = ["x", "y", "z"]', "")
    found = ServerConfig.from_file(server(tmp_path, f"secure = true\n{numbers}"))
    assert found.standardization == (2, True, True)
    assert found.identity()["standardize"]
    assert ServerConfig.from_file(server(tmp_path, SERVER)).standardization is None


def test_all_keys_of_the_server(tmp_path):
    more = """minimum = 2
rounds = 7
gap = 0.05
gap_every = 3
local_steps = 4
seed = 9
attempts = 5
deadline = 30.0
norm_limit = 1e3
"""
    found = server(tmp_path, SERVER.replace("minimum = 2\n", more))
    config = ServerConfig.from_file(found)
    assert (config.rounds, config.gap, config.gap_every, config.local_steps) == (7, 0.05, 3, 4)
    assert (config.seed, config.minimum, config.attempts, config.norm_limit) == (9, 2, 5, 1e3)
    assert found.rounds.deadline == 30.0


def test_a_roster_may_be_a_number(tmp_path):
    found = server(tmp_path, SERVER.replace('["north", "south"]', "5"))
    assert (ServerConfig.from_file(found).roster, found.num_agents) == ((), 5)


@pytest.mark.parametrize(
    ("table", "algorithm"),
    [
        ("", PCFedSplit()),
        ('name = "PCFedSplit"\nprox = "auto"', PCFedSplit()),
        ("prox = 0.5\nrelaxation = 1.5", PCFedSplit(0.5, 1.5)),
        ('name = "PCFedAvg"\nstep = 0.1\npenalty = 2.0', PCFedAvg(0.1, 2.0)),
        ('name = "FedAvg"\nstep = 0.1', FedAvg(0.1)),
        ('name = "FedProx"\nstep = 0.1\nprox = 0.5', FedProx(0.1, prox=0.5)),
        ('name = "Scaffold"\nstep = 0.1\nserver_step = 0.5', Scaffold(0.1, server_step=0.5)),
        ('name = "Local"\nstep = 0.1', Local(0.1)),
        ('name = "Ditto"\nstep = 0.1\nprox = 1', Ditto(0.1, prox=1.0)),
        ('name = "PFedMe"\nstep = 0.1\nprox = 1', PFedMe(0.1, prox=1.0)),
        ('name = "PerFedAvg"\nstep = 0.1\nconstrained = false', PerFedAvg(0.1, constrained=False)),
        ('name = "FedRep"\nstep = 0.1\nown = [[-2, 3]]', FedRep(0.1, own=((-2, 3),))),
        ('name = "FedMiD"\nstep = 0.1', FedMiD(0.1)),
        (
            'name = "FedDualAvg"\nstep = 0.1\nproject_onto = "l1(2)"\nconstrained = false',
            FedDualAvg(0.1, project_onto="l1(2)", constrained=False),
        ),
        ('name = "PFedHN"\nstep = 0.1\nhidden = 8', PFedHN(0.1, hidden=8)),
        (
            'name = "ProxAL"\nstep = 0.1\nprox = 2\ninner_rounds = 5',
            ProxAL(0.1, prox=2.0, inner_rounds=5),
        ),
    ],
)
def test_all_algorithms(tmp_path, table, algorithm):
    assert server(tmp_path, SERVER.replace(TABLE, table)).algorithm == algorithm


def test_the_algorithm_may_be_left_out(tmp_path):
    assert server(tmp_path, SERVER.replace(f"[algorithm]\n{TABLE}\n", "")).algorithm == PCFedSplit()


SERVERS = {
    "algorithm": (
        "PCFedAvg",
        "Mine",
        "got 'Mine'; choose one of them, or name the modu",
    ),
    "imports": (
        "[model]",
        'imports = ["no_such"]\n[model]',
        "imports: there is no module 'no_such'",
    ),
    "path": (
        "[model]",
        'imports = ["a/b.py"]\n[model]',
        "imports must be names of modules, got 'a/b",
    ),
    "training": (
        'training = "heating"\n',
        "",
        'training is missing; give a non-empty string such as "heating"',
    ),
    "roster": (
        'roster = ["north", "south"]\n',
        "",
        "roster is missing; give a list of names or an",
    ),
    "no agents": (
        '["north", "south"]',
        "0",
        "roster must be a list of names or an integer ≥ 1, got 0",
    ),
    "half": (
        '["north", "south"]',
        "2.5",
        r"roster must be a list of names or an integer ≥ 1, got 2\.5",
    ),
    "twice": ('"south"', '"north"', "roster must be different names, got 'north' 2 times"),
    "blank": ('"south"', '" "', "the name of an agent must be 1 to 80 printable characters"),
    "minimum": ("minimum = 2", "minimum = 3", "at most the 2 agents of the roster, got 3; give"),
    "gap": ("minimum = 2", "gap = 0", r"rounds.gap must be a number > 0, got 0"),
    "gap nan": ("minimum = 2", "gap = nan", "rounds.gap must be a number > 0, got nan"),
    "gap_every": ("minimum = 2", "gap_every = 0", "rounds.gap_every must be an integer ≥ 1"),
    "key": ("minimum", "minimun", "rounds has no key 'minimun'; did you mean 'minimum'"),
    "step": ("step = 0.1", 'step = "auto"', "algorithm.step must be a number, got 'auto': the ser"),
    "no step": ("step = 0.1\n", "", "the server does not see the data that it would be computed"),
    "penalty": ("penalty = 1.0\n", "", "algorithm.penalty must be a number, got 'auto'"),
    "step of PCFedSplit": (
        'name = "PCFedAvg"\nstep = 0.1\npenalty = 1.0',
        "step = 0.1",
        "algorithm has no key 'step' if name is 'PCFedSplit', the default; remove it, or choose",
    ),
    "exact": (
        TABLE,
        f"exact = true\n{TABLE}",
        'any more; give name = "PCFedSplit", which replaces it, and remove exact, step and penalt',
    ),
    "prox": (TABLE, 'prox = "fast"', "algorithm.prox must be a number > 0 or \"auto\", got 'fast'"),
    "features": ('features = ["a", "b"]\n', "", "model.features is missing; give a list of names"),
    "labels": ('labels = ["x", "y", "z"]\n', "", "model.labels must be given for softmax and log"),
}


@pytest.mark.parametrize("case", SERVERS)
def test_a_servers_mistakes(tmp_path, case):
    before, after, why = SERVERS[case]
    assert before in SERVER
    with pytest.raises(ValueError, match=why) as caught:
        server(tmp_path, SERVER.replace(before, after))
    assert "\n" not in str(caught.value)


def test_by_default_an_agent_reports_nothing(tmp_path):
    found = agent(tmp_path, AGENT)
    assert (found.name, found.certificate, found.report) == ("north", False, ())
    more = 'certificate = true\nreport = ["loss", "rows"]\n'
    found = agent(tmp_path, AGENT + more)
    assert (found.certificate, found.report) == (True, ("loss", "rows"))
    assert agent(tmp_path, AGENT + "report = []\n").report == ()


AGENTS = {
    "name": ("name = ' '", "agent.toml: name: the name of an agent must be 1 to 80 printable"),
    "batch": ("batch = 0.0", r"agent.toml: batch must be a float in \(0, 1\] or an integer"),
    "constraint": ("constraint = 3", "agent.toml: constraint must be a convex set such as .*got 3"),
    "coupling": ("coupling = nan", "agent.toml: coupling must be a number ≥ 0, got nan"),
    "report": (
        'report = ["los"]',
        "report must be some of loss, accuracy, infeasibility, rows, go",
    ),
    "report near": ('report = ["los"]', r"got 'los'; did you mean 'loss'\? Take it out, or take"),
    "report word": ('report = "loss"', "report must be a list of names, got 'loss'"),
    "certificate": ("certificate = 1", "certificate must be true or false, got 1"),
    "key": ("certificat = true", "no key 'certificat'; did you mean 'certificate'"),
}


@pytest.mark.parametrize("case", AGENTS)
def test_an_agents_mistakes(tmp_path, case):
    line, why = AGENTS[case]
    lines = [each for each in AGENT.splitlines() if each.split()[0] != line.split()[0]]
    with pytest.raises(ValueError, match=why):
        agent(tmp_path, "\n".join([*lines, line]))
