"""ClientApps in forks: one process per message, reaped, whatever its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec

from pcfed.federation import app_runner
from pcfed.federation.app_runner import ForkingExecutor
from pcfed.federation.flower import environment


def spec(task_type=TaskType.CLIENT_APP) -> ExecutionSpec:
    return ExecutionSpec(
        task_type=task_type,
        runtime_api_address="127.0.0.1:9",
        token="t",
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=os.getpid(),
        suppress_output=True,
        task_id=1,
    )


@pytest.mark.parametrize(
    ("end", "status"), [(SystemExit(0), 0), (SystemExit(3), 3), (ValueError("no"), 1)]
)
def test_a_message_has_a_process_of_its_own(end, status, tmp_path, monkeypatch):
    def run_clientapp(**options):
        (tmp_path / "token").write_text(options["token"])
        (tmp_path / "pid").write_text(str(os.getpid()))
        raise end

    ended = []
    waitpid = os.waitpid

    def recorded(pid, options):
        found = waitpid(pid, options)
        ended.append(found)
        return found

    monkeypatch.setattr(app_runner, "run_clientapp", run_clientapp)
    monkeypatch.setattr(os, "waitpid", recorded)
    executor = ForkingExecutor()
    assert executor.launch(spec()).status == "accepted"
    until = time.monotonic() + 30
    while not any(pid for pid, _ in ended):
        executor.reconcile()
        assert time.monotonic() < until
    (child,) = [(pid, os.waitstatus_to_exitcode(code)) for pid, code in ended if pid]
    assert child == (int((tmp_path / "pid").read_text()), status)
    assert child[0] != os.getpid()
    assert (tmp_path / "token").read_text() == "t"
    executor.reconcile()  # no child is left


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")
def test_a_fork_ends_even_if_its_output_can_not_be_written(monkeypatch):
    """Otherwise it would go on in the loop of the parent, and answer other messages."""

    def run_clientapp(**options):
        sys.stdout = open("/dev/full", "w")  # noqa: SIM115 - the process ends
        sys.stdout.write("a line")
        raise SystemExit(3)

    monkeypatch.setattr(app_runner, "run_clientapp", run_clientapp)
    parent = os.getpid()
    try:
        ForkingExecutor().launch(spec())
    finally:
        if os.getpid() != parent:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 3


def test_other_programs_start_as_flower_starts_them(monkeypatch):
    launched = []
    monkeypatch.setattr(SubprocessExecutor, "launch", lambda self, spec: launched.append(spec))
    other = spec(TaskType.SERVER_APP)
    ForkingExecutor().launch(other)
    assert launched == [other]


def test_supernodes_find_this_program_in_place_of_flowers(tmp_path, monkeypatch):
    variables = environment(tmp_path / "it's a folder")
    path = shutil.which("flower-superexec", path=variables["PATH"])
    assert path == str(tmp_path / "it's a folder" / "flower" / "programs" / "flower-superexec")
    done = subprocess.run(
        ["flower-superexec", "--version"],
        env=variables,
        executable=path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Flower version")
    assert os.stat(path).st_mode & 0o077 == 0
    monkeypatch.setattr("pcfed.federation.flower.sys.platform", "darwin")
    assert "programs" not in environment(tmp_path / "other")["PATH"]
