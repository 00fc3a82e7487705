"""The reference of all keys of the files, as Markdown that is generated from their models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pcfed.config.json_schema import Schema, file_model, rule_of, schema_of, toml_value


def keys_markdown(file: Literal["train", "server", "agent"]) -> str:
    """Return a table of the keys of a file for each of its tables: type, default and meaning."""
    schema = schema_of(file_model(file))
    sections = [_section(name, table) for name, table in _tables(schema, "")]
    return "\n".join(sections)


def _tables(schema: Schema, name: str) -> Iterator[tuple[str, Schema]]:
    """Yield the tables of a file with their names; the keys outside of all tables come first."""
    keys = schema.get("properties", {})
    plain = {key: value for key, value in keys.items() if not _is_table(value)}
    if plain:
        yield name, {**schema, "properties": plain}
    for key, value in keys.items():
        if _is_table(value):
            inner = f"{name}.{key}" if name else key
            yield from _tables(value, inner)
            if isinstance(each := value.get("additionalProperties"), dict):
                yield from _tables({**each, "description": value["description"]}, f"{inner}.NAME")


def _is_table(schema: Schema) -> bool:
    return schema.get("type") == "object" and "$comment" not in schema


def _section(name: str, schema: Schema) -> str:
    """Return one table of keys as Markdown."""
    lines = [f"### `[{name}]`", "", schema["description"], ""] if name else []
    lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
    required = schema.get("required", ())
    for key, value in schema["properties"].items():
        default = "" if "default" not in value else f"`{toml_value(value['default'])}`"
        cells = (
            f"`{key}`",
            rule_of(value),
            "required" if key in required else default,
            value["description"],
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])
