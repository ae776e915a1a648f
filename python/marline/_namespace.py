"""The namespace in which names of actors count where none is said.

In a driver it is the one that ``init`` was told; it goes along with what the driver submits. A task has it
for as long as it runs, an actor for as long as it lives, whoever calls it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from marline import _native

# That of drivers which say nothing.
DEFAULT = "default"
# What it travels as, among the values of context variables.
KEY = "marline.namespace"

# What was said in this process, or came with what runs here. Threads share it.
_said: str | None = None
# Whether an actor lives here, which has one of its own.
_is_kept = False


def checked(namespace: Any) -> str | None:
    """What a user said; nothing stays nothing."""
    if namespace is not None and not isinstance(namespace, str):
        raise TypeError(f"namespace is a string, not {type(namespace).__name__}")
    if namespace == "":
        raise ValueError("namespace is empty: leave it out for that of the driver")
    return namespace


def current() -> str:
    """The one that counts here."""
    return _said or DEFAULT


def say(namespace: str | None) -> None:
    """A driver has begun, or ended."""
    global _said
    _said = namespace
    if namespace is not None:
        _native.look_around()


def keep(along: Mapping[str, Any]) -> None:
    """An actor is made here: it has what came along with it."""
    global _said, _is_kept
    _said, _is_kept = along.get(KEY), True


def travels() -> str | None:
    """What is to go along, if anything was said."""
    return _said


@contextlib.contextmanager
def arrived(along: Mapping[str, Any]) -> Iterator[None]:
    """What came along counts, for one task; calls of actors change nothing."""
    global _said
    if _is_kept or KEY not in along:
        yield
        return
    _said, before = along[KEY], _said
    try:
        yield
    finally:
        _said = before
