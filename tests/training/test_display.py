"""The display of a training: bars and distances on a terminal, a table at its end."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace

from rich.console import Console

from pcfed.cli.display import Display, agent_table, certificate, distance_table, verdicts
from pcfed.training import AgentOutcome, Comparison, LimitUsage, Outcome, prepare
from tests.training.folders import OWN_CONFIG, folder_with

CONFIG = OWN_CONFIG.replace("batch = 1.0", "rounds = 20").replace("l1 = 5", "l1 = 0.1")
LINE = [sys.executable, "-m", "pcfed", "train", "train.toml"]


def shown(renderable, width=100) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(renderable)
    return console.export_text()


def test_few_agents_are_all_shown_in_their_order():
    text = shown(distance_table(["north", "south", "[b]west"], [1e-9, 0.25, 0.0]))
    seen = " ".join(text.split())
    assert seen == "north inside its set south 0.25 outside its set [b]west inside its set"


def test_with_many_agents_the_worst_are_shown():
    far = [0.0] * 90 + [0.01 * k for k in range(1, 11)]
    lines = shown(distance_table([f"agent {i}" for i in range(100)], far)).strip().splitlines()
    assert [line.split()[:3] for line in lines[:5]] == [
        ["agent", str(99 - k), f"{0.1 - 0.01 * k:.2g}"] for k in range(5)
    ]
    assert lines[5].strip() == "90 of 100 agents inside their sets"


UNCLEAR = Comparison("unclear", -0.004, -0.02, 0.013, 80, "no clear difference from training alone")
WORSE = Comparison("worse", -0.04, -0.068, -0.012, 80, "worse than training alone by 4.0 points")


def row(**changes) -> AgentOutcome:
    usual = {
        "agent": "north",
        "constraint": "l1(5)",
        "usage": LimitUsage("uses 4.98 of 5 (l1 norm)", False, 0.996, 0.0, None),
        "infeasibility": 0.0,
        "distance": 0.3,
        "held_out": 80,
        "score": 0.91,
        "average_score": 0.5,
        "local_score": None,
        "against_alone": UNCLEAR,
        "against_average": None,
    }
    return AgentOutcome(**{**usual, **changes})


def outcome_of(*rows, **changes) -> Outcome:
    return replace(Outcome("finished", 9, "accuracy", rows, 0.5, 0.005, 0.01, None), **changes)


def test_the_table_at_the_end():
    bound = LimitUsage("3 of 6 coefficients at a bound", True, 0.5, 1e-12, "one more unit")
    outcome = outcome_of(row(), row(agent="[red]", usage=bound), row(agent="old", usage=None))
    text = shown(agent_table(outcome))
    assert "uses 4.98 of 5 (l1 norm)" in text
    assert "3 of 6 coefficients at a bound" in text
    assert "<1e-9" in text
    assert "[red]" in text
    assert "l1(5)" in text  # of the agent without a usage
    assert "alone" not in text.splitlines()[1]  # no agent has such a score
    assert "own, shared, alone: accuracy on held-out rows" in text
    assert "gain: decrease of the objective per unit that a limit is relaxed" in text
    assert certificate(outcome).endswith("at most 0.005 (1 %) above the optimum.")
    open_ended = outcome_of(row(), gap=None, relative_gap=None, reason="no bound")
    assert certificate(open_ended) == "No certificate: no bound."


def test_the_table_fits_into_80_columns():
    long = LimitUsage("encoder.layers.0.weight: uses 4.98 of 5 (group l1 norm)", True, 1.0, 0.0123)
    rows = [row(agent="a" * 60, usage=long, local_score=0.8), row(local_score=0.9)]
    lines = shown(agent_table(outcome_of(*rows)), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    for cell in ("a" * 23 + "…", "encoder.layers", "0.0123", "0.91", "0.5", "0.8"):
        assert cell in text


def test_the_verdict_on_every_agent():
    lines = verdicts(outcome_of(row(), row(agent="south", against_alone=WORSE)))
    assert lines == [
        "north: no clear difference from training alone.",
        "south: worse than training alone by 4.0 points.",
    ]
    moved = verdicts(outcome_of(row(against_alone=None, infeasibility=0.258), row(agent="south")))
    assert moved == [
        "south: no clear difference from training alone.",
        "1 of 2 models were outside their limits and have been projected, north by 0.258.",
    ]


def test_of_many_agents_only_clear_verdicts_are_shown():
    many = [row(agent=f"agent {i}") for i in range(40)]
    lines = verdicts(outcome_of(*many, row(agent="last", against_alone=WORSE)))
    assert lines == [
        "last: worse than training alone by 4.0 points.",
        "40 more agents: no clear difference; pcfed report shows all of them.",
    ]
    bad = [row(agent=f"agent {i}", against_alone=WORSE) for i in range(40)]
    *shown_lines, rest = verdicts(outcome_of(*bad))
    assert len(shown_lines) == 10
    assert rest.startswith("30 more agents: 30 with a clear difference;")


def test_a_terminal_shows_the_loss_the_time_left_and_agents_outside_their_sets(tmp_path):
    folder_with(tmp_path, config=CONFIG.replace("rounds = 20", "rounds = 400"))
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(
        LINE, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert process.returncode == 0, text
    assert re.search(r"400/400 rounds 0:00:00 loss \d", text)
    assert re.search(r"north +(inside|\S+ outside) its set", text)
    assert "every agent alone, for comparison" in text


def test_the_certified_gap_is_shown_where_the_training_stops_at_one(tmp_path):
    config = CONFIG.replace("rounds = 20", "rounds = 20\ngap = 1e-12")
    trainer = prepare(folder_with(tmp_path, config=config), tmp_path / "run")
    display = Display(20, trainer.setup.problem.names, trainer.stop)
    texts = []

    def show(evaluation):
        display.show_round(evaluation)
        texts.append(display.tasks[1].description)

    trainer.run(callbacks=[show])
    assert "gap" not in texts[0]  # it is computed after the callbacks of a round
    assert re.search(r", gap \S+ %$", texts[-1])


def test_without_a_terminal_nothing_is_shown(tmp_path):
    folder_with(tmp_path, config=CONFIG)
    done = subprocess.run(LINE, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stderr == ""
