"""The connection of a run to a Ray cluster: a running one, or one that is started for the run."""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from pcfed.errors import one_line, short_repr

LOCAL_SETTINGS = {
    "RAY_worker_niceness": "0",  # 15 by default: actors would wait for all other programs
    # Answers and states of more than 100 kB travel in one message.
    "RAY_max_direct_call_object_size": str(2**24),
    "RAY_task_rpc_inlined_bytes_limit": str(2**26),
}
"""Settings of a cluster that is started for a run."""

ADDRESS = re.compile(r"[^/\s]+:(\d{1,5})")
"""The address of a cluster: a host and a port."""

HTTP2_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
"""An empty frame of settings; its fourth byte is its type."""

HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HTTP2_SETTINGS
"""What a client of a cluster begins with; the cluster answers with settings."""


def check_address(address: object) -> None:
    """Raise a ValueError if this is not the address of a cluster.

    Others that Ray accepts are refused: a cluster at ``"local"`` would have no token, and Ray's
    client (``"ray://..."``) has no compiled graphs.
    """
    if address == "auto":
        return
    match = ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None or not 0 < int(match[1]) < 2**16:
        raise ValueError(
            f'Ray: address must be "auto" or HOST:PORT, got {short_repr(address)}; give one such '
            'as "10.0.0.1:6379", or leave it out to start a cluster on this machine.'
        )


def connect(address: str | None) -> bool:
    """Connect to a cluster, by default a new one; return whether this made the connection.

    It did not if this process is connected already; otherwise it must be ended by `disconnect`.
    """
    ray: Any = import_module("ray")
    if ray.is_initialized():
        if ray.util.client.ray.is_connected():
            raise ValueError(
                "Ray: this process must be connected to the cluster itself, got a connection of "
                'Ray\'s client ("ray://..."); call ray.shutdown(), and run on a machine of the '
                "cluster."
            )
        _check_connected(ray.get_runtime_context().gcs_address, address)
        return False
    variables = {
        "RAY_USAGE_STATS_ENABLED": "0",  # it asks the internet
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # it warns without
    }
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        quiet["include_dashboard"] = False
        variables |= LOCAL_SETTINGS
    variables |= {name: os.environ[name] for name in variables.keys() & os.environ.keys()}
    if address is None:
        # Its ports are open to the network, and whoever connects can run code.
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    is_reachable = False
    try:
        if address is not None and address != "auto":
            _check_reachable(address)
            is_reachable = True
        with _environment(variables), _same_sigterm_handler(), _silent_stderr():
            if address is None:
                _read_variables()
            ray.init(address=address or "local", **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        if address is None:
            _read_variables()
        advice = "start one with `ray start --head`, or leave it out to use this machine"
        if is_reachable:  # Ray does not say what was refused
            advice = (
                "if it has a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to it before Python "
                f"starts; {advice}"
            )
        raise ValueError(
            f"Ray: address must be that of a running cluster, got {address!r} "
            f"({one_line(str(error))[:200]}); {advice}."
        ) from None
    return True


def disconnect(address: str | None) -> None:
    """End a connection that was made by `connect`, and the cluster if it was started for it."""
    ray: Any = import_module("ray")
    ray.shutdown()
    if address is None:
        _read_variables()


def _read_variables() -> None:
    """Let Ray's compiled code read the environment again, as if Ray had just been imported."""
    compiled: Any = import_module("ray._raylet")
    compiled.AuthenticationTokenLoader.instance().reset_cache()
    compiled.Config.initialize("")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment in a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _check_connected(connected: str, address: str | None) -> None:
    """Raise a ValueError if this process is connected to a cluster at another address."""
    if address in (None, "auto"):
        return
    if _resolved(str(address)) != _resolved(connected):
        raise ValueError(
            f"Ray: address must be that of the cluster to which this process is connected, "
            f"{connected}, got {address!r}; call ray.shutdown() first, or leave it out."
        )


def _resolved(address: str) -> tuple[str, str]:
    """Return the IP address of a host, and its port."""
    ray: Any = import_module("ray")
    host, _, port = address.rpartition(":")
    with suppress(OSError):
        host = socket.gethostbyname(host)
    return ray.util.get_node_ip_address() if host.startswith("127.") else host, port


def _check_reachable(address: str) -> None:
    """Raise an OSError if no cluster listens at an address: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        if os.environ.get("RAY_USE_TLS") == "1":
            return
        connection.sendall(HTTP2_GREETING)
        if connection.recv(len(HTTP2_SETTINGS))[3:4] != HTTP2_SETTINGS[3:4]:
            raise OSError("something else listens there")


@contextmanager
def _same_sigterm_handler() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Drop what Ray's compiled code logs while it tries to connect; errors are raised as well."""
    shown, dropped = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(dropped, 2)
    try:
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        os.close(dropped)
