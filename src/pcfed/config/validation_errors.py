"""Errors in files: each is one sentence with the key, the rule, the value and a remedy.

pydantic finds all errors of a file at once; here they are translated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pcfed.config.fields import FileModel, KeyErrors
from pcfed.config.json_schema import Schema, rule_of, schema_of, toml_value
from pcfed.config.overrides import Override, apply_overrides
from pcfed.data.readers import decode_text, read_bytes
from pcfed.errors import did_you_mean, display_path, one_line, short_repr
from pcfed.storage.reading import parse_toml

MAX_BYTES = 2**26
"""Bytes of a TOML file at most."""

MAX_ERRORS = 20
"""Errors of a file that are shown at most."""

Model = TypeVar("Model", bound=FileModel)


class ConfigError(ValueError):
    """A file with errors: one sentence each in ``sentences``, one line each in the message."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.sentences = tuple(one_line(sentence) for sentence in sentences)
        super().__init__("\n".join(self.sentences))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file, or raise a `ValueError` of one sentence with the line."""
    where = display_path(path)
    text = decode_text(where, read_bytes(where, path, MAX_BYTES))
    try:
        return parse_toml(text)
    except ValueError as error:
        reason = short_repr(str(error), 150).strip("'\"")
        raise ConfigError(
            [f"{where}: the file must be TOML, got {reason}; correct it there."]
        ) from None
    except MemoryError:
        raise ConfigError(
            [f"{where}: the file must fit into memory, got one that does not; make it smaller."]
        ) from None


def validate_file(
    model: type[Model],
    table: Mapping[str, Any],
    path: Path,
    overrides: Sequence[Override] = (),
) -> Model:
    """Return a file as its model, or raise a `ConfigError` with one sentence per error.

    Values of ``overrides`` replace those of the file; errors that they cause name them.
    """
    try:
        return model.model_validate(apply_overrides(table, overrides))
    except ValidationError as error:
        errors = explain(error, model)
    where = display_path(path)
    found = []
    for place, text in errors:
        causes = _causes((place, text), model, table, overrides) if overrides else ()
        options = " ".join(each.option for each in causes)
        found.append(f"{where}{' with ' if options else ''}{options}: {place or 'the file'} {text}")
    if len(found) > MAX_ERRORS:
        found[MAX_ERRORS:] = [f"{where}: there are more errors; correct these first."]
    raise ConfigError(found)


def _causes(
    error: tuple[str, str],
    model: type[FileModel],
    table: Mapping[str, Any],
    overrides: Sequence[Override],
) -> Sequence[Override]:
    """Return the overrides without which there is no such error; none if the file has it."""

    def has_error(some: Sequence[Override]) -> bool:
        try:
            model.model_validate(apply_overrides(table, some))
        except ValidationError as failure:
            return error in explain(failure, model)
        return False

    if has_error(()):
        return ()
    found = [
        each
        for each in overrides
        if not has_error([other for other in overrides if other is not each])
    ]
    # Nothing is found if the error remains without any single one, so all may be the cause.
    return found or overrides


def explain(error: ValidationError, model: type[FileModel]) -> list[tuple[str, str]]:
    """Return the errors of a table: the dotted place of each key, and the rest of its sentence.

    Not all errors are explained if there are more than ``MAX_ERRORS``: a file may have millions.
    """
    schema = schema_of(model)
    found: dict[tuple[str, str], None] = {}  # without duplicates, in order
    for each in error.errors(include_url=False):
        if len(found) > MAX_ERRORS:
            break
        found.update(dict.fromkeys(_explain_one(each, schema)))
    return list(found)


def _explain_one(error: Mapping[str, Any], schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield what one error of pydantic says; a check of several keys may find several errors."""
    parts = [str(part) for part in error["loc"] if part != "[key]"]
    cause = error.get("ctx", {}).get("error")
    if error["type"] == "extra_forbidden":
        keys, table = _descend(schema, parts[:-1])
        valid = table.get("properties", {})
        yield (
            dotted(keys),
            f"has no key {short_repr(parts[-1], 40)}; "
            + suggest(parts[-1], valid, f"valid keys are {', '.join(valid)}."),
        )
    elif isinstance(cause, KeyErrors):
        keys, _ = _descend(schema, parts)
        for key, text in cause.errors:
            place = ".".join(filter(None, (dotted(keys), key)))
            yield place, text
    elif cause is not None:
        keys, _ = _descend(schema, parts[:-1] if error["loc"][-1] == "[key]" else parts)
        text = str(cause)  # of Python itself, perhaps, whose messages have no full stop
        yield f"{dotted(keys)}:", text if text.endswith((".", "?")) else f"{text}."
    else:
        keys, leaf = _descend(schema, parts)
        yield dotted(keys), _wrong_value(keys, leaf, error)


def _descend(schema: Schema, parts: list[str]) -> tuple[list[str], Schema]:
    """Return the keys that lead to the innermost table or key in the schema, and its schema."""
    keys: list[str] = []
    for part in parts:
        inner = schema.get("properties", {}).get(part) or schema.get("additionalProperties")
        if not inner:  # a position in a list, or a member of a union
            break
        keys.append(part)
        schema = inner
    return keys, schema


def suggest(name: object, valid: Iterable[str], advice: str) -> str:
    """Return "did you mean" if there is a similar name, and the advice.

    Examples
    --------
    >>> suggest("lod", ["load"], "choose a column.")
    "did you mean 'load'? Choose a column."
    """
    guess = did_you_mean(name, valid)
    return f"{guess}{advice[0].upper()}{advice[1:]}" if guess else advice


def dotted(keys: list[str]) -> str:
    """Return the place of a key, such as ``training.rounds``."""
    plain = (
        key if key.isprintable() and 0 < len(key) <= 40 else short_repr(key, 40) for key in keys
    )
    return ".".join(plain)


def _wrong_value(keys: list[str], schema: Schema, error: Mapping[str, Any]) -> str:
    """Return the sentence for a value that is missing or breaks the rule of its key."""
    rule = rule_of(schema)
    example = next(iter(schema.get("examples", [])), schema.get("default"))
    such_as = "" if example is None else f" such as {toml_value(example)}"
    if error["type"] == "missing":
        return f"is missing; give {rule}{such_as}."
    wrong = f"must be {rule}, got {short_repr(error['input'])}; "
    if "enum" in schema:
        return wrong + suggest(error["input"], schema["enum"], "choose one of them.")
    match schema.get("type"):
        case "object":
            return (
                f"{wrong}write it as [{dotted(keys)}] and keys." if keys else f"{wrong}correct it."
            )
        case "boolean":
            return f"{wrong}give one of the two."
        case "string":
            return f"{wrong}put it in quotes."
    return f"{wrong}give one{such_as}." if such_as else f"{wrong}correct it."
