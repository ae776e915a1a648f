"""Checks the arguments of ``get`` and ``wait``. An error suggests what may have been meant.

``get`` calls these checks only after a failure, so that correct arguments cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from marline._api.option_values import checked_limit
from marline._native import ObjectRef


def check_get(refs: Any, timeout: Any) -> None:
    """Raises a ``TypeError`` or ``ValueError`` if the arguments of ``get`` are wrong."""
    if not isinstance(refs, ObjectRef):
        if isinstance(refs, Iterable) and not isinstance(refs, Sequence) and not _instead(refs):
            words = f"get() takes a reference or a list of references, not {type(refs).__name__}"
            raise TypeError(f"{words}: make it a list") from None
        references("get", refs)
    check_limit(timeout)


def check_limit(timeout: Any) -> None:
    """Raises a ``TypeError`` or ``ValueError`` if this is no valid timeout."""
    try:
        checked_limit(timeout)
    except (TypeError, ValueError) as error:
        raise error from None


def references(what: str, refs: Any) -> list[ObjectRef]:
    """Returns the references as a list. Anything else is a ``TypeError``."""
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
    """Returns a hint for something that is no reference: what may have been meant."""
    if hasattr(type(thing), "remote"):
        name = getattr(thing, "__name__", None) or getattr(thing, "_name", "it")
        return f": is {name}.remote() meant?"
    return ": its result() waits for it" if hasattr(type(thing), "result") else ""
