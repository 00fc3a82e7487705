"""What error messages have in common: one line, readable length, "did you mean".

Values come from files that anybody may have written, so nothing is put into a message uncut.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_LENGTH = 380
"""The largest number of characters in a message."""


class ClusterError(RuntimeError):
    """A run on a cluster that cannot continue, because of what its machines lost or lack."""


def short_repr(value: object, limit: int = 60) -> str:
    """Return ``repr(value)``, cut to ``limit`` characters.

    Examples
    --------
    >>> short_repr("load")
    "'load'"
    >>> short_repr("x" * 100, limit=10)
    "'xxxxxxxx…"
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, say
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def join_names(names: Iterable[object], max_names: int = 6) -> str:
    """Return names with commas between them, and how many were left out.

    Examples
    --------
    >>> join_names("abcd", max_names=2)
    "'a', 'b' and 2 more"
    """
    every = list(names)
    left = len(every) - max_names
    text = ", ".join(short_repr(name, 30) for name in every[:max_names])
    return f"{text} and {left} more" if left > 0 else text


def did_you_mean(name: object, valid: Iterable[str]) -> str:
    """Return the question whether a similar name was meant, or nothing.

    Examples
    --------
    >>> did_you_mean("lod", ["load", "hour"])
    "did you mean 'load'? "
    """
    found = closest_name(name, valid)
    return "" if found is None else f"did you mean {found!r}? "


def closest_name(name: object, valid: Iterable[str]) -> str | None:
    """Return the valid name that is most similar to a wrong one; None if none is similar.

    Examples
    --------
    >>> closest_name("lod", ["load", "hour"])
    'load'
    """
    if not isinstance(name, str):
        return None
    # The matching takes quadratic time, so no long names and not too many.
    short = [each for each in valid if len(each) <= 80][:1000]
    found = difflib.get_close_matches(name[:80], short, n=1)
    return found[0] if found else None


def display_path(path: Path) -> str:
    """Return a path for messages: its end, if it is long."""
    text = str(path)
    if not text.isprintable():
        return short_repr(text, 80)
    return text if len(text) <= 80 else "…" + text[-79:]


def one_line(message: str, max_length: int = MAX_LENGTH) -> str:
    """Return a message as one line; of a long one the middle is left out.

    Values may come from files that anybody wrote, so a message may have any length and characters.
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    return text if len(text) <= max_length else f"{text[: max_length - 140]} … {text[-137:]}"


@contextmanager
def error_context(where: str) -> Iterator[None]:
    """Put ``where`` before the sentence of an error, and keep that one line of readable length."""
    try:
        yield
    except (ValueError, ArithmeticError) as error:
        raise ValueError(one_line(f"{where}: {error}")) from None
    except (TypeError, AttributeError, LookupError, SyntaxError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise ValueError(one_line(f"{where}: its form is not valid ({reason}).")) from None


def install_command(extra: str) -> str:
    """Return the command that installs an extra of pcfed, from where pcfed was installed.

    A clone or a wheel of pcfed has to be named by its path: an index may not have it.
    """
    # Slow to import, and only needed here.
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        source = json.loads(distribution("pcfed").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        source = {}
    path = urlsplit(source.get("url", ""))
    if path.scheme != "file":
        return f"pip install 'pcfed[{extra}]'"
    editable = "--editable " if source.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{url2pathname(path.path)}[{extra}]'"
