"""The files of a new server: server.toml, keys, and the configurations of Flower and nginx."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pcfed.config.federation_files import ServerFile
from pcfed.config.fields import check_agent_name
from pcfed.config.json_schema import schema_text, toml_value
from pcfed.config.validation_errors import validate_file
from pcfed.errors import display_path
from pcfed.federation.flower import FLOWER_APP, Connection, program
from pcfed.federation.processes import HOST
from pcfed.federation.server_folder import APP_FILE, ServerFolder
from pcfed.storage.atomic import write_atomically

HOST_NAME = re.compile(r"[A-Za-z0-9._:-]+")

SERVER_FILE = """#:schema ./server.schema.json
#
# The training of this server; agents receive its name, the model and the algorithm. Change what you
# like before the first run: everything is checked, and mistakes are explained. Lines of the form
# "# key = value" are settings that are not needed here: remove the "#" to use them.

training = {training}
roster = {roster}  # names of the agents, or their number: then the first that connect
# center = "free"     # what own models are coupled to: a shared model, or "average", their average
# secure = true       # the server learns sums of updates only; by default with three agents or more

[model]
kind = "least-squares"        # predicts numbers; "logistic" predicts two labels, "softmax" more
features = ["area", "rooms"]  # columns of every agent's data file: numbers
# labels = ["gas", "oil"]     # for "logistic" and "softmax" only
intercept_bound = 1000.0      # larger than all numbers to predict; remove it to predict labels

[algorithm]
name = "PCFedSplit"

[rounds]
rounds = 50
local_steps = 20              # of every agent in a round; a round takes seconds, so use many
minimum = {minimum}                   # a round with fewer updates than this is repeated
deadline = 60.0               # seconds that agents have to answer
# gap = 0.01                  # stop at this certified gap; all owners must agree to certificates
"""

NGINX_FILE = """# Forwards what agents need, /v1/fleet/, to the SuperLink, and refuses the rest:
# whoever reaches the whole port of the SuperLink can run code at all agents. Start it and stop it:
#
#     nginx -p {folder} -c nginx.conf
#     nginx -p {folder} -c nginx.conf -s stop
#
# It needs no root. To use an nginx that runs already, include the part "server" there.

pid logs/nginx.pid;
error_log logs/nginx.log;

events {{}}

http {{
    access_log off;
    client_body_temp_path logs/nginx-body;
    proxy_temp_path logs/nginx-proxy;
    fastcgi_temp_path logs/nginx-fastcgi;
    uwsgi_temp_path logs/nginx-uwsgi;
    scgi_temp_path logs/nginx-scgi;

    server {{
        listen {port} ssl;
        ssl_certificate     "{folder}/keys/server.crt";
        ssl_certificate_key "{folder}/keys/server.key";
        client_max_body_size 0;
        location /v1/fleet/ {{
            proxy_pass https://{host}:{superlink_port};
            proxy_http_version 1.1;
            proxy_ssl_trusted_certificate "{folder}/keys/ca.crt";
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
        }}
        location / {{ return 403; }}
    }}
}}
"""


def write_server(
    folder: Path,
    hosts: Sequence[str],
    *,
    training: str,
    agents: Sequence[str] = (),
    port: int,
    superlink_port: int,
) -> ServerFolder:
    """Write the files and keys of a new server; nothing is overwritten.

    Parameters
    ----------
    folder : Path
        The folder, which only this user may read.
    hosts : sequence of str
        Names or addresses by which agents reach the server.
    training : str
        The name of the training.
    agents : sequence of str
        The roster; by default the first two agents that connect.
    port, superlink_port : int
        The ports of nginx, which agents use, and of the SuperLink, for this machine only.
    """
    from pcfed.federation.keys import make_keys  # needs an optional package

    program("flower-superlink")  # nothing is written where Flower is not installed
    for host in hosts:
        if not HOST_NAME.fullmatch(host):
            raise ValueError(
                f"server init: --host must be a host name or an address, got {host!r}; give one "
                "such as server.example.org, without a port."
            )
    server = ServerFolder(folder)
    roster = [check_agent_name(name) for name in agents]
    address = Connection(f"localhost:{superlink_port}", server.keys / "ca.crt")
    text = SERVER_FILE.format(
        training=toml_value(training),
        roster=toml_value(roster) if roster else 2,
        minimum=len(roster) or 2,
    )
    validate_file(ServerFile, tomllib.loads(text), server.server_file)
    ports = {"port": port, "superlink_port": superlink_port}
    contents = {
        "server.toml": text,
        "server.schema.json": schema_text("server"),
        "nginx.conf": NGINX_FILE.format(folder=server.folder, host=HOST, **ports),
        "flower/config.toml": address.text,
        APP_FILE: FLOWER_APP,
    }
    refuse_existing("server init", server.folder, [*contents, "keys"])
    write_private_folder(server.folder, contents)
    make_keys(server.keys, list(dict.fromkeys([*hosts, "localhost", HOST])), [])
    (server.folder / "logs").mkdir(mode=0o700)
    return server


def refuse_existing(command: str, folder: Path, names: Sequence[str]) -> None:
    """Raise an error if one of the files exists."""
    for name in names:
        if (folder / name).exists():
            raise ValueError(
                f"{command}: {display_path(folder / name)} exists already and is not overwritten; "
                "give another folder, or delete the old one."
            )


def write_private_folder(folder: Path, contents: Mapping[str, str]) -> None:
    """Write files to a folder that only this user may read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name, text in contents.items():
        write_atomically(folder / name, text.encode())
