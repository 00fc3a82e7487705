"""Privacy budgets in train.toml and agent.toml, and what they exclude."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import FedAvg, Privacy
from pcfed.config.federation_files import ServerModel, read_agent_file
from pcfed.config.train_file import load_config, read_config
from pcfed.federation import Server, ServerConfig, client_app
from pcfed.federation.privacy_ledger import LedgerFile
from pcfed.federation.protocol import Message, ProtocolError
from pcfed.federation.row_sums import scaling_metadata
from pcfed.standardize import Scaling
from pcfed.training import prepare
from pcfed.training.modules import load_module
from pcfed.training.outcome import Outcome
from pcfed.training.trackers import open_trackers
from pcfed.training.trained_models import TrainedModels
from pcfed.training.tuning import CrossValidation, tune

SEED = 7683401931234567890
TRAIN = f"""
model.kind = "logistic"
data.target = "y"
training = {{rounds = 3, local_steps = 2, batch = 0.2, seed = {SEED}}}
agents.north = {{file = "north.csv", privacy = {{epsilon = 2.0, delta = 1e-5, feature_norm = 3}}}}
agents.south = {{file = "south.csv"}}
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the data of two agents."""
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        X = rng.normal(size=(60, 2))
        rows = [f"{a:.3f},{b:.3f},{int(a > 0)}" for a, b in X]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,y", *rows, ""]))
    return tmp_path


def load(folder, text=TRAIN):
    """Return a configuration."""
    (folder / "train.toml").write_text(text)
    return load_config(folder / "train.toml")


def test_a_training_with_a_budget(folder):
    load(folder)
    trainer = prepare(folder / "train.toml", folder / "run")
    assert trainer.setup.scaling is None  # no means of rows
    result = trainer.run()
    assert 1.9 < result.privacy[0].epsilon <= 2.0
    assert result.privacy[0].gradients == 6
    assert result.privacy[1] is None
    outcome = Outcome.load(folder / "run" / "outcome.json")
    assert outcome.gap is None
    assert "models.npz, are private for the rows of north (ε " in outcome.notes[0]
    assert "must stay with the owners" in outcome.notes[0]
    models = TrainedModels.load(folder / "run" / "models.npz")
    np.testing.assert_allclose(models.models[0], result.models[0])
    with pytest.raises(ValueError, match="tune: agents must have no privacy budget"):
        tune(CrossValidation(trainer.setup.problem))


def test_the_parameters_of_modules_do_not_reveal_the_low_bits_of_a_secret_seed(folder):
    import torch

    (folder / "net.py").write_text("import torch\n\ndef net():\n    return torch.nn.Linear(2, 2)\n")
    text = TRAIN.replace(", feature_norm = 3", "")
    text = text.replace(
        '"logistic"', '"torch"\nmodel.module = "net:net"\nmodel.loss = "cross-entropy"'
    )

    def weights(seed, text=text):
        config = load(folder, text.replace(str(SEED), str(seed)))
        module, _ = load_module(config, allow_import=True)
        return module.weight.detach().numpy()

    def seeded(seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return torch.nn.Linear(2, 2).double().weight.detach().numpy()

    plain = text.replace(", privacy = {epsilon = 2.0, delta = 1e-5}", "")
    for seed in (0, 5, 2**32 - 1):
        np.testing.assert_array_equal(weights(seed, plain), seeded(seed))
    np.testing.assert_array_equal(weights(SEED), weights(SEED))
    for other in (SEED - 2**32, SEED + 2**32, SEED + 1):
        assert np.abs(weights(SEED) - weights(other)).max() > 1e-3
    assert np.abs(weights(SEED) - seeded(SEED % 2**32)).max() > 1e-3


def test_mlflow_gets_nothing(folder):
    load(folder)
    trainer = prepare(folder / "train.toml", folder / "run")
    with pytest.raises(ValueError, match="--mlflow must be left out where an agent has a privacy"):
        open_trackers(trainer, mlflow=True)
    open_trackers(trainer, csv=folder / "history.csv")


@pytest.mark.parametrize(("epsilon", "warned"), [(0.1, True), (50.0, False)])
def test_a_budget_that_leaves_little_but_noise_is_warned_about(folder, epsilon, warned):
    load(folder, TRAIN.replace("epsilon = 2.0", f"epsilon = {epsilon}"))
    trainer = prepare(folder / "train.toml", folder / "run")
    notified = []
    result = trainer.run(notify=notified.append)
    found = Outcome.load(folder / "run" / "outcome.json").warnings
    seen = [each for each in found if each.kind == "large noise"]
    assert bool(seen) == warned
    if warned:
        share = 100 * result.privacy[0].relative_noise(trainer.setup.problem.n)
        assert seen[0].sentence.startswith(
            f"north: the noise of its privacy budget is at least {share:.0f} % of what it learns"
        )
    # Before the first round, too.
    assert [each.sentence for each in seen] == [text for text in notified if "noise" in text]


def test_budgets_are_read_and_written(folder):
    config = load(folder)
    assert config.agent("north").privacy == Privacy(2.0, 1e-5, feature_norm=3.0)
    assert config.agent("south").privacy is None
    again = read_config(config.resolved(), config.path)
    assert [a.privacy for a in again.agents] == [a.privacy for a in config.agents]
    text = TRAIN + "defaults.privacy = {epsilon = 1, delta = 1e-6, clip = 2.0}\n"
    config = load(folder, text)
    assert config.agent("south").privacy == Privacy(1.0, 1e-6, 2.0)
    assert config.agent("north").privacy.epsilon == 2.0
    files = {"north.csv": "1", "south.csv": "2"}
    assert config.digest(files) != load(folder).digest(files)
    plain = TRAIN.replace(", privacy = {epsilon = 2.0, delta = 1e-5, feature_norm = 3}", "")
    assert "privacy" not in str(load(folder, plain).resolved())


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        (str(SEED), "0", r"training\.seed must be a secret of at least 2\*\*62 .* take \d{19}, "),
        ('"y"', '"y"\ndata.standardize = true', r"data\.standardize must be false"),
        ('"y"', '"y"\ndata.missing = "drop"', r'data\.missing must be "error"'),
        ('"y"', '"y"\ndata.categories = "one-hot"', r"data\.categories must be left out"),
        ("rounds = 3", "rounds = 3, gap = 0.1", r"training\.gap must be left out"),
        ("logistic", "least-squares", r"model\.intercept_bound must be given"),
        ('"south.csv"', '"south.csv", coupling = "auto"', r"agents\.south\.coupling must be a num"),
        ("epsilon = 2.0, ", "", "privacy must be a table such as"),
        ("epsilon = 2.0", "epsilon = -1", "privacy is not valid: epsilon must be > 0"),
        ("epsilon = 2.0", 'epsilon = 2.0, noise = "none"', "privacy must be a table such as"),
    ],
)
def test_what_is_computed_from_rows_is_refused(folder, old, new, rule):
    with pytest.raises(ValueError, match=rule):
        load(folder, TRAIN.replace(old, new))


def test_budgets_are_checked_before_anything_is_written(folder):
    load(folder, TRAIN.replace("rounds = 3", "rounds = 30000000").replace("0.2", "1.0"))
    with pytest.raises(ValueError, match=r"rounds must be at most .* for the budget of north"):
        prepare(folder / "train.toml", folder / "run")
    load(folder, TRAIN.replace(", feature_norm = 3", ""))
    with pytest.raises(ValueError, match="give Privacy a feature_norm"):
        prepare(folder / "train.toml", folder / "run")
    assert not (folder / "run").exists()


def test_an_agent_file_has_a_budget_and_no_reports_of_losses(tmp_path):
    path = tmp_path / "agent.toml"
    text = 'name = "north"\nfile = "north.csv"\ntarget = "y"\n'
    text += "privacy = {epsilon = 2.0, delta = 1e-5}\n"
    path.write_text(f'{text}report = ["rows", "infeasibility"]\n')
    assert read_agent_file(path).privacy == Privacy(2.0, 1e-5)
    path.write_text(f'{text}report = ["loss", "rows"]\n')
    with pytest.raises(ValueError, match="report must not have loss where there is a privacy"):
        read_agent_file(path)


def test_an_agent_of_a_federation_takes_its_budget_from_its_file(folder):
    path, model = (
        folder / "agent.toml",
        ServerModel(kind="logistic", features=["a", "b"], labels=["0", "1"]),
    )
    budget = "privacy = {epsilon = 2.0, delta = 1e-5}"
    path.write_text(f'name = "north"\nfile = "north.csv"\ntarget = "y"\nbatch = 0.2\n{budget}\n')

    class Transport:
        """Answers messages with the agent of the file, made anew for every message."""

        def exchange(self, messages, min_present):
            message = messages["north"]
            metadata = {**message.metadata, "model": model.model_dump_json()}
            message = Message(message.kind, metadata, message.vectors)
            yield client_app._client(path, read_agent_file(path), message).handle(message)

    config = ServerConfig("heating", ("north",), model.n, FedAvg(step=0.1), 2, local_steps=3)
    with Server(config, Transport(), folder / "server") as server:
        server.run()
        server.finish()
    (entry,) = LedgerFile.load(folder / "north.privacy.json").trainings
    assert (entry.training, entry.spent, entry.plan.gradients) == ("heating", 6, 6)
    assert entry.plan.mechanism.is_sampled
    notes = Outcome.load(folder / "agent.heating" / "outcome.json").notes
    assert any("private for the rows, with ε 2 and δ 1e-05" in note for note in notes)

    model = model.model_copy(update={"standardize": True})
    message = server._messages("totals", {}, {})["north"]
    with pytest.raises(ProtocolError, match="standardization is computed from the records"):
        list(Transport().exchange({"north": message}, 1))


@pytest.fixture
def asking(folder, monkeypatch):
    """Return a function that sends an agent a message; files that it reads are in a list."""
    path, found, rounds = folder / "agent.toml", [], 30
    text = 'name = "north"\nfile = "north.csv"\ntarget = "y"\nbatch = 1.0\n'
    read_rows = client_app.read_rows

    def reading(*args):
        found.append(args)
        return read_rows(*args)

    monkeypatch.setattr(client_app, "read_rows", reading)

    def ask(epsilon=2.0, metadata=None, **model):
        path.write_text(f"{text}privacy = {{epsilon = {epsilon}, delta = 1e-5}}\n")
        given = {"kind": "logistic", "features": ["a", "b"], "labels": ["0", "1"]}
        spec = ServerModel(**{**given, "intercept": False, **model})
        config = ServerConfig("heating", ("north",), spec.n, FedAvg(step=0.1), rounds)
        with Server(config, None, folder / f"server {spec.n}") as server:
            message = server._messages("train", {}, {})["north"]
        asked = {**message.metadata, "model": spec.model_dump_json(), **(metadata or {})}
        message = Message("train", asked, message.vectors)
        return client_app._client(path, read_agent_file(path), message).handle(message)

    return ask, found


def test_a_server_does_not_learn_about_records_by_scaling_them(asking, folder):
    ask, read = asking
    for size in (1e-308, 1.0):
        scale = Scaling(np.zeros(2), np.array([size, 1.0]), intercept=False, target_mean=0.0)
        with pytest.raises(ProtocolError, match="standardization is computed from the records"):
            ask(metadata=scaling_metadata(scale))
    assert read == []
    assert not (folder / "north.privacy.json").exists()


def test_a_budget_belongs_to_one_model(asking):
    ask, read = asking
    with pytest.raises(ValueError, match="must contain labels of the training"):
        ask(labels=["0", "9"])
    assert len(read) == 1
    for other in ({}, {"features": ["a"]}, {"labels": ["1", "9"]}, {"dtype": "float32"}):
        with pytest.raises(ProtocolError, match="its privacy budget belongs to another model"):
            ask(**other)
    assert len(read) == 1
    ask(epsilon=2.5)
    with pytest.raises(ProtocolError, match=r"changing privacy\.epsilon"):
        ask(epsilon=2.5, features=["b", "a"])
    assert len(read) == 2
    # Of models that have been read already, nothing new is said.
    with pytest.raises(ValueError, match="must contain labels of the training"):
        ask(epsilon=2.5, labels=["0", "9"])


def test_another_regulariser_has_other_noise_and_counts(asking, folder):
    ask, _ = asking
    replies = [ask(epsilon=0.1).vectors["delta"]]
    for k, l2 in enumerate((0.0, 1e-9, 1e-6), start=1):
        replies.append(ask(epsilon=0.1, l2=l2, metadata={"rollbacks": k}).vectors["delta"])
    np.testing.assert_array_equal(*replies[:2])
    for i in (1, 2):
        assert np.abs(replies[i + 1] - replies[i]).max() > 1e-3
    (entry,) = LedgerFile.load(folder / "north.privacy.json").trainings
    assert entry.spent == 3


def test_a_row_that_is_corrected_does_not_show_without_noise(asking, folder):
    ask, _ = asking
    first = ask(epsilon=0.1).vectors["delta"]
    path = folder / "north.csv"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:5], "9.0,-9.0,0", *lines[6:]]))
    other = ask(epsilon=0.1, metadata={"rollbacks": 1}).vectors["delta"]
    # One step of 0.1 with a clip of 1: the row alone moves the update by 0.1 · 2 / 60 at most.
    assert np.abs(other - first).max() > 0.1 * 2 / 60
    (entry,) = LedgerFile.load(folder / "north.privacy.json").trainings
    assert entry.spent == 2
