"""Agents on different machines: the algorithms of the simulator over messages.

What an agent (`Node`) and the server (`Coordinator`) do does not depend on what carries the
messages; only that a message may be lost, late or repeated, and that either side may die.
"""

from pcfed.flower.coordinator import Coordinator, Terms, Transport
from pcfed.flower.messages import Message
from pcfed.flower.node import Node

__all__ = ["Coordinator", "Message", "Node", "Terms", "Transport"]
