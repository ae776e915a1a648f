"""Finds what in a value cannot be pickled, and says where it is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

# How deep is looked, and at how many parts in all.
MAX_DEPTH = 6
MAX_PARTS = 2_000


def culprit(value: Any, name: str) -> tuple[str, Any]:
    """The path to the smallest part that cannot be pickled, and that part."""
    path, part = name, value
    looked = 0
    for _ in range(MAX_DEPTH):
        for step, member in _members(part):
            looked += 1
            if looked > MAX_PARTS:
                return path, part
            if not _can_be_pickled(member):
                path, part = path + step, member
                break
        else:
            break
    return path, part


def _can_be_pickled(value: Any) -> bool:
    from marline import _native
    from marline._pickle import dumps_by_value

    try:
        _native.noting(lambda: dumps_by_value(value))
    except Exception:
        return False
    return True


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value, and how each is reached."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield f"[{key!r}]", member
    elif isinstance(value, list | tuple | set | frozenset):
        for index, member in enumerate(value):
            yield f"[{index}]", member
    elif inspect.isfunction(value):
        closure = inspect.getclosurevars(value)
        for where, names in (("variable", closure.nonlocals), ("global", closure.globals)):
            for name, member in names.items():
                yield f", {where} {name}", member
    elif inspect.isclass(value):
        for name, member in vars(value).items():
            if not name.startswith("__") or inspect.isfunction(member):
                yield f".{name}", member
    else:
        yield from _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    names = [*getattr(value, "__dict__", {}), *getattr(type(value), "__slots__", ())]
    for name in names:
        try:
            member = getattr(value, name)
        except Exception:
            continue  # There is none, or it is computed, and that fails.
        yield f".{name}", member


def explain(value: Any, error: BaseException, name: str) -> TypeError:
    """An error that says what cannot be pickled, and why."""
    path, part = culprit(value, name)
    kind = type(part)
    return TypeError(
        f"{path} cannot be pickled: it is a {kind.__module__}.{kind.__qualname__} ({error}). "
        "Make it inside the task or actor, or leave it out with __getstate__."
    )
