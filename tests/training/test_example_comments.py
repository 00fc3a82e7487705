"""Every comment of the example of `pcfed init` works when it is followed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pcfed.training import prepare
from pcfed.training.example import ROWS, example_text, write_example

RIVERSIDE = "agents.riverside.constraint={l2 = 3}"
NUMBERS = ["data.target=visits", 'data.features=["age", "glucose"]', RIVERSIDE]
ONE_FILE = ["data.file=all.csv", "data.agent=clinic"]
MODULE = ["model.kind=torch", "model.module=my_models:Net", RIVERSIDE]
ALSO = {
    "model.kind=softmax": [RIVERSIDE],
    "model.kind=least-squares": NUMBERS,
    'model.module="my_models:Net"': ["model.loss=cross-entropy", *MODULE],
    'model.loss="cross-entropy"': MODULE,
    "model.loss=mse": [*MODULE, *NUMBERS],
    'data.features=["age", "glucose"]': [RIVERSIDE],
    'data.file="all.csv"': ONE_FILE,
    'data.agent="clinic"': ONE_FILE,
    **{
        f"algorithm.name={name}": ["algorithm.prox=0.1"]
        for name in ("FedProx", "Ditto", "PFedMe", "ProxAL")
    },
    "algorithm.name=FedRep": ["algorithm.own=[[0, 3]]"],
    "algorithm.own=[[0, 3]]": ["algorithm.name=FedRep"],
    'algorithm.step="auto"': ["algorithm.name=FedAvg"],
    "algorithm.step=0.01": ["algorithm.name=FedAvg"],
    'algorithm.penalty="auto"': ["algorithm.name=PCFedAvg"],
    "algorithm.penalty=0.01": ["algorithm.name=PCFedAvg"],
    "defaults.privacy={epsilon = 2.0, delta = 1e-5, feature_norm = 3.0}": [
        f"training.seed={2**62}"
    ],
}
"""What else the comments ask for."""

MODULE_FILE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(SIZES)

    def forward(self, x):
        return self.layer(x)
"""


def commented() -> Iterator[str]:
    """Yield the settings in comments: whole lines, and the other values that comments mention."""
    table = place = ""
    for line in example_text().splitlines():
        comment = None
        if header := re.match(r"\[([\w.]+)\]", line):
            table, place = header[1], ""
        elif others := re.match(r"# Other constraints: (.*)", line):
            sets = re.findall(r'\{.*?\}|".*?"', others[1])
            yield from (f"agents.harbour.constraint={each}" for each in sets)
        elif setting := re.fullmatch(r"(# )?(\w+) = (.*?)(?: +# (.*))?", line):
            is_comment, key, value, comment = setting.groups()
            place = f"{table}.{key}"
            if is_comment:
                yield f"{place}={value}"
        elif more := re.fullmatch(r" +# (.*)", line):
            comment = more[1] if place else None
        yield from (f"{place}={value}" for value in values_in(comment or ""))


def values_in(comment: str) -> Iterator[str]:
    """Yield the values that the comment on a key mentions."""
    pattern = r'(?<!= )"([\w-]+)"|\b(\d+|true|false) (?:is|if|for)\b|(a number)'
    for quoted, plain, number in re.findall(pattern, comment):
        yield quoted or plain or (number and "0.01")


SETTINGS = list(commented())


def test_the_settings_are_found():
    assert len(SETTINGS) == len(set(SETTINGS)) > 30
    assert {"defaults.personalization=0", "defaults.personalization=1"} <= set(SETTINGS)
    assert {"training.batch=16", "training.participation=3", "data.dtype=float32"} <= set(SETTINGS)
    assert set(ALSO) <= set(SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_in_a_comment_trains(setting, tmp_path):
    path = write_example(tmp_path)[0]
    also = ALSO.get(setting, [])
    text = path.read_text()
    if "data.agent=clinic" in also:
        text = re.sub(r"^file = .*\n", "", text, flags=re.MULTILINE)
        rows = [
            f"{name},{row}"
            for name in ROWS
            for row in (tmp_path / "data" / f"{name}.csv").read_text().splitlines()[1:]
        ]
        header = (tmp_path / "data" / "harbour.csv").read_text().splitlines()[0]
        (tmp_path / "all.csv").write_text("\n".join([f"clinic,{header}", *rows, ""]))
    if "model.kind=torch" in also:
        text = re.sub(r"^(intercept|l2) = .*\n", "", text, flags=re.MULTILINE)
        sizes = "2, 1" if "mse" in setting else "6, 2"
        (tmp_path / "my_models.py").write_text(MODULE_FILE.replace("SIZES", sizes))
    path.write_text(text)
    overrides = ["training.rounds=1", *also, setting]
    trainer = prepare(path, tmp_path / "run", allow_import=True, overrides=overrides)
    assert trainer.run().state.round == 1
    assert trainer.directory.outcome.exists()
