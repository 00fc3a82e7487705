"""The display of a training: bars and distances on a terminal, a table at its end."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys

from rich.console import Console

from pcfed.cli.display import agent_table, certificate, distance_table
from pcfed.training import AgentOutcome, Outcome
from tests.training.folders import OWN_CONFIG, folder_with

CONFIG = OWN_CONFIG.replace("batch = 1.0", "rounds = 20").replace("l1 = 5", "l1 = 0.1")
LINE = [sys.executable, "-m", "pcfed", "train", "train.toml"]


def shown(renderable) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
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


def row(**changes) -> AgentOutcome:
    usual = {
        "agent": "north",
        "constraint": "L1Ball(radius=5.0)",
        "used": 4.98,
        "budget": 5.0,
        "infeasibility": 0.02,
        "distance": 0.3,
        "score": 0.91,
        "average_score": 0.5,
        "local_score": None,
    }
    return AgentOutcome(**{**usual, **changes})


def test_the_table_at_the_end():
    rows = (
        row(),
        row(agent="[red]", constraint="x" * 99, used=None, budget=None, infeasibility=1e-12),
    )
    outcome = Outcome("finished", 9, "accuracy", rows, 0.5, 0.005, 0.01, None)
    text = shown(agent_table(outcome))
    assert "4.98 of 5" in text
    assert "<1e-9" in text
    assert "[red]" in text
    assert "alone" not in text.splitlines()[1]  # no agent has such a score
    assert "own, average, alone: accuracy on held-out rows" in text
    assert certificate(outcome).endswith("at most 0.005 (1 %) above the optimum.")
    open_ended = Outcome("finished", 9, "accuracy", rows, 0.5, None, None, "no bound")
    assert certificate(open_ended) == "No certificate: no bound."


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


def test_without_a_terminal_nothing_is_shown(tmp_path):
    folder_with(tmp_path, config=CONFIG)
    done = subprocess.run(LINE, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stderr == ""
