"""PyTorch modules of a user: with consent only, a set per layer, steps that are found by trying.

PCFedSplit, the default, needs no step. The other algorithms and the agents that train alone do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from pcfed import read_journal
from pcfed.training import Outcome, TrainedModels, load_config, prepare, read_config
from pcfed.training.step_search import MAX_HALVINGS, StepHalvings, local_algorithm
from pcfed.training.trackers import open_trackers
from tests.simulation.test_run import same
from tests.training.folders import paper_problem

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 8)
        self.second = nn.Linear(8, 2)

    def forward(self, x):
        return self.second(self.first(x).tanh())

def line():
    return nn.Linear(2, 1)

def number():
    return 3
"""

CONFIG = """
[model]
kind = "torch"
module = "my_models:Net"
loss = "cross-entropy"

[data]
target = "side"
dtype = "float32"

[training]
rounds = 60
local_steps = 5
save_every = 7

[agents.north]
file = "north.csv"
constraint = {blocks = {"first.weight" = "l1(2)", "second.bias" = {linf = 0.1}}}

[agents.south]
file = "south.csv"
"""


def folder_of(folder, config=CONFIG, net=NET):
    """Two agents with points inside and outside of a circle."""
    for i, name in enumerate(("north", "south")):
        X = np.random.default_rng(i).normal(size=(120, 2))
        rows = (f"{a:.4f},{b:.4f},{'in' if a * a + b * b < 1.4 else 'out'}\n" for a, b in X)
        (folder / f"{name}.csv").write_text("a,b,side\n" + "".join(rows))
    (folder / "my_models.py").write_text(net)
    (folder / "train.toml").write_text(config)
    return folder / "train.toml"


def command(folder, *more):
    line = [sys.executable, "-m", "pcfed", "train", "train.toml", *more]
    quick = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300, env=quick)


def test_it_learns_and_every_layer_keeps_to_its_set(tmp_path):
    job = prepare(folder_of(tmp_path), tmp_path / "run", allow_import=True)
    result = job.run()
    assert result.status == "finished"
    given = TrainedModels.load(job.directory.models)
    assert (given.kind.name, given.module) == ("torch", "my_models:Net")
    assert given.layout == {
        "first.weight": (8, 2),
        "first.bias": (8,),
        "second.weight": (2, 8),
        "second.bias": (2,),
    }
    north = given.parts("north")
    assert np.abs(north["first.weight"]).sum() <= 2 * (1 + 1e-12)
    assert np.abs(north["second.bias"]).max() <= 0.1
    outcome = Outcome.load(job.directory.outcome)
    assert outcome.score_name == "accuracy"
    assert outcome.reason == "the loss of north is not convex"
    assert outcome.agents[1].local_score > 0.7  # most points are on one side: about 0.5
    assert result.history[-1].loss < 0.9 * result.start.loss


def test_a_training_that_is_bad_for_all_agents_says_what_to_change(tmp_path):
    # The average of two networks with opposite targets is good for nobody.
    config = CONFIG.replace("cross-entropy", "mse").replace("rounds = 60", "rounds = 40")
    config = paper_problem(config.replace('"l1(2)", "second.bias" = {linf = 0.1}', '"l1(5)"'))
    path = folder_of(tmp_path, config, NET.replace("nn.Linear(8, 2)", "nn.Linear(8, 1)"))
    for i, (name, slopes) in enumerate({"north": (2, -1), "south": (-2, 1)}.items()):
        rng = np.random.default_rng(i)
        X = rng.normal(size=(150, 2))
        rows = np.column_stack([X, X @ slopes + 0.1 * rng.normal(size=150)])
        lines = (f"{a:.4f},{b:.4f},{c:.4f}\n" for a, b, c in rows)
        (tmp_path / f"{name}.csv").write_text("a,b,side\n" + "".join(lines))
    job = prepare(path, tmp_path / "run", allow_import=True)
    job.run()
    outcome = Outcome.load(job.directory.outcome)
    assert outcome.score_name == "loss"
    north, south = outcome.agents
    assert north.constraint == "first.weight: l1(5)"
    assert north.usage.text.startswith("first.weight: uses ")
    for row in (north, south):
        assert row.score > 2 * row.local_score
        assert row.against_alone.verdict == "worse"
        assert row.verdict.endswith("try a larger personalization, another coupling, or pcfed tune")
    warned = [each for each in outcome.warnings if each.kind == "large loss"]
    assert [each.agents for each in warned] == [("north",), ("south",)]
    assert "set personalization = 1 to train its own model on its own loss" in warned[0].sentence


