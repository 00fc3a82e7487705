"""``pcfed federation server`` and ``agent``: a federation of several machines."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pcfed.cli.app import errors, examples, print_error, say
from pcfed.cli.federation import ServerOverrides, federation_app, run_training
from pcfed.errors import one_line
from pcfed.federation.agent_folder import AgentFolder
from pcfed.federation.server_folder import ServerFolder
from pcfed.federation.server_setup import write_server
from pcfed.storage.reading import read_file

server_app = typer.Typer(help="The server of a federation of several machines.")
agent_app = typer.Typer(help="One agent of a federation of several machines.")
federation_app.add_typer(server_app, name="server", no_args_is_help=True)
federation_app.add_typer(agent_app, name="agent", no_args_is_help=True)

SERVER_FOLDER, AGENT_FOLDER = Path("server"), Path("agent")
ServerOption = Annotated[Path, typer.Option("--folder", help="Folder of the server.")]
AgentOption = Annotated[Path, typer.Option("--folder", help="Folder of the agent.")]


@server_app.command(
    "init",
    epilog=examples(
        "pcfed federation server init --host server.example.org --agents north,south",
        "pcfed federation server init --host 10.0.0.1 --training heating --folder heat",
    ),
)
def init_server(
    host: Annotated[
        list[str],
        typer.Option(help="Host name or address by which agents reach the server; repeatable."),
    ],
    training: Annotated[str, typer.Option(help="Name of the training.")] = "training",
    agents: Annotated[
        str, typer.Option(help="Names of the agents, with commas; by default the first two.")
    ] = "",
    folder: ServerOption = SERVER_FOLDER,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port that agents reach, of nginx.")
    ] = 8443,
    superlink_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the SuperLink, on this machine only.")
    ] = 8000,
) -> None:
    """Write server.toml, keys, and configurations of Flower and nginx; overwrites nothing."""
    names = [name.strip() for name in agents.split(",") if name.strip()]
    ports = {"port": port, "superlink_port": superlink_port}
    server = write_server(folder, host, training=training, agents=names, **ports)
    option = "" if folder == SERVER_FOLDER else f" --folder {shlex.quote(str(folder))}"
    say(f"Wrote the files of the server to {folder}. Next:")
    say(f"1. Describe the training in {folder / 'server.toml'}.")
    say(f"2. Send {folder / 'keys' / 'ca.crt'} to every agent, over a channel that it trusts.")
    say(f"   Each runs: pcfed federation agent init --name NAME --server {host[0]}:{port} --ca …")
    say(f"3. Copy the agents' .pub files to {folder / 'keys'}.")
    say(f"4. pcfed federation server start{option}   # writes roster.toml; send it to the agents")
    say(f"5. {_gate_command(server)}   # opens port {port} for agents only")
    say(f"6. pcfed federation server run{option}")


@server_app.command("start", epilog=examples("pcfed federation server start --folder heating"))
def start_server(folder: ServerOption = SERVER_FOLDER) -> None:
    """Start the SuperLink in the background, and register the agents' keys in the folder keys.

    Rerun it to register more keys. pcfed federation status and down take the same --folder.
    """
    server = ServerFolder(folder)
    with errors.status("starting …"):
        new_keys = server.start()
    if not list(server.keys.glob("*.pub")):
        say(f"There are no keys of agents in {folder / 'keys'} yet: copy their .pub files there.")
    say(
        f"The SuperLink runs, on this machine only. New keys: {', '.join(new_keys) or 'none'}. "
        "Rerun the command to register more."
    )
    say(f"Open the port for agents, unless it is open: {_gate_command(server)}")
    if shutil.which("nginx") is None:
        say("nginx is not installed here; install it, or use nginx.conf with another one.")


@server_app.command(
    "run",
    epilog=examples(
        "pcfed federation server run", "pcfed federation server run --set rounds.rounds=100"
    ),
)
def run_server(folder: ServerOption = SERVER_FOLDER, overrides: ServerOverrides = None) -> None:
    """Train as server.toml says; rerun the command to resume, or to reach agents that were offline.

    Audits and the status: pcfed federation audit and status, with the same --folder.
    """
    run_training(ServerFolder(folder, overrides or ()), folder, "server start")


@agent_app.command(
    "init",
    epilog=examples(
        "pcfed federation agent init --name north --server 10.0.0.1:8443 --ca ca.crt",
    ),
)
def init_agent(
    name: Annotated[str, typer.Option(help="The agent's name in the server's roster.")],
    server: Annotated[str, typer.Option(help="Host and port of the server.")],
    ca: Annotated[Path, typer.Option(help="The server's certificate authority, its ca.crt.")],
    file: Annotated[
        Path | None, typer.Option(help="The data file; by default NAME.csv in the folder.")
    ] = None,
    target: Annotated[str, typer.Option(help="The column to predict.")] = "target",
    constraint: Annotated[
        str, typer.Option(help="The set of the coefficients, such as 'l1(1.5)'.")
    ] = "whole_space",
    roster: Annotated[
        Path | None,
        typer.Option(help="The federation's roster.toml, to know the others' keys; it is copied."),
    ] = None,
    folder: AgentOption = AGENT_FOLDER,
) -> None:
    """Write agent.toml and a new key; overwrites nothing."""
    agent = AgentFolder(folder)
    public = agent.write(
        name, server, ca, file=file, target=target, constraint=constraint, roster=roster
    )
    option = "" if folder == AGENT_FOLDER else f" --folder {shlex.quote(str(folder))}"
    say(f"Wrote the files of {name} to {folder}. Next:")
    say(f"The fingerprint of its key is {key_fingerprint(public)}.")
    say(f"1. Send {folder / public.name} to the server. {public.stem} must not leave this machine.")
    say(f"2. Check the data, the target and the constraint in {folder / 'agent.toml'}.")
    say(f"3. pcfed federation agent start{option}")
    if roster is None:
        say(
            f"To be safe from a server that lies, too, get roster.toml of all agents from somebody "
            f"whom you trust, compare fingerprints, and copy it to {folder}."
        )


@agent_app.command("start", epilog=examples("pcfed federation agent start --folder north"))
def start_agent(folder: AgentOption = AGENT_FOLDER) -> None:
    """Take part in the trainings of the server until Ctrl-C.

    Messages on errors are in the log, which the server does not see.
    """
    # A service manager stops the command with SIGTERM; it must not leave a SuperNode behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    agent = AgentFolder(folder)
    agent.command()  # refuses missing files before anything is said
    say(f"{agent.name} connects to the server. Its log: {agent.log}. Stop it with Ctrl-C.")
    try:
        agent.run(partial(_show_line, agent.name))
    except KeyboardInterrupt:
        say("Stopped.")
        return
    print_error(f"The SuperNode has ended; its log {agent.log} says why.")
    raise typer.Exit(1)


def key_fingerprint(path: Path) -> str:
    """Return the fingerprint of the public key in a file."""
    from pcfed.federation.identity import MAX_KEY_BYTES, fingerprint  # needs an optional package

    return fingerprint(read_file(path, MAX_KEY_BYTES).decode())


def _show_line(name: str, line: str) -> None:
    """Show what the owner should see at once: the connection, and errors."""
    # A line may repeat what a server sent: nothing in it may control the terminal.
    line = one_line(re.sub("\x1b\\[[0-9;]*m", "", line))
    if "SuperNode ID" in line:
        say(f"{name} is connected.")
    elif line.startswith(f"{name}: ") or "ERROR" in line[:12] or "Exit Code" in line:
        errors.print(line, markup=False, highlight=False, soft_wrap=True)


def _gate_command(server: ServerFolder) -> str:
    """Return the command that starts nginx with the configuration of a server."""
    return shlex.join(["nginx", "-p", str(server.folder), "-c", "nginx.conf"])
