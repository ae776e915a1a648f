"""Pickling what plain pickle cannot: lambdas, closures, what is defined in ``__main__``."""

from __future__ import annotations

import hashlib
from typing import Any

import cloudpickle

from marline._unpicklable import explain


class Need:
    """Stands for an argument whose value goes along: which one."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[type[Need], tuple[int]]:
        return Need, (self.index,)


def dumps_by_value(value: Any) -> bytes:
    """Pickles with the code of what cannot be imported elsewhere."""
    pickled: bytes = cloudpickle.dumps(value, protocol=5)
    return pickled


def dumps_value(value: Any, name: str) -> bytes:
    """The same for a value; what cannot be pickled is named. Called by the native module."""
    try:
        return dumps_by_value(value)
    except Exception as error:
        raise explain(value, error, name) from error


def dumps_code(code: Any) -> tuple[bytes, str]:
    """A function or class as it travels, and a key that no other code has."""
    try:
        pickled = dumps_by_value(code)
    except Exception as error:
        raise explain(code, error, getattr(code, "__qualname__", "the function")) from error
    return pickled, hashlib.blake2b(pickled, digest_size=8).hexdigest()


def loads_message_pack(data: bytes) -> Any:
    """Reads what a worker of another language returned."""
    raise NotImplementedError("MessagePack values are not read yet")
