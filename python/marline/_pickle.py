"""Pickling what plain pickle cannot: lambdas, closures, what is defined in ``__main__``.

Such code travels as bytecode, which only the minor version of Python reads that made it: the version goes
along, and another one refuses it with words. Plain data and what is imported by name can be read by all.
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

from marline import _native, _propagate
from marline._errors import IncompatibleError, TooLargeError
from marline._unpicklable import explain, explain_size

if TYPE_CHECKING:
    from marline._runtime_env import Shipped


class Need:
    """Stands for an argument whose value goes along: which one."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[type[Need], tuple[int]]:
        return Need, (self.index,)


class _Bytecode:
    """Notes whether there is bytecode in what is pickled."""

    def __init__(self) -> None:
        self.is_met = False

    def reduce(self, code: types.CodeType) -> Any:
        self.is_met = True
        return cloudpickle.Pickler.dispatch_table[types.CodeType](code)


#: Is shown a buffer; takes it, or says that it is to be part of what is pickled.
Beside = Callable[[pickle.PickleBuffer], bool]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    # It does not note it itself: it would be part of a cycle, and keep what it pickled alive for a while.
    def __init__(
        self, file: io.BytesIO, bytecode: _Bytecode, reducers: Mapping[type, Any], beside: Beside | None
    ) -> None:
        special = {types.CodeType: bytecode.reduce, contextvars.ContextVar: _propagate.reduce, **reducers}
        self.dispatch_table = collections.ChainMap(special, cloudpickle.Pickler.dispatch_table)
        super().__init__(file, protocol=5, buffer_callback=beside)


def dumps_by_value(
    value: Any, reducers: Mapping[type, Any] = MappingProxyType({}), beside: Beside | None = None
) -> tuple[bytes, int]:
    """Pickles with the code of what cannot be imported elsewhere; some classes in a way of their own. Says
    which minor version of Python can read it, or 0 for any. Who is shown its buffers takes those that go
    beside it."""
    file, bytecode = io.BytesIO(), _Bytecode()
    _Pickler(file, bytecode, reducers, beside).dump(value)
    return file.getvalue(), sys.version_info.minor if bytecode.is_met else 0


def dumps_value(value: Any, name: str) -> tuple[bytes, int]:
    """The same for a value, whose large buffers go beside it; what cannot be pickled is named. Called by the
    native module."""
    try:
        return dumps_by_value(value, beside=_native.met_buffer)
    except Exception as error:
        raise explain(value, error, name) from error


class Code(NamedTuple):
    """A function or class as it travels."""

    pickled: bytes
    #: No other code has it.
    key: str
    #: Which minor version of Python can read it; 0: any.
    version: int
    #: What it has references to: references and handles among its globals, and what it closes over.
    things: _native.Things | None


def dumps_code(code: Any) -> Code:
    """A function or class as it travels."""
    try:
        (pickled, version), things = _native.noting(lambda: dumps_by_value(code))
    except Exception as error:
        raise explain(code, error, getattr(code, "__qualname__", "the function")) from error
    return Code(pickled, code_key(pickled), version, things or None)


def put_code(session: _native.Session, value: Any, code: Code, env: Shipped) -> _native.ObjectRef:
    """Puts the code of a function or class where executors get it. If it is too large, names the cause."""
    try:
        return session.put_raw(code.pickled, code.version, env.description, env.packages, code.things)
    except TooLargeError as error:
        raise explain_size(value, error, getattr(value, "__qualname__", "the function")) from None


def code_key(pickled: bytes) -> str:
    """The content hash of code. It is the last part of the name of a function, after ``#``."""
    # The same class as hashlib.blake2b. To import hashlib loads OpenSSL: 2 MiB in every executor.
    from _blake2 import blake2b

    return blake2b(pickled, digest_size=8).hexdigest()


def can_read(version: int) -> bool:
    """Whether this Python reads what a version made."""
    return version in (0, sys.version_info.minor)


def incompatible(version: int, what: str) -> IncompatibleError:
    """Another version made it. Called by the native module, too."""
    here = f"{os.uname().nodename}, {sys.executable}"
    return IncompatibleError(
        f"{what} has code in it that was pickled by Python 3.{version}, and this is Python "
        f"3.{sys.version_info.minor} ({here}): run drivers and workers with the same minor version "
        "(marline worker --python PROGRAM), or use functions and classes of a module that both can import"
    )
