"""Run ClientApps in forks of a process that has imported them.

For every message, a SuperNode lets the program ``flower-superexec`` start ``flwr-clientapp``, and
that takes seconds, nearly all of them for imports. This program takes the place of
``flower-superexec`` (`pcfed.federation.flower.environment`). It imports everything once, and a fork
of it answers a message, so that every message still has a process of its own.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import numpy as np

from pcfed.extras import MissingExtra
from pcfed.sets import L1Ball

try:
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec import run_superexec
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
    from flwr.supercore.tls import validate_and_resolve_root_certificates
    from flwr.supernode.runtime.run_clientapp import run_clientapp
except ModuleNotFoundError as missing:
    raise MissingExtra(__name__, str(missing.name), "flower") from None


class ForkingExecutor(SubprocessExecutor):
    """Starts ClientApps as forks, and other programs as Flower does."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start what answers one message."""
        if spec.task_type != TaskType.CLIENT_APP:
            return super().launch(spec)
        if os.fork() == 0:
            _answer(spec)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Remove the forks that have ended from the table of processes."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _answer(spec: ExecutionSpec) -> NoReturn:
    """Run the ClientApp on its message, then end the process."""
    code = 1
    try:
        run_clientapp(
            runtime_api_address=spec.runtime_api_address,
            token=spec.token,
            insecure=spec.insecure,
            certificates=validate_and_resolve_root_certificates(
                spec.root_certificates_path, spec.insecure
            ),
            parent_pid=spec.parent_pid,
            runtime_dependency_install=spec.runtime_dependency_install,
        )
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # nobody above sees it
        traceback.print_exc()
    finally:
        # Even on a full disk: the parent's loop and exit handlers are not for the fork.
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def main() -> None:
    """Run Flower's SuperExec with forks."""
    import_module("pcfed.federation.client_app")
    L1Ball(1.0).project(np.ones(2))  # the first compiled function sets up numba, if installed
    # Flower has no option for an executor of one's own.
    vars(run_superexec)["get_executor"] = lambda *arguments, **options: ForkingExecutor()
    flower_superexec()


if __name__ == "__main__":
    main()
