"""Our messages as Flower's: facts are a ConfigRecord, vectors an ArrayRecord."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from pcfed.federation.protocol import Message

FACTS, VECTORS, KIND = "facts", "vectors", "kind"


def to_records(message: Message, **facts: Any) -> RecordDict:
    """Return a message as records, with more facts beside its own."""
    arrays = {name: Array(vector) for name, vector in message.vectors.items()}
    said = {KIND: message.kind, **message.facts, **facts}
    return RecordDict({FACTS: ConfigRecord(said), VECTORS: ArrayRecord(arrays)})


def from_records(records: RecordDict) -> Message:
    """Return the message in records.

    Raises
    ------
    ValueError
        If there is none in them.
    """
    try:
        said = records.config_records[FACTS].items()
        facts = {key: value for key, value in said if isinstance(value, (str, int, float))}
        arrays = records.array_records[VECTORS].items()
        return Message(str(facts.pop(KIND)), facts, {name: array.numpy() for name, array in arrays})
    except Exception as error:  # bytes from outside: whatever they are
        raise ValueError(f"a message that is none of ours ({type(error).__name__})") from None
