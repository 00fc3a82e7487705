"""A fault in a ClientApp: Python runs this file at its start if a test puts it on the path.

``$FAULT/fault.json`` names the agent, the place and the round. The place is one while it computes
or writes its state, or it is that before or after it has handled a message of a kind, such as
"before confirm". The first ClientApp that gets there creates ``reached`` and dies, or waits for
``go``. One that waits before it writes its state
survives the death of its SuperNode, and creates ``written`` when it has written its state. With
``$FAULT/no-masks``, all masks of secure sums are zero, at the agents and at the server.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def install(folder: Path, agent: str, where: str, index: int, wait: bool) -> None:
    from flwr.supernode.runtime import run_clientapp

    from pcfed import PCFedSplit
    from pcfed.federation.client import Client
    from pcfed.federation.client_state import ClientState

    save, local = ClientState.save, PCFedSplit.local

    def fault(whose: str, place: str, now: object) -> bool:
        """Die or wait if the fault is here; return whether it was."""
        if (whose, place, now) != (agent, where, index) or (folder / "reached").exists():
            return False
        (folder / "reached").touch()
        while wait and not (folder / "go").exists():
            time.sleep(0.05)
        if not wait:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    def faulty_local(self, context, server, private, round_info):
        fault(context.agents[0].name, "computing", round_info.index)
        return local(self, context, server, private, round_info)

    def faulty_save(self, path):
        whose = path.parent.name.partition(".")[0]
        index = None if self.pending is None else self.pending.round_info.index
        waited = fault(whose, "before", index)
        save(self, path)
        if waited:
            (folder / "written").touch()
        fault(whose, "after", index)

    handle = Client.handle

    def faulty_handle(self, message):
        now = message.metadata.get("round")
        fault(self.name, f"before {message.kind}", now)
        reply = handle(self, message)
        fault(self.name, f"after {message.kind}", now)
        return reply

    PCFedSplit.local, ClientState.save = faulty_local, faulty_save
    Client.handle = faulty_handle
    if wait and where == "before":
        run_clientapp.start_parent_process_monitor = lambda pid: None


def install_planted() -> None:
    """Install the fault that a test has planted, if there is one."""
    home = Path(os.environ.get("FAULT", "nowhere"))
    if (home / "no-masks").exists():
        import numpy as np

        from pcfed.federation import masking

        masking._expanded = lambda key, size: np.zeros(size, np.uint64)
    if (home / "fault.json").exists():
        install(home, **json.loads((home / "fault.json").read_text()))
    if (home / "chaos.json").exists():
        import chaos

        chaos.install(home)


# Every message is answered by a fork of this process.
if "pcfed.federation.app_runner" in sys.orig_argv:
    os.register_at_fork(after_in_child=install_planted)
if any("flwr-serverapp" in each for each in sys.orig_argv):
    install_planted()
