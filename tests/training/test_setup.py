"""The problem that a configuration and its data make, compared with one setup by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pcfed import run
from pcfed.losses import LeastSquares, LogisticRegression, SoftmaxRegression
from pcfed.training import build_setup, load_config
from tests.training.folders import (
    OWN_CONFIG,
    SHARED,
    SHARED_CONFIG,
    folder_with,
    setup_in,
    without_intercept,
)

ALL = without_intercept(SHARED_CONFIG).replace('"load"', '"load"\nheld_out = 0')


def same(loss, other):
    """Whether two losses are the same function."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3, loss.n))
    return type(loss) is type(other) and all(
        loss.value(x) == other.value(x) and np.array_equal(loss.gradient(x), other.gradient(x))
        for x in points
    )


def test_one_file_for_all(tmp_path):
    setup = setup_in(tmp_path, config=ALL)
    assert setup.problem.names == ("north", "south")
    assert setup.columns == ("area", "rooms")
    assert setup.labels == ("a", "b")
    assert setup.tests == (0, 0)
    assert setup.warnings == ()
    assert setup.algorithm == load_config(tmp_path / "train.toml").algorithm
    north, south = setup.problem.agents
    assert same(north.loss, SoftmaxRegression([[1, 2], [2, 1], [3, 5]], [0, 1, 0], classes=2))
    assert same(south.loss, SoftmaxRegression([[1, 4], [5, 4], [2, 2]], [1, 0, 1], classes=2))
    assert [str(each.constraint) for each in (north, south)] == [
        "L1Ball(radius=5.0)",
        "WholeSpace()",
    ]
    assert north.test is None


def test_a_file_an_agent_with_columns_in_another_order(tmp_path):
    text = without_intercept(OWN_CONFIG).replace('"load"', '"load"\nheld_out = 0')
    setup = setup_in(tmp_path, config=text)
    assert setup.problem.names == ("north", "south")
    assert setup.columns == ("area", "rooms")
    assert setup.labels is None
    south = setup.problem.agents[1].loss
    assert same(south, LeastSquares([[1, 1], [3, 2], [2, 5]], [2.0, 4.0, 2.0]))


def test_targets_may_have_another_name(tmp_path):
    text = OWN_CONFIG + 'target = "demand"\n'
    setup = setup_in(tmp_path, config=text, south="rooms,demand,area\n1,2,3\n1,2,4\n")
    assert setup.columns == ("area", "rooms")


def test_the_target_of_one_is_no_feature_of_another(tmp_path):
    text = ALL.replace("{l1 = 5}", '{l1 = 5}\ntarget = "other"').replace("softmax", "least-squares")
    rows = "home,area,load,other\nnorth,1,2,3\nnorth,2,3,4\nsouth,5,6,7\nsouth,6,7,8\n"
    setup = setup_in(tmp_path, config=text, all=rows)
    assert setup.columns == ("area",)
    north, south = setup.problem.agents
    assert same(north.loss, LeastSquares([[1], [2]], [3, 4]))
    assert same(south.loss, LeastSquares([[5], [6]], [6, 7]))


def test_a_file_for_all_and_one_for_another(tmp_path):
    text = SHARED_CONFIG + '\n[agents.alps]\nfile = "north.csv"\n'
    setup = setup_in(tmp_path, config=text, north="load,area,rooms\na,1,2\nb,2,3\n")
    assert setup.problem.names == ("north", "south", "alps")


def test_plus_and_minus_are_labels(tmp_path):
    setup = setup_in(tmp_path, all=SHARED.replace(",a", ",+").replace(",b", ",-"))
    assert setup.labels == ("+", "-")


def test_logistic_labels(tmp_path):
    setup = setup_in(tmp_path, config=ALL.replace("softmax", "logistic"))
    assert setup.labels == ("a", "b")
    expected = LogisticRegression([[1, 2], [2, 1], [3, 5]], [0, 1, 0])
    assert same(setup.problem.agents[0].loss, expected)


def test_whole_numbers_are_labels(tmp_path):
    setup = setup_in(tmp_path, all=SHARED.replace(",a", ",10").replace(",b", ",-2.0"))
    assert setup.labels == (-2, 10)


def test_numbers_are_text_where_another_agent_has_text(tmp_path):
    text = OWN_CONFIG.replace("least-squares", "softmax")
    setup = setup_in(tmp_path, config=text, north="a,load\n1,7\n2,8\n", south="a,load\n1,7\n2,x\n")
    assert setup.labels == ("7", "8", "x")


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("10", "9", "007"), ("007", "9", "10")),
        (("b", "a", "10"), ("10", "a", "b")),
        (("9.0", "10.0", "8.0"), ("10.0", "8.0", "9.0")),
    ],
)
def test_the_roster_is_sorted(names, order, tmp_path):
    text = SHARED_CONFIG.partition("[agents")[0]
    rows = "".join(f"{name},{k},2,{'ab'[k]}\n" for name in names for k in range(2))
    setup = setup_in(tmp_path, config=text, all="home,area,rooms,load\n" + rows)
    assert setup.problem.names == order


