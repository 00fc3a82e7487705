"""Agents on different machines: the algorithms of the simulator over messages.

What an agent (`Node`) and the server (`Server`) do does not depend on what carries the
messages; only that a message may be lost, late or repeated, and that either side may die.
"""

from pcfed.federation.client import Node
from pcfed.federation.protocol import Message
from pcfed.federation.server import Server
from pcfed.federation.server_config import Terms, Transport

__all__ = ["Message", "Node", "Server", "Terms", "Transport"]
