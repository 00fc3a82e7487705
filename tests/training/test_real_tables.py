"""Tables as people have them: missing entries, text, dates, semicolons and decimal commas."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from pcfed.cli import models
from pcfed.data.encoding import Encoding, fit_encoding
from pcfed.data.tables import read_table
from pcfed.training import build_setup, load_config
from pcfed.training.saved_run import open_models
from pcfed.training.trainer import prepare

CONFIG = """
model.kind = "least-squares"
data = {{target = "price", held_out = 0, {data}}}
training = {{rounds = 5, local_only = false}}
agents.north = {{file = "north.csv", constraint = {{l1 = 3}}}}
agents.south = {{file = "south.csv"}}
"""
NORTH = """day,wind,heating,price
2024-01-01,1,gas,20
2024-01-02,,oil,22
2024-01-03,3,gas,21
2024-01-04,4,NA,23
2024-01-05,6,gas,
"""
SOUTH = """day,wind,heating,price
2024-01-01,5,wood,19
2024-01-02,2,gas,18
2024-01-03,n/a,wood,25
"""
EVERYTHING = 'missing = "mean", categories = "one-hot", exclude = ["day"]'


def folder_with(tmp_path, data, north=NORTH, south=SOUTH):
    (tmp_path / "train.toml").write_text(CONFIG.format(data=data))
    (tmp_path / "north.csv").write_text(north)
    (tmp_path / "south.csv").write_text(south)
    return tmp_path / "train.toml"


def setup_of(tmp_path, data, **files):
    return build_setup(load_config(folder_with(tmp_path, data, **files)))


def invoke(*arguments):
    done = CliRunner().invoke(models.app, arguments)
    assert done.exit_code == 0, done.output
    return done


def test_means_and_levels_are_those_of_all_agents(tmp_path):
    setup = setup_of(tmp_path, EVERYTHING)
    assert setup.columns == ("wind", "heating=gas", "heating=oil", "heating=wood")
    # The row without a target is not used, and its wind is not in the mean.
    assert setup.encoding.means == {"wind": pytest.approx((1 + 3 + 4 + 5 + 2) / 5)}
    assert [agent.loss.size for agent in setup.problem.agents] == [4, 3]
    (text,) = [each for each in setup.warnings if "missing" in each]
    assert text.endswith("train.toml: 1 of 8 rows have missing entries and are not used.")
    X = setup.encoding.matrix(read_table(tmp_path / "north.csv"))
    expected = [[1, 1, 0, 0], [3, 0, 1, 0], [3, 1, 0, 0], [4, 0, 0, 0], [6, 1, 0, 0]]
    np.testing.assert_allclose(X, expected)


def test_means_are_of_rows_for_training_only(tmp_path):
    path = folder_with(tmp_path, 'missing = "mean", exclude = ["day", "heating"]')
    path.write_text(path.read_text().replace("held_out = 0", "held_out = 0.5"))
    setup = build_setup(load_config(path))
    tables = [read_table(tmp_path / f"{name}.csv") for name in ("north", "south")]
    used = [tables[0].take(np.arange(4)), tables[1]]
    whole = fit_encoding(
        used, [np.arange(each.rows) for each in used], ["wind"], one_hot=False, fill=True
    )
    assert setup.encoding.means != whole.means


def test_rows_that_are_dropped(tmp_path):
    data = 'missing = "drop", categories = "one-hot", exclude = ["day"]'
    setup = setup_of(tmp_path, data)
    assert [agent.loss.size for agent in setup.problem.agents] == [2, 2]
    assert setup.columns == ("wind", "heating=gas", "heating=wood")


def test_semicolons_and_decimal_commas(tmp_path):
    north = "wind;price\n1,5;20,25\n2;21\n"
    south = "wind\tprice\n-,5\t20\n3\t21,5\n"
    setup = setup_of(tmp_path, 'decimal = ","', north=north, south=south)
    table = read_table(tmp_path / "north.csv", decimal=",")
    assert setup.encoding.matrix(table).tolist() == [[1.5], [2.0]]
    table = read_table(tmp_path / "south.csv", decimal=",")
    assert table.numbers("wind").tolist() == [-0.5, 3.0]
    assert table.numbers("price").tolist() == [20.0, 21.5]


def test_numbers_of_one_agent_are_levels_where_another_has_text(tmp_path):
    north, south = "zone,price\n1,2\n2,3\n", "zone,price\n2,2\ncity,3\n"
    setup = setup_of(tmp_path, 'categories = "one-hot"', north=north, south=south)
    assert setup.columns == ("zone=1", "zone=2", "zone=city")
    table = read_table(tmp_path / "north.csv")
    assert setup.encoding.matrix(table).tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("missing = 'drop'", "'day' must be numbers, got '2024-01-01' in line 2; write dates as"),
        ("exclude = ['day']", "'price' must have a value in every row, got none in line 6; fill"),
        ("exclude = ['dy']", "there must be a column 'dy', got "),
        (
            "exclude = ['price']",
            "exclude must contain neither the target nor the agent, got 'price'",
        ),
        ("exclude = ['day'], features = ['wind']", "exclude must be left out where data.features"),
        ("missing = 'median'", "missing must be one of error, drop, mean, got 'median'; did you"),
        ("categories = 'one-hot', missing = 'drop'", None),
    ],
)
def test_mistakes(tmp_path, data, sentence):
    if sentence is None:  # dates are levels then, which is allowed
        assert "day=2024-01-01" in setup_of(tmp_path, data).columns
        return
    with pytest.raises(ValueError, match=sentence) as caught:
        setup_of(tmp_path, data)
    assert len(str(caught.value).splitlines()) == 1


def test_too_many_levels(tmp_path):
    north = "id,price\n" + "".join(f"row {i},{i}\n" for i in range(101))
    with pytest.raises(ValueError, match=r"at most 100 levels, got 10. in the column"):
        setup_of(tmp_path, 'categories = "one-hot"', north=north, south="id,price\na,1\nb,2\n")


def test_predictions_go_on_past_missing_entries(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(folder_with(tmp_path, EVERYTHING), tmp_path / "run").run()
    trained = open_models(tmp_path / "run")
    assert trained.encoding.features == trained.columns
    new = "heating,id,wind\ngas,007,2\ncoal,008,\n,009,1\n"
    (tmp_path / "new.csv").write_text(new)
    command = ["predict", "run", "new.csv", "--agent", "north", "--ids", "id", "--scores"]
    done = invoke(*command)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [row["id"] for row in rows] == ["007", "008", "009"]
    mean = trained.encoding.means["wind"]
    X = [[2, 1, 0, 0], [mean, 0, 0, 0], [1, 0, 0, 0]]
    np.testing.assert_allclose(
        [float(row["prediction"]) for row in rows], trained.predict("north", X)
    )
    assert [row["score"] for row in rows] == [row["prediction"] for row in rows]


def test_rows_without_a_prediction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = 'missing = "drop", exclude = ["day", "heating"]'
    prepare(folder_with(tmp_path, data), tmp_path / "run").run()
    (tmp_path / "new.csv").write_text("wind\n2\nNA\n1\n")
    done = invoke("predict", "run", "new.csv", "--agent", "south")
    lines = done.stdout.splitlines()
    assert [bool(line.strip('"')) for line in lines] == [True, True, False, True]
    assert "1 of 3 rows have missing entries and no prediction, the first in line 3" in done.stderr
    (tmp_path / "new.csv").write_text("id,wind\n1,\n2,NA\n")
    done = invoke("predict", "run", "new.csv", "--agent", "south", "--ids", "id", "--scores")
    assert done.stdout == "id,prediction,score\n1,,\n2,,\n"


def test_an_encoding_is_read_back():
    encoding = Encoding(("a", "b"), {"b": ("x", "y")}, {"a": 0.5}, ",")
    again = Encoding.from_json(encoding.to_json())
    assert again.features == encoding.features == ("a", "b=x", "b=y")
    assert (again.means, again.decimal) == (encoding.means, ",")
