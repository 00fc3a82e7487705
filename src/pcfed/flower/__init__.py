"""Agents on different machines: the algorithms of the simulator over messages.

What an agent (`Node`) and the server (`Coordinator`) do does not depend on what carries the
messages; only that a message may be lost, late or repeated, and that either side may die.
"""

from pcfed.flower.coordinator import Coordinator
from pcfed.flower.messages import Message
from pcfed.flower.node import Node
from pcfed.flower.terms import Terms, Transport

__all__ = ["Coordinator", "Message", "Node", "Terms", "Transport"]