def test_archives_are_data_too(tmp_path):
    text = SHARED_CONFIG.replace("all.csv", "all.npz").replace('"load"', '"y"')
    text = text.replace("agents.north", "agents.2")
    path = folder_with(tmp_path, config=text)
    np.savez(tmp_path / "all.npz", X=np.eye(4), y=[1, 0, 1, 0], home=[2, 2, 1, 1])
    setup = build_setup(load_config(path))
    assert setup.problem.names == ("1", "2")
    assert setup.columns == ("x0", "x1", "x2", "x3")


def test_options_of_the_model(tmp_path):
    text = ALL.replace("intercept = false", "intercept = true\nl2 = 0.5")
    setup = setup_in(tmp_path, config=text.replace("held_out = 0", 'held_out = 0\ndtype="float32"'))
    loss = setup.problem.agents[0].loss
    assert (loss.intercept, loss.l2, loss.dtype, loss.n) == (True, 0.5, np.float32, 6)


def homes(rows):
    return "home,area,load\n" + "".join(f"{'ns'[i % 2]},{i},{i % 3}\n" for i in range(rows))


def held_out(folder, rows=20, share=0.3, seed=0):
    """The areas that each agent trains on and those that it keeps."""
    text = without_intercept(SHARED_CONFIG).partition("[agents")[0]
    text = text.replace('"softmax"', '"least-squares"')
    text = text.replace('"load"', f'"load"\nheld_out = {share}') + f"[training]\nseed = {seed}\n"
    setup = setup_in(folder, config=text, all=homes(rows))
    losses = [(agent.loss, agent.test) for agent in setup.problem.agents]
    both = [[loss and areas(loss) for loss in pair] for pair in losses]
    assert setup.tests == tuple(len(test or ()) for _, test in both)
    return both


def areas(loss):
    """The values of the only feature, from the gradients of single rows at a zero model."""
    zero = np.zeros(1)
    step = np.ones(1)
    change = [loss.gradient(step, [i]) - loss.gradient(zero, [i]) for i in range(loss.size)]
    return np.sqrt(np.concatenate(change)).round().astype(int).tolist()


def test_held_out_rows(tmp_path):
    (north, north_test), (south, south_test) = held_out(tmp_path)
    assert sorted(north + north_test) == list(range(0, 20, 2))
    assert sorted(south + south_test) == list(range(1, 20, 2))
    assert (len(north_test), len(south_test)) == (3, 3)
    assert north == sorted(north)
    assert [each - 1 for each in south_test] != north_test  # a stream each
    assert held_out(tmp_path) == [[north, north_test], [south, south_test]]
    assert held_out(tmp_path, seed=1) != [[north, north_test], [south, south_test]]


def test_held_out_rows_leave_something_to_train_on(tmp_path):
    assert [len(train) for train, _ in held_out(tmp_path, rows=4, share=0.99)] == [1, 1]
    assert [test for _, test in held_out(tmp_path, rows=4, share=0.2)] == [None, None]


def test_warnings(tmp_path):
    rows = "home,one,area,load\nn,1,2,a\nn,1,3,b\ns,1,5,a\ns,1,7,c\n"
    setup = setup_in(tmp_path, config=SHARED_CONFIG.partition("[agents")[0], all=rows)
    labels, constant = setup.warnings
    assert "some labels occur with one agent only, 'b' (n), 'c' (s); check" in labels
    assert "the same number in all rows contain no information, got 'one'; leave" in constant
    rows = "home,area,load\nn,2,1\nn,3,1\ns,5,1\ns,7,1\n"
    text = SHARED_CONFIG.partition("[agents")[0].replace("softmax", "least-squares")
    (target,) = setup_in(tmp_path, config=text, all=rows).warnings
    assert "the target is 1.0 in all rows" in target


def test_an_agent_alone_has_all_labels_alone(tmp_path):
    text = SHARED_CONFIG.partition("[agents")[0]
    assert setup_in(tmp_path, config=text, all=SHARED.replace("south", "north")).warnings == ()


def test_a_one_without_its_point_is_a_warning(tmp_path):
    batch, agents = setup_in(
        tmp_path, config=SHARED_CONFIG + "[training]\nbatch = 1\nparticipation = 1\n"
    ).warnings
    assert "training.batch = 1 is a single row; write 1.0 for all rows." in batch
    assert "training.participation = 1 is one agent; write 1.0 for all." in agents


def test_the_setup_runs(tmp_path):
    setup = setup_in(tmp_path)
    result = run(setup.problem, setup.algorithm, rounds=30, local_steps=10)
    assert result.status == "finished"
    assert result.history[-1].objective < result.start.objective
    assert np.abs(result.models[0, :4]).sum() <= 5 * (1 + 1e-12)
