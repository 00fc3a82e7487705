"""Compiled loops, where numba is installed; the rest of the package does without it.

Modules named ``kernels`` import numba. Nobody imports them but through here, when a loop is first
needed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

U = np.uintp
"""The type of indices in kernels.

Of others a kernel must ask whether they are negative, which stands in the way of vector
instructions.
"""


@cache
def kernels(module: str) -> ModuleType | None:
    """Return a module of kernels, or None where numba is not installed."""
    try:
        return import_module(module)
    except ImportError:
        return None


def _numba(module: str = "numba") -> Any:
    return import_module(module)


def part(*fastmath: str) -> Callable[[Any], Any]:
    """Return a decorator for functions that only other compiled functions call.

    Parameters
    ----------
    *fastmath : str
        What LLVM may do to arithmetic. Nothing unless it is said: operations are done as they are
        written.
    """
    decorator: Callable[[Any], Any] = _numba().njit(
        fastmath=set(fastmath) or False,  # None would be what the caller has
        nogil=True,
        error_model="numpy",
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )
    return decorator


def entry(function: Any, signature: Any) -> Callable[..., Any]:
    """Compile a ``part`` for one signature; keep the machine code on disk if we may."""
    njit, options = _numba().njit, {"nogil": True, "error_model": "numpy"}
    try:
        found = njit(cache=True, **options)(function.py_func)
        with suppress(AttributeError):  # numba looks only at the file of the function itself
            found._cache._cache_file._source_stamp = _stamp()
        found.compile(signature)
        found.disable_compile()  # other arguments are cast to these, or refused
    except (OSError, RuntimeError):  # numba has no directory to write to
        found = njit(signature, **options)(function.py_func)
    code: Callable[..., Any] = found
    return code


@cache
def _stamp() -> str:
    """Return a digest of the source of all kernels, which call one another."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def address(found: Any) -> int:
    """Return where the machine code of an ``entry`` is."""
    (result,) = found.overloads.values()
    start: int = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    return start


def calling(signature: Callable[..., Any]) -> Any:
    """Return a function for compiled loops that calls an ``entry`` by its ``address``.

    What is called like this is compiled once, and not again with every loop that calls it.

    Parameters
    ----------
    signature : function
        From the types of the arguments that follow the address to the signature of the entry.
    """
    cgutils, types = _numba("numba.core.cgutils"), _numba("numba.types")

    def call(context: Any, builder: Any, given: Any, args: Any) -> Any:
        start, packed = args
        have, called, convention = given.args[1], signature(*given.args[1]), context.call_conv
        to = called.return_type, called.args
        code = builder.inttoptr(start, convention.get_function_type(*to).as_pointer())
        each = zip(cgutils.unpack_tuple(builder, packed), have, called.args, strict=True)
        values = [context.cast(builder, value, was, wanted) for value, was, wanted in each]
        status, result = convention.call_function(builder, code, *to, values)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return result

    def typed(_: Any, start: Any, *args: Any) -> Any:
        return signature(*args).return_type(start, types.StarArgTuple(args)), call

    return intrinsic(typed)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Return a function for kernels from one that finds its signature and how its code is written.

    The function gets numba's context and the types of the arguments.
    """
    return _numba("numba.extending").intrinsic(function)