@pytest.mark.federation
def test_it_runs_on_ray(tmp_path):
    pytest.importorskip("ray")
    short = CONFIG.replace("rounds = 60", "rounds = 3")
    folder_of(tmp_path, short, "import layers\n" + NET.replace("nn.Linear", "layers.Linear"))
    (tmp_path / "layers.py").write_text("from torch import nn\n\n\nclass Linear(nn.Linear): ...\n")
    done = command(tmp_path, "--allow-import", "--ray", "--actors", "2")
    assert done.returncode == 0, done.stderr


def test_the_command_asks_for_consent(tmp_path):
    short = CONFIG.replace("rounds = 60", "rounds = 5")
    folder_of(tmp_path, short, NET + "open('it ran', 'w').close()\n")
    before = sorted(tmp_path.rglob("*"))
    done = command(tmp_path)
    assert done.returncode == 2
    assert "must be allowed to run my_models.py, which is code; look at it, then" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before
    done = command(tmp_path, "--allow-import")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "it ran").exists()
    assert "No certificate: the loss of north is not convex" in done.stdout


def test_numbers_and_any_kind_of_output(tmp_path):
    config = CONFIG.replace("my_models:Net", "my_models:line").replace("cross-entropy", "mse")
    config = config.replace('target = "side"', 'target = "b"\nfeatures = ["a", "c"]')
    config = config.replace(
        '{blocks = {"first.weight" = "l1(2)", "second.bias" = {linf = 0.1}}}', '"l2(9)"'
    )
    path = folder_of(tmp_path, config)
    for name in ("north", "south"):
        X = np.random.default_rng(5).normal(size=(60, 2))
        rows = "".join(f"{a},{c},{2 * a - c + 1}\n" for a, c in X)
        (tmp_path / f"{name}.csv").write_text("a,c,b\n" + rows)
    job = prepare(path, tmp_path / "run", allow_import=True)
    job.run()
    given = TrainedModels.load(job.directory.models)
    np.testing.assert_allclose(given.average, [2, -1, 1], atol=1e-3)
    outcome = Outcome.load(job.directory.outcome)
    assert outcome.score_name == "loss"
    assert outcome.agents[0].score < 1e-4


def explosive(folder, algorithm="PCFedAvg"):
    """A module whose outputs are so large that the first steps diverge."""
    net = NET.replace("return self.second(", "return 30 * self.second(")
    config = CONFIG.replace("rounds = 60", "rounds = 25")
    return folder_of(folder, f'{config}\n[algorithm]\nname = "{algorithm}"\n', net)


def test_pcfedsplit_needs_no_search_and_agents_alone_find_their_steps(tmp_path):
    messages = []
    job = prepare(explosive(tmp_path, "PCFedSplit"), tmp_path / "run", allow_import=True)
    result = job.run(notify=messages.append)
    assert result.status == "finished"
    assert messages == []
    assert result.history[-1].loss < 0.5 * result.start.loss
    assert np.all(job.setup.problem.infeasibility(result.models) < 1e-12)
    assert not (tmp_path / "run" / "steps.json").exists()
    outcome = Outcome.load(job.directory.outcome)
    assert outcome.notes == ()
    assert outcome.agents[1].local_score > 0.7
    halvings = job.directory.local_halvings.load()
    assert halvings > 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("; they restart with half the step") == halvings


def test_a_comparison_that_was_interrupted_while_it_tries_steps_resumes(tmp_path):
    path, stops = explosive(tmp_path, "PCFedSplit"), 0

    def stop(done, total):
        if done == 4:
            os.kill(os.getpid(), signal.SIGINT)

    whole = prepare(path, tmp_path / "whole", allow_import=True)
    whole.run()
    while True:
        job = prepare(path, tmp_path / "run", allow_import=True)
        if job.run(on_alone=stop).status != "interrupted":
            break
        stops += 1
    assert stops > 0
    assert Outcome.load(job.directory.outcome) == Outcome.load(whole.directory.outcome)
    files = (tmp_path / name / "local_steps.json" for name in ("run", "whole"))
    assert len({file.read_bytes() for file in files}) == 1


def test_agents_alone_whose_steps_all_diverge_are_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr("pcfed.training.step_search.MAX_HALVINGS", 1)
    job = prepare(explosive(tmp_path, "PCFedSplit"), tmp_path / "run", allow_import=True)
    assert job.run().status == "finished"
    outcome = Outcome.load(job.directory.outcome)
    expected = "The loss diverges with a step that was halved 1 times."
    assert outcome.notes == (f"No scores of agents alone: {expected}",)
    assert [agent.local_score for agent in outcome.agents] == [None, None]
    assert None not in [agent.score for agent in outcome.agents]


