"""What ``get`` and ``wait`` were given, checked: whoever gives something else is told what may be meant.

``get`` looks only when something has failed, since most of what it is given is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from marline._native import ObjectRef
from marline._option_values import checked_limit


def check_get(refs: Any, timeout: Any) -> None:
    """An error if ``get`` was not given what it takes."""
    if not isinstance(refs, ObjectRef):
        if isinstance(refs, Iterable) and not isinstance(refs, Sequence) and not _instead(refs):
            words = f"get() takes a reference or a list of references, not {type(refs).__name__}"
            raise TypeError(f"{words}: make it a list") from None
        references("get", refs)
    check_limit(timeout)


def check_limit(timeout: Any) -> None:
    """An error if this is no time to wait for."""
    try:
        checked_limit(timeout)
    except (TypeError, ValueError) as error:
        raise error from None


def references(what: str, refs: Any) -> list[ObjectRef]:
    """What was given, if that is references."""
    if isinstance(refs, ObjectRef):
        raise TypeError(f"{what}() takes a list of references: [ref]")
    if not isinstance(refs, Iterable) or _instead(refs):
        raise TypeError(f"{what}() takes references, not {type(refs).__name__}{_instead(refs)}") from None
    found = list(refs)
    for ref in found:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"{what}() takes references, not {type(ref).__name__}{_instead(ref)}") from None
    return found


def _instead(thing: Any) -> str:
    """What may be meant by something that is no reference."""
    if hasattr(type(thing), "remote"):
        name = getattr(thing, "__name__", None) or getattr(thing, "_name", "it")
        return f": is {name}.remote() meant?"
    return ": its result() waits for it" if hasattr(type(thing), "result") else ""
