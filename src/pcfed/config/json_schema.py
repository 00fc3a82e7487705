"""The JSON schemas of the files, with which editors complete and check TOML files.

The schema of a key also states the rule that error messages and the reference of all keys show.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from pcfed.config.fields import MAX_INTEGER

Schema = dict[str, Any]
FileKind = Literal["train", "server", "agent"]
"""A file: train.toml, server.toml or agent.toml."""


class _TomlSchema(GenerateJsonSchema):
    """TOML has no null, and the defaults of a table are those of its keys."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        found = super().default_schema(schema)
        if found.get("default") is None or isinstance(found["default"], dict):
            found.pop("default", None)
        return found


def schema_of(model: type[BaseModel]) -> Schema:
    """Return the JSON schema of a file or a table, without references."""
    schema = model.model_json_schema(schema_generator=_TomlSchema)
    inlined: Schema = _inlined(schema, schema.pop("$defs", {}))
    return inlined


def _inlined(schema: Any, definitions: Mapping[str, Schema]) -> Any:
    """Return a schema with the definitions in place of the references to them."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    if isinstance(text := schema.get("description"), str):
        schema["description"] = " ".join(text.split())  # without the line breaks of the source
    return {
        key: _inlined(value, definitions)
        for key, value in schema.items()
        if isinstance(value, dict) or key != "title"
    }


def file_model(kind: FileKind) -> type[BaseModel]:
    """Return the model of a file."""
    from pcfed.config.federation_files import AgentFile, ServerFile
    from pcfed.config.train_file import TrainFile

    models: dict[str, Any] = {"train": TrainFile, "server": ServerFile, "agent": AgentFile}
    model: type[BaseModel] = models[kind]
    return model


def schema_text(kind: FileKind) -> str:
    """Return the JSON schema of a file as JSON."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"pcfed: {kind}.toml",
        **schema_of(file_model(kind)),
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def rule_of(schema: Schema) -> str:
    """Return what a value must be, such as ``"an integer ≥ 1"``.

    Examples
    --------
    >>> rule_of({"type": "number", "minimum": 0, "exclusiveMaximum": 1})
    'a number in [0, 1)'
    """
    if "$comment" in schema:
        return str(schema["$comment"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    kinds = {
        "boolean": "true or false",
        "string": "a non-empty string",
        "integer": "an integer",
        "number": "a number",
        "object": "a table",
    }
    return kinds.get(schema.get("type", ""), "a value") + _bounds(schema)


def _bounds(schema: Schema) -> str:
    """Return the limits of a number, if there are any."""
    lower, above, below = (
        schema.get(key) for key in ("minimum", "exclusiveMinimum", "exclusiveMaximum")
    )
    if below is not None and lower is not None:
        return f" in [{lower:g}, {below:g})"
    if below is not None and above is not None:
        return f" in ({above:g}, {below:g})"
    upper = schema.get("maximum")
    if schema.get("type") == "integer" and lower is not None and upper not in (None, MAX_INTEGER):
        return f" from {lower:,} to {upper:,}"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    limits = [(sign, schema.get(key)) for key, sign in signs.items()]
    return "".join(
        f" {sign} {limit:g}" for sign, limit in limits if limit not in (None, MAX_INTEGER)
    )


def toml_value(value: object) -> str:
    """Return a value as TOML writes it.

    Examples
    --------
    >>> toml_value(["a", 1, True])
    '["a", 1, true]'
    """
    return json.dumps(value, ensure_ascii=False)


# -- the reference of all keys, as Markdown -------------------------------------------------------


def keys_markdown(file: FileKind) -> str:
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
