"""How kernels are compiled; the only module that uses numba's internals.

These are not part of numba's documented interface, so ``pyproject.toml`` bounds its versions:

- the options ``no_cpython_wrapper`` and ``no_cfunc_wrapper`` (`helper`),
- the stamp of the cache on disk (`compile_kernel`),
- the address of compiled code and calls to it (`address_of`, `call_by_address`),
- the code that intrinsics emit (`unsigned_type`, `bits`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numba import types

# numba's annotations do not cover its internals.
numba: Any = import_module("numba")
cgutils: Any = import_module("numba.core.cgutils")

Index = np.uintp
"""The type of indices in kernels.

A signed index may be negative, which numba must check, and that prevents vector instructions.
"""

_UNSIGNED: Any = {types.float32: types.uint32, types.float64: types.uint64}
_SAME_WIDTH = _UNSIGNED | {integer: number for number, integer in _UNSIGNED.items()}


def helper(*fastmath: str) -> Callable[[Any], Any]:
    """Return a decorator for functions that only other compiled functions call.

    Parameters
    ----------
    *fastmath : str
        Freedoms for LLVM such as ``"reassoc"``. By default it has none: operations are executed as
        they are written, so that results have the same bits as NumPy's.
    """
    decorator: Callable[[Any], Any] = numba.njit(
        fastmath=set(fastmath) or False,  # None would inherit the setting of the caller
        nogil=True,
        error_model="numpy",
        no_cpython_wrapper=True,  # wrappers for calls from Python and C take time to compile
        no_cfunc_wrapper=True,
    )
    return decorator


def compile_kernel(function: Any, signature: Any) -> Callable[..., Any]:
    """Compile a `helper` for calls from Python, and cache the machine code on disk if possible.

    Parameters
    ----------
    function : function
        Decorated by `helper`.
    signature : numba signature or tuple of types
        The only types for which it is compiled.
    """
    options = {"nogil": True, "error_model": "numpy"}
    try:
        kernel = numba.njit(cache=True, **options)(function.py_func)
        # By default numba recompiles only if the function's own file has changed.
        with suppress(AttributeError):
            kernel._cache._cache_file._source_stamp = source_digest()
        kernel.compile(signature)
        kernel.disable_compile()  # other arguments are converted to these types, or refused
    except (OSError, RuntimeError):  # there is no directory to write to
        kernel = numba.njit(signature, **options)(function.py_func)
    compiled: Callable[..., Any] = kernel
    return compiled


@cache
def source_digest() -> str:
    """Return a digest of the source of all kernels: they call one another across files."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def address_of(kernel: Any) -> int:
    """Return the address of the machine code that `compile_kernel` made."""
    (result,) = kernel.overloads.values()
    address: int = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    return address


def call_by_address(signature: Callable[..., Any]) -> Any:
    """Return a function for compiled loops that calls a kernel by its address.

    A kernel that is called by address is compiled once and cached; if it were called by name, numba
    would compile it again for every loop, which takes seconds.

    Parameters
    ----------
    signature : function
        From the types of the arguments behind the address to the signature of the kernel.
    """

    def emit(context: Any, builder: Any, given: Any, args: Any) -> Any:
        address, packed = args
        given_types, called = given.args[1], signature(*given.args[1])
        convention = context.call_conv
        types_of_call = called.return_type, called.args
        pointer = convention.get_function_type(*types_of_call).as_pointer()
        code = builder.inttoptr(address, pointer)
        triples = zip(cgutils.unpack_tuple(builder, packed), given_types, called.args, strict=True)
        values = [context.cast(builder, value, have, want) for value, have, want in triples]
        status, result = convention.call_function(builder, code, *types_of_call, values)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return result

    def typed(_: Any, address: Any, *args: Any) -> Any:
        return signature(*args).return_type(address, numba.types.StarArgTuple(args)), emit

    return numba.extending.intrinsic(typed)


def named_tuple_type(cls: type, *members: Any) -> Any:
    """Return numba's type of a named tuple with members of these types."""
    base: Any = types.BaseTuple
    return base.from_types(members, cls)


def vector_type(number: Any, *, readonly: bool = False) -> Any:
    """Return the type of a contiguous vector."""
    return types.Array(number, 1, "C", readonly=readonly)


def matrix_type(number: Any, *, readonly: bool = False) -> Any:
    """Return the type of a matrix in C order."""
    return types.Array(number, 2, "C", readonly=readonly)


def _unsigned_type(_: Any, x: Any) -> Any:
    """Return the type of unsigned integers that are as wide as the numbers of x."""
    return types.NumberClass(_SAME_WIDTH[x.dtype])(x), lambda context, *_: context.get_dummy_value()


def _bits(_: Any, v: Any) -> Any:
    """Return the unsigned integer with the bits of a float, or the float with those of one."""
    twin = _SAME_WIDTH[v]
    return twin(v), lambda to, builder, _, args: builder.bitcast(args[0], to.get_value_type(twin))


unsigned_type: Any = numba.extending.intrinsic(_unsigned_type)
bits: Any = numba.extending.intrinsic(_bits)
