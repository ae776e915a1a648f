"""Inside an executor: which code a name means, and complete arguments."""

from __future__ import annotations

import pickle
from typing import Any

from marline._pickle import Need

_codes: dict[str, Any] = {}


def code(name: str, pickled: bytes) -> Any:
    """The function or class of this name. Its code is read once."""
    try:
        return _codes[name]
    except KeyError:
        return _codes.setdefault(name, pickle.loads(pickled))


def fill(
    arguments: tuple[tuple[Any, ...], dict[str, Any]], values: list[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Puts values where they belong among the arguments."""
    args, kwargs = arguments
    whole = tuple(values[arg.index] if type(arg) is Need else arg for arg in args)
    named = {name: values[arg.index] if type(arg) is Need else arg for name, arg in kwargs.items()}
    return whole, named
