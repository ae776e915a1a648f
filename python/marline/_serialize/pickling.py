"""Pickles what plain pickle cannot: lambdas, closures, and definitions of ``__main__``.

Such code travels as bytecode, which only the minor version of Python can read that made it. The
version travels with it, and another Python raises an ``IncompatibleError``. Pickled data without
bytecode can be read by all versions.
"""

from __future__ import annotations

import collections
import contextvars
import io
import os
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from marline import _native
from marline._api import propagation
from marline._api.errors import IncompatibleError, TooLargeError
from marline._serialize.unpicklable import explain, explain_size

if TYPE_CHECKING:
    from marline._environment.environment import ShippedEnv


class ArgumentSlot:
    """Stands for an argument that is a reference: the index of its value, which travels beside."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[type[ArgumentSlot], tuple[int]]:
        return ArgumentSlot, (self.index,)


class _Bytecode:
    """Notes whether a pickled value contains bytecode."""

    def __init__(self) -> None:
        self.is_met = False

    def reduce(self, code: types.CodeType) -> Any:
        self.is_met = True
        return cloudpickle.Pickler.dispatch_table[types.CodeType](code)


#: The `buffer_callback` of pickle: takes a buffer, or returns true if the buffer becomes part of
#: the pickle.
Beside = Callable[[pickle.PickleBuffer], bool]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    # `_Bytecode` is a separate object: a bound method of the pickler in its own table would be a
    # reference cycle, and would keep the pickled value alive until a garbage collection.
    def __init__(
        self, file: io.BytesIO, bytecode: _Bytecode, reducers: Mapping[type, Any], beside: Beside | None
    ) -> None:
        special = {types.CodeType: bytecode.reduce, contextvars.ContextVar: propagation.reduce, **reducers}
        self.dispatch_table = collections.ChainMap(special, cloudpickle.Pickler.dispatch_table)
        super().__init__(file, protocol=5, buffer_callback=beside)


def dumps_by_value(
    value: Any, reducers: Mapping[type, Any] = MappingProxyType({}), beside: Beside | None = None
) -> tuple[bytes, int]:
    """Pickles a value, with the code of what other processes cannot import.

    ``reducers`` says how to pickle some classes. ``beside`` is called with each buffer, and takes
    those that travel beside the pickle. Returns the bytes, and the minor version of Python that can
    read them (0 is any).
    """
    file, bytecode = io.BytesIO(), _Bytecode()
    _Pickler(file, bytecode, reducers, beside).dump(value)
    return file.getvalue(), sys.version_info.minor if bytecode.is_met else 0


def dumps_value(value: Any, name: str) -> tuple[bytes, int]:
    """Pickles a value, with its large buffers beside it.

    An error names the part that cannot be pickled, as a part of ``name``. Called by the native
    module.
    """
    try:
        return dumps_by_value(value, beside=_native.buffer_callback)
    except Exception as error:
        raise explain(value, error, name) from error


class Code(NamedTuple):
    """The pickled code of a function or class."""

    pickled: bytes
    #: The hash of the code.
    key: str
    #: The minor version of Python that can read it; 0 is any.
    version: int
    #: The references and actor handles in its globals and its closure, if there are any.
    references: _native.ContainedReferences | None


def dumps_code(code: Any) -> Code:
    """Pickles the code of a function or class."""
    try:
        (pickled, version), references = _native.pickle_with_references(lambda: dumps_by_value(code))
    except Exception as error:
        raise explain(code, error, getattr(code, "__qualname__", "the function")) from error
    return Code(pickled, code_key(pickled), version, references or None)


def put_code(session: _native.Session, value: Any, code: Code, env: ShippedEnv) -> _native.ObjectRef:
    """Puts the code of a function or class into the session.

    If it is too large, the error names the cause.
    """
    try:
        return session.put_raw(code.pickled, code.version, env.description, env.packages, code.references)
    except TooLargeError as error:
        raise explain_size(value, error, getattr(value, "__qualname__", "the function")) from None


def code_key(pickled: bytes) -> str:
    """Returns the hash of code. It is the last part of a function's name, after ``#``."""
    # The same class as hashlib.blake2b. Importing hashlib would load OpenSSL: 2 MiB in every
    # executor.
    from _blake2 import blake2b

    return blake2b(pickled, digest_size=8).hexdigest()


def can_read(version: int) -> bool:
    """Returns whether this Python can read what this minor version has pickled."""
    return version in (0, sys.version_info.minor)


def incompatible(version: int, what: str) -> IncompatibleError:
    """Returns the error for code that another version of Python has pickled.

    Also called by the native module.
    """
    here = f"{os.uname().nodename}, {sys.executable}"
    return IncompatibleError(
        f"{what} contains code that was pickled by Python 3.{version}, and this is Python "
        f"3.{sys.version_info.minor} ({here}): run drivers and workers with the same minor version "
        "(marline worker --python PROGRAM), or use functions and classes of a module that both can import"
    )
