"""The report on a training while it runs: in a real browser, and as the command serves it."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from pcfed.report import live_training
from pcfed.report.live_server import LiveServer
from pcfed.report.live_training import LiveTraining
from pcfed.training import prepare
from pcfed.training.example import write_example
from pcfed.training.saved_run import open_run

COMMAND = [sys.executable, "-m", "pcfed", "train", "train.toml"]


def request(address: str, path: str = "/", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection.request(
        "GET", path, headers={name.replace("_", "-"): headers[name] for name in headers}
    )
    return connection.getresponse()


@pytest.fixture
def served() -> Iterator[tuple[LiveServer, list[int]]]:
    """A server of a page with the text of its version, and a list of versions."""
    versions = [1]
    with LiveServer(lambda: versions[-1], lambda: f"page {versions[-1]}") as server:
        yield server, versions


def test_a_page_is_sent_once_per_version(served: tuple[LiveServer, list[int]]):
    server, versions = served
    first = request(server.address)
    assert (first.status, first.read()) == (200, b"page 1")
    tag = first.headers["ETag"]
    again = request(server.address, If_None_Match=tag)
    assert (again.status, again.read()) == (304, b"")
    versions.append(2)
    changed = request(server.address, If_None_Match=tag)
    assert (changed.status, changed.read()) == (200, b"page 2")


def test_only_this_machine_gets_the_page(served: tuple[LiveServer, list[int]]):
    server, _ = served
    where = urlsplit(server.address)
    assert where.hostname == "127.0.0.1"
    # A name of someone else that resolves to this machine: DNS rebinding.
    for host in ("example.org", f"example.org:{where.port}", "127.0.0.1", ""):
        refused = request(server.address, Host=host)
        assert refused.status == 403, host
        assert b"page" not in refused.read().replace(b"This page is only", b"")
    assert request(server.address, Host=f"localhost:{where.port}").status == 200
    assert request(server.address, "/../../etc/passwd").status == 404
    assert request(server.address, "/config.json").status == 404
    assert b"plotly.js" in request(server.address, "/plotly-basic.min.js").read(200)


def test_a_page_that_cannot_be_read_now_is_asked_for_again():
    def render() -> str:
        raise ValueError("a file is incomplete")

    with LiveServer(lambda: 0, render) as server:
        assert request(server.address).status == 503


class StepByStep:
    """A training in another thread, whose rounds wait for a permit each."""

    def __init__(self, folder: Path, *, rounds: int) -> None:
        config = write_example(folder)[0]
        config.write_text(config.read_text().replace("rounds = 30", f"rounds = {rounds}"))
        self.trainer = prepare(config, folder / "run")
        self.page = LiveTraining(self.trainer)
        self._permits = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        result = self.trainer.run(
            workers=1,
            callbacks=[self.page.show_round, lambda evaluation: self._permits.acquire(timeout=60)],
            on_alone=self.page.show_alone,
        )
        self.page.end(result.message)

    def do(self, rounds: int) -> None:
        for _ in range(rounds):
            self._permits.release()

    def join(self) -> None:
        self._thread.join()


def test_the_page_shows_more_rounds_without_a_reload(browser: Browser, tmp_path: Path):
    training = StepByStep(tmp_path, rounds=20)
    with training.page.server() as server:
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        problems: list[str] = []
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        training.do(2)
        tab.goto(server.address)
        tab.evaluate("window.same = true")
        expect(tab.locator(".live")).to_have_text("The training runs: 3 of 20 rounds are done.")
        points = "document.querySelector('#run-overall-0-0').data[0].x.length"
        tab.wait_for_function(f"() => {points} === 3")
        tab.get_by_role("button", name="market").click()
        tab.locator("#run-settings").scroll_into_view_if_needed()
        tab.get_by_text("All settings, with defaults").click()
        place = "document.querySelector('#run-settings').getBoundingClientRect().top"
        before = tab.evaluate(place)
        training.do(4)
        expect(tab.locator(".live")).to_have_text("The training runs: 7 of 20 rounds are done.")
        tab.wait_for_function(f"() => {points} === 7")
        assert tab.evaluate(place) == pytest.approx(before, abs=2), "the view stays"
        assert tab.locator("#run-settings details").first.get_attribute("open") is not None
        assert tab.get_by_role("button", name="market").get_attribute("aria-pressed") == "false"
        assert tab.locator("#run-verdict").count() == 0
        training.do(14)
        training.join()
        expect(tab.locator(".live")).to_have_text("The training has ended. 20 rounds done.")
        expect(tab.locator("#run-verdict h2")).to_have_text("Verdict")
        tab.wait_for_function("() => document.querySelectorAll('.main-svg').length >= 20")
        assert tab.evaluate(place) == pytest.approx(before, abs=2), "also below new sections"
        assert tab.evaluate("window.same"), "the page was not loaded again"
        assert problems == []
        tab.close()


def test_a_training_that_ends_while_its_page_is_rendered(tmp_path: Path, monkeypatch):
    """The page must not say that it has ended without the results: browsers would stop there."""
    trainer = prepare(write_example(tmp_path)[0], tmp_path / "run")
    trainer.run(workers=1)
    page = LiveTraining(trainer)

    def open_and_end(path: Path):
        page.end("30 rounds done.")
        return open_run(path)

    monkeypatch.setattr(live_training, "open_run", open_and_end)
    during, after = page.render(), page.render()
    assert 'data-live="running"' in during
    assert "The training has ended" not in during
    assert 'data-live="ended"' in after
    assert 'id="run-verdict"' in after


def test_a_page_says_that_its_command_has_ended(browser: Browser, tmp_path: Path):
    training = StepByStep(tmp_path, rounds=3)
    tab = browser.new_page()
    with training.page.server() as server:
        tab.goto(server.address)
    expect(tab.locator(".live")).to_contain_text("this page is not updated any more")
    training.do(3)
    training.join()
    tab.close()


def started(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start a live training, and return its process and its address."""
    environment = {**os.environ, "COLUMNS": "200"}
    process = subprocess.Popen(
        [*COMMAND, "--live", *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
    assert found is not None
    return process, found[0]


def test_the_command_ends_with_ctrl_c_and_the_models_are_the_same(tmp_path: Path):
    write_example(tmp_path)
    process, address = started(tmp_path, "--out", "live")
    assert process.stdout is not None
    for line in process.stdout:
        if "until you press Ctrl-C" in line:
            break
    page = request(address).read().decode()
    assert "The training has ended. 30 rounds done." in page
    assert "Projected onto their sets" in page
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (0, False)
    subprocess.run([*COMMAND, "--out", "plain"], cwd=tmp_path, check=True, capture_output=True)
    for name in ("models.npz", "outcome.json", "config.json"):
        assert (tmp_path / "live" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_ctrl_c_during_the_rounds_stops_the_training(tmp_path: Path):
    write_example(tmp_path)
    process, address = started(tmp_path, "--set", "training.rounds=1000000")
    while b"The training runs" not in request(address).read():
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "all are saved. Resume with" in errors
    assert "Traceback" not in errors
