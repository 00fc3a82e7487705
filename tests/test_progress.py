"""Progress in a file or a pipe: a line now and then."""

from __future__ import annotations

import io

from rich.console import Console

from pcfed.cli.progress import ProgressBar


def lines_of(seconds):
    text = io.StringIO()
    with ProgressBar(Console(file=text, width=40), seconds) as bar:
        task = bar.add_task("starting", total=2000)
        for done in (500, 1000, 1500):
            bar.update(task, completed=done, description=f"loss {1 / done:.2g} of [north]")
    return text.getvalue().splitlines()


def test_lines_in_a_file():
    lines = lines_of(0.0)
    assert [line.partition(", about")[0] for line in lines] == [
        "500 of 2,000 rounds, loss 0.002 of [north]",
        "1,000 of 2,000 rounds, loss 0.001 of [north]",
        "1,500 of 2,000 rounds, loss 0.00067 of [north]",
    ]
    assert lines[-1].endswith(" left")


def test_not_more_lines_than_one_in_ten_seconds():
    assert lines_of(10.0) == []


def test_no_lines_on_a_terminal():
    text = io.StringIO()
    with ProgressBar(Console(file=text, force_terminal=True), 0.0) as bar:
        bar.update(bar.add_task("starting", total=2), completed=1)
    assert "1/2" in text.getvalue()
    assert "1 of 2" not in text.getvalue()
