"""Finds the part of a value that cannot be pickled, or makes code too large, for error messages."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from marline._api.errors import TooLargeError

# How deep the search goes, and how many parts it checks in all.
MAX_DEPTH = 6
MAX_PARTS = 2_000
# A variable of fewer bytes is not named as the cause of code that is too large.
MIN_NAMED_BYTES = 1 << 20


# The native module passes this name with the arguments of a call. The value is then a tuple: the
# positional arguments, the keyword arguments, and perhaps the context variables and more.
ARGUMENTS = "arguments"


def culprit(value: Any, name: str) -> tuple[str, Any]:
    """Returns the path to the smallest part that cannot be pickled, and that part."""
    if name != ARGUMENTS:
        steps, part = _smallest(value)
        return name + steps, part
    argument, value = _argument(value)
    steps, part = _smallest(value)
    return f"{argument}: {steps}" if steps else argument, part


def _smallest(value: Any) -> tuple[str, Any]:
    """Returns the steps to the smallest part that cannot be pickled, and that part."""
    steps, part = "", value
    looked = 0
    for _ in range(MAX_DEPTH):
        for step, member in _members(part):
            looked += 1
            if looked > MAX_PARTS:
                return steps, part
            if not _can_be_pickled(member):
                steps, part = steps + step, member
                break
        else:
            break
    return steps, part


def _argument(value: tuple[Any, ...]) -> tuple[str, Any]:
    """Returns the name and the value of the argument that cannot be pickled."""
    by_position, by_name, *context_values = value
    for which, argument in (*enumerate(by_position), *by_name.items()):
        if not _can_be_pickled(argument):
            return f"argument {which}", argument
    return (
        ("the context variables", context_values[0])
        if context_values and context_values[0]
        else ("the arguments", value)
    )


def _can_be_pickled(value: Any) -> bool:
    from marline import _native
    from marline._serialize.pickling import dumps_by_value

    try:
        _native.pickle_with_references(lambda: dumps_by_value(value))
    except Exception:
        return False
    return True


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parts of a value, each with the step to it."""
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
            continue  # A slot without a value, or a computed attribute that fails.
        yield f".{name}", member


def explain_size(code: Any, error: BaseException, name: str) -> TooLargeError:
    """Returns an error that names the variable which makes a function or class too large."""
    members = [(_pickled_bytes(member), step) for step, member in _parts_of_code(code)]
    size, step = max(members, default=(0, ""))
    if size < MIN_NAMED_BYTES:
        return TooLargeError(str(error))  # No single variable is the cause.
    what = step.removeprefix(", ")
    variable = what.rpartition(" ")[2].lstrip(".")
    return TooLargeError(
        f"{name} uses {what}, which has {size:,} bytes pickled: too much to travel with the code. "
        f"Put it once, reference = marline.put({variable}), and pass the reference as an argument ({error})"
    )


def _parts_of_code(code: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a function uses; for a class, what its methods use, and its attributes."""
    if not inspect.isclass(code):
        yield from _members(code)
        return
    for step, member in _members(code):
        if inspect.isfunction(member):
            yield from ((step + inner, part) for inner, part in _members(member))
        else:
            yield step, member


def _pickled_bytes(value: Any) -> int:
    from marline import _native
    from marline._serialize.pickling import dumps_by_value

    try:
        (pickled, _), _ = _native.pickle_with_references(lambda: dumps_by_value(value))
    except Exception:
        return 0
    return len(pickled)


def explain(value: Any, error: BaseException, name: str) -> TypeError:
    """Returns an error that names the part that cannot be pickled, and the reason."""
    path, part = culprit(value, name)
    kind = type(part)
    return TypeError(
        f"{path} cannot be pickled: it is a {kind.__module__}.{kind.__qualname__} ({error}). "
        f"{_advice(part, name)}"
    )


def _advice(part: Any, name: str) -> str:
    if inspect.isgenerator(part) or inspect.isasyncgen(part):
        items = "[item async for item in …]" if inspect.isasyncgen(part) else "list(…)"
        if name == ARGUMENTS:
            return f"A generator cannot travel: pass {items}."
        return f'Use num_returns="streaming" to stream its items, or return {items}.'
    return "Make it inside the task or actor, or leave it out with __getstate__."
