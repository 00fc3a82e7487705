"""Agents on different machines: the algorithms of the simulator over messages.

`Client` (an agent) and `Server` do not depend on what carries the messages: any `Transport` will
do. Messages may be lost, late or repeated, and either side may die at any time.
"""

from pcfed.extras import MissingExtra

try:
    from pcfed.federation.client import Client
    from pcfed.federation.protocol import Message, Transport
    from pcfed.federation.server import Server
    from pcfed.federation.server_state import ServerConfig
except ModuleNotFoundError as missing:
    raise MissingExtra(__name__, str(missing.name), "flower") from None

__all__ = ["Client", "Message", "Server", "ServerConfig", "Transport"]