def test_a_training_whose_steps_all_diverge_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("pcfed.training.step_search.MAX_HALVINGS", 1)
    result = prepare(explosive(tmp_path), tmp_path / "run", allow_import=True).run()
    assert result.status == "diverged"
    expected = "halved 1 times. Give algorithm.step as a number."
    assert result.message.endswith(expected)


@pytest.mark.parametrize(
    ("table", "step"),
    [
        ("", 0.6),
        ('name = "FedAvg"', 0.6),
        ('name = "FedAvg"\nstep = 0.2', 0.2),
        ('name = "PCFedAvg"\nstep = 0.2', 0.1),  # the average of two agents moves half as far
    ],
)
def test_the_first_step_of_agents_alone(table, step, tmp_path):
    path = folder_of(tmp_path, f"{CONFIG}\n[algorithm]\n{table}\n")
    setup = prepare(path, tmp_path / "run", allow_import=True).setup
    first = local_algorithm(setup.problem, setup.algorithm, 0)
    assert first.step == pytest.approx(step)
    assert first.step * first.penalty == pytest.approx(0.3)
    assert local_algorithm(setup.problem, setup.algorithm, 3).step == first.step / 8


def test_steps_that_diverge_are_halved_with_a_message(tmp_path):
    messages = []
    job = prepare(explosive(tmp_path), tmp_path / "run", allow_import=True)
    with open_trackers(job, csv=tmp_path / "history.csv") as tracking:
        result = job.run(notify=messages.append, callbacks=[tracking.on_evaluation])
    assert result.status == "finished"
    assert messages
    assert all("the training restarts with half the step, " in each for each in messages)
    assert job.directory.halvings.load() == len(messages)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("the training restarts with half the step") == len(messages)
    history = read_journal(job.directory.history)
    assert [record.round for record in history] == [*range(1, 26)]
    lines = (tmp_path / "history.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == [str(k) for k in range(1, 26)]
    assert max(record.loss for record in history) <= 10 * result.start.loss
    steps = [float(each.split("half the step, ")[1].rstrip(".")) for each in messages]
    assert np.allclose(np.array(steps[:-1]) / steps[1:], 2, rtol=0.01)


def test_killed_while_it_tries_steps_it_goes_on_to_the_same_bits(tmp_path):
    path = explosive(tmp_path)
    whole = prepare(path, tmp_path / "whole", allow_import=True).run()
    run, stops = tmp_path / "run", 0

    def stop(seen):
        if seen.record.round % 4 == 3:
            os.kill(os.getpid(), signal.SIGINT)

    while True:
        result = prepare(path, run, allow_import=True).run(callbacks=[stop])
        if result.status != "interrupted":
            break
        stops += 1
    assert stops >= 4
    same(result, whole)
    assert (run / "steps.json").read_bytes() == (tmp_path / "whole" / "steps.json").read_bytes()
    assert prepare(path, run, allow_import=True).run().status == "finished"


def test_the_file_of_halvings(tmp_path):
    old = [tmp_path / "checkpoint.npz", tmp_path / "history.jsonl"]
    halvings = StepHalvings(tmp_path / "steps.json", tuple(old))
    assert halvings.load() == 0
    for file in old:
        file.touch()
    (tmp_path / "steps.json").write_text('{"halvings": 2, "begun": false}')  # killed there
    assert halvings.load() == 2
    assert not any(file.exists() for file in old)
    old[0].touch()
    assert halvings.load() == 2
    assert old[0].exists()  # it is of the training with this step
    for text in (
        "{",
        "[]",
        '{"halvings": -1}',
        '{"halvings": true}',
        f'{{"halvings": {MAX_HALVINGS + 1}}}',
    ):
        (tmp_path / "steps.json").write_text(text)
        with pytest.raises(ValueError, match=r"steps.json is not a valid count of step halvings"):
            halvings.load()


def test_the_start_belongs_to_the_seed(tmp_path):
    path = folder_of(tmp_path)
    first, again = (prepare(path, tmp_path / "run", allow_import=True).setup.start for _ in "ab")
    assert np.array_equal(first, again)
    path.write_text(CONFIG.replace("[training]", "[training]\nseed = 1"))
    other = prepare(path, tmp_path / "run", allow_import=True).setup.start
    assert not np.array_equal(first, other)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    prepare(path, tmp_path / "run", allow_import=True)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_another_module_is_another_training(tmp_path):
    path = folder_of(tmp_path, CONFIG.replace("rounds = 60", "rounds = 2"))
    prepare(path, tmp_path / "run", allow_import=True).run()
    (tmp_path / "my_models.py").write_text(NET + "\n# changed\n")
    with pytest.raises(ValueError, match="contains another training"):
        prepare(path, tmp_path / "run", allow_import=True)


def test_what_is_resolved_is_read_again(tmp_path):
    config = load_config(folder_of(tmp_path))
    facts = json.loads(json.dumps(config.resolved()))
    assert facts["model"] == {"kind": "torch", "module": "my_models:Net", "loss": "cross-entropy"}
    again = read_config(facts, tmp_path / "train.toml")
    assert again.resolved() == config.resolved()
    files = dict.fromkeys(("north.csv", "south.csv", "all.csv", "my_models.py"), "0" * 64)
    assert again.digest(files) == config.digest(files)


def config(before, after):
    assert before in CONFIG
    return {"config": CONFIG.replace(before, after)}


WRONG = {
    "no module": (config('module = "my_models:Net"', ""), "model.module is missing; give one such"),
    "no colon": (config("my_models:Net", "my_models"), 'model.module must be "FILE:NAME", got'),
    "a path": (config("my_models:Net", "../x:Net"), 'model.module must be "FILE:NAME", got'),
    "no such file": (config("my_models:Net", "models:Net"), "must be in models.py beside the conf"),
    "no such name": (config("my_models:Net", "my_models:Nat"), r"got 'Nat'; did you mean 'Net'\?"),
    "no loss": (config('loss = "cross-entropy"', ""), "model.loss is missing; give one of cross-"),
    "a loss": (config("cross-entropy", "crossentropy"), "did you mean 'cross-entropy'"),
    "l2": (
        config("[data]", "l2 = 1\n[data]"),
        "model has no key 'l2' if kind is 'torch'; valid keys are kind, module",
    ),
    "standardize": (config("[data]", "[data]\nstandardize = true"), "must be false for modules"),
    "gap": (config("rounds = 60", "gap = 0.1"), "training.gap must be left out for modules"),
    "no layer": (config("first.weight", "frist.weight"), r"did you mean 'first.weight'\?"),
    "a layer and a slice": (
        config('"second.bias"', '"0:2"'),
        "north.constraint: parse_set: blocks",
    ),
    "layers of others": (
        config(
            'kind = "torch"\nmodule = "my_models:Net"\nloss = "cross-entropy"', 'kind="softmax"'
        ),
        'agents.north: blocks by names such as .* need model.kind = "torch"',
    ),
    "no class": (
        config("my_models:Net", "my_models:number"),
        "must make a torch.nn.Module, got int",
    ),
    "a syntax error": ({"net": "def Net(:"}, r"got SyntaxError .*; correct my_models.py"),
    "an import error": ({"net": "import gone"}, r"got ModuleNotFoundError \(No module named 'gone"),
    "an error": ({"net": "def Net(): return {}['x']"}, r"must run without errors, got KeyError"),
    "a value error": ({"net": "def Net(): int('x')"}, r"must run without errors, got ValueError"),
    "an exit": ({"net": "raise SystemExit(0)"}, r"must run without errors, got SystemExit"),
    "arguments": ({"net": "def Net(n): pass"}, r"got TypeError \(Net\(\) missing 1 required"),
    "another width": (
        {"net": NET.replace("nn.Linear(2, 8)", "nn.Linear(3, 8)")},
        "agents.north: TorchLoss: module must take batches of X, got RuntimeError",
    ),
    "one output": (
        {"net": NET.replace("nn.Linear(8, 2)", "nn.Linear(8, 1)")},
        "agents.north: ",
    ),
    "batch norm": (
        {"net": NET.replace("nn.Linear(8, 2)", "nn.BatchNorm1d(8)")},
        "module must not keep statistics of batches",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence(name, tmp_path):
    files, expected = WRONG[name]
    with pytest.raises(ValueError, match=expected) as caught:
        prepare(folder_of(tmp_path, **files), tmp_path / "run", allow_import=True)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 400
    assert not (tmp_path / "run").exists()


def test_a_module_that_fails_while_it_trains_is_one_sentence(tmp_path):
    net = NET.replace("def forward(self, x):", "def forward(self, x):\n        self.check(len(x))")
    net = net.replace(
        "def line", "    def check(self, n):\n        assert n < 50, 'too many'\n\ndef line"
    )
    folder_of(tmp_path, net=net)
    done = command(tmp_path, "--allow-import")
    assert done.returncode == 2
    assert "model.module must run without errors, got AssertionError (too many)" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
