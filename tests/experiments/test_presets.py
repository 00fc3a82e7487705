"""The presets are the paper's experiments, parameter by parameter."""

from __future__ import annotations

import pytest

from pcfed import FedAvg, FedProx, PCFedAvg, Power, Scaffold
from pcfed.experiments.jobs import distinct, jobs
from pcfed.experiments.presets import NAMES, digest, load_preset

PAPER = {
    "mnist": {
        "data": "mnist",
        "constraints": ("l1(188)",) * 4,
        "couplings": (0.01, 0.02, 0.03, 0.04),
        "steps": (0.03, 0.01, 0.01, 0.01),
        "prox": 0.1,
    },
    "cifar10": {
        "data": "cifar10",
        "constraints": ("l1(85)", "l1(86)", "l1(87)", "l1(88)"),
        "couplings": (0.001, 0.01, 0.1, 0.2),
        "steps": (0.003, 0.001, 0.001, 0.001),
        "prox": 2.0,
    },
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_parameters(name):
    paper = PAPER[name]
    for setting in load_preset(name).settings:
        assert setting.data == paper["data"]
        assert setting.constraints == paper["constraints"]
        assert setting.couplings == paper["couplings"]
        assert (setting.rounds, setting.batch, setting.samples) == (100, 0.1, None)
        assert [type(run.algorithm) for run in setting.runs] == [
            PCFedAvg,
            FedAvg,
            FedProx,
            Scaffold,
        ]
        assert tuple(run.algorithm.step for run in setting.runs) == paper["steps"]
        for run in setting.runs:
            assert run.algorithm.penalty == Power(offset=10_000, exponent=0.25)
            assert run.local_steps == 20
        assert setting.runs[2].algorithm.prox == paper["prox"]
        assert setting.runs[3].algorithm.server_step == 1.0
        assert [run.participation for run in setting.runs] == [1.0, 1.0, 1.0, 2]
    assert load_preset(name).settings[0].partition == "label_sorted"


def test_local_steps_vary_only_in_local_steps():
    for setting in load_preset("local-steps").settings:
        assert len({run.algorithm for run in setting.runs}) == 1
        steps = [run.local_steps for run in setting.runs]
        assert steps == sorted(set(steps))
        assert 20 in steps


def test_binding_budgets_differ():
    small, full = load_preset("binding").settings
    assert small.constraints == full.constraints == ("l1(20)", "l1(60)", "l1(180)", "l1(540)")
    assert (small.samples, full.samples) == (8000, 60_000)
    assert small.rounds == full.rounds == 300


def test_quick_presets_are_small_and_labelled():
    for name in NAMES:
        quick = load_preset(name).quick()
        assert "quick, on digits" in quick.title
        assert all(s.data == "digits" and s.samples is None for s in quick.settings)
        assert len(jobs([quick], seeds=3)) == sum(len(s.runs) for s in quick.settings)


def test_settings_may_limit_the_number_of_seeds():
    sorted_shards, iid = load_preset("mnist").settings
    everything = jobs([load_preset("mnist")], seeds=3)
    assert sum(job.setting == sorted_shards for job in everything) == 12
    assert sum(job.setting == iid for job in everything) == 4


def test_the_digest_depends_on_setting_run_and_seed():
    setting, other = load_preset("mnist").settings
    spec = setting.runs[0]
    digests = {
        digest(setting, spec, 0),
        digest(setting, spec, 1),
        digest(other, spec, 0),
        digest(setting, setting.runs[1], 0),
    }
    assert len(digests) == 4
    assert digest(setting, spec, 0) == digest(load_preset("mnist").settings[0], spec, 0)


def test_the_same_run_in_two_experiments_is_run_once():
    """PC-FedAvg with 20 local steps is in `mnist` and in `local-steps`."""
    both = jobs([load_preset("mnist"), load_preset("local-steps")], seeds=1)
    assert len(both) - len(distinct(both)) == 1


def test_an_unknown_experiment_gets_the_list_of_names():
    with pytest.raises(ValueError, match="no experiment 'minst'; choose from mnist, cifar10"):
        load_preset("minst")
