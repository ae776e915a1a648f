"""Exceptions as they travel: what is in groups, and causes and contexts, which pickle alone forgets.

The text of the one that was raised has its own traceback, and Python prints those of the others: each is said
once.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from marline._frames import Frame, frames_of, traceback_of
from marline._pickle import dumps_by_value

# So many exceptions of a chain travel; what is further away is in the text of the traceback.
MAX_ERRORS = 100

# Which of the others it is; None: none; KEPT: the one that it has when it arrives.
_Link = int | None
KEPT = -1


class Chain:
    """Exceptions that belong together; the first is the one that was raised.

    ``text`` is its traceback, unless that is all that is known of it anyway.
    """

    def __init__(
        self,
        text: str | None,
        errors: list[BaseException],
        links: list[tuple[_Link, _Link, bool]],
        frames: list[list[Frame]],
    ) -> None:
        self.text = text
        self.errors = errors
        self.links = links
        self.frames = frames

    def restored(self) -> BaseException:
        """The first one, with the others where they belong."""
        for error, frames in zip(self.errors, self.frames, strict=True):
            error.__traceback__ = traceback_of(frames)
        for error, (cause, context, is_suppressed) in zip(self.errors, self.links, strict=True):
            if cause != KEPT:
                error.__cause__ = None if cause is None else self.errors[cause]
            if context != KEPT:
                error.__context__ = None if context is None else self.errors[context]
            error.__suppress_context__ = is_suppressed  # Setting the cause has set it.
        return self.errors[0]


def dumps(
    error: BaseException, text: str | None, stand_in: Callable[[BaseException], BaseException]
) -> tuple[bytes, int] | None:
    """An exception, its traceback and all that belongs to it, if it can be pickled; others that cannot have a
    stand-in."""
    try:
        return _checked(_Gathering(lambda one: one).chain(error, text))
    except BaseException:  # Whatever it is, it is not how the task ended.
        pass
    portable = _Portable(stand_in)
    if portable.of(error) is not error and not isinstance(error, BaseExceptionGroup):
        return None
    try:
        return _checked(_Gathering(portable.of).chain(error, text))
    except BaseException:
        return None


def loads(pickled: bytes) -> tuple[BaseException, str | None]:
    """What was pickled and its traceback, or whatever that raises."""
    chain: Chain = pickle.loads(pickled)
    return chain.restored(), chain.text


def _checked(chain: Chain) -> tuple[bytes, int]:
    pickled = dumps_by_value(chain, _reducers(chain.errors))
    loads(pickled[0])  # Whoever gets it must be able to read it.
    return pickled


def _reducers(errors: list[BaseException]) -> dict[type, Any]:
    """How exceptions are pickled that have no way of their own."""
    return {type(error): _reduced for error in errors if _has_no_way_of_its_own(type(error))}


def _has_no_way_of_its_own(cls: type[BaseException]) -> bool:
    plain = cls.__reduce__ is BaseException.__reduce__ and cls.__reduce_ex__ is object.__reduce_ex__
    return plain and not issubclass(cls, BaseExceptionGroup)


def _reduced(error: BaseException) -> tuple[Any, ...]:
    return made_anew, (type(error), error.args), error.__dict__ or None


def made_anew(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception as it was. Pickle calls its class with ``args``, which many a class does not take."""
    try:
        made = cls(*args)
        if made.args == args:
            return made
    except Exception:
        pass
    return cls.__new__(cls, *args)


class _Gathering:
    """Finds what belongs to an exception."""

    def __init__(self, portable: Callable[[BaseException], BaseException]) -> None:
        self.portable = portable
        self.errors: list[BaseException] = []
        self.links: list[tuple[_Link, _Link, bool]] = []
        self.frames: list[list[Frame]] = []
        self.known: dict[int, int] = {}

    def chain(self, error: BaseException, text: str | None) -> Chain:
        self.add(error)
        self.frames[0] = []  # It is in the text, and where it arrives it is raised anew.
        return Chain(text, self.errors, self.links, self.frames)

    def add(self, error: BaseException | None) -> _Link:
        if error is None:
            return None
        if id(error) in self.known:
            return self.known[id(error)]
        if len(self.errors) >= MAX_ERRORS:
            return None
        index = self.known[id(error)] = len(self.errors)
        portable = self.portable(error)
        self.errors.append(portable)
        self.frames.append(frames_of(error) if portable is error else [])  # A stand-in has it in its text.
        self.links.append((None, None, error.__suppress_context__))
        cause, context = self.link(error, "__cause__"), self.link(error, "__context__")
        self.links[index] = cause, context, error.__suppress_context__
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                self.add(one)
        return index

    def link(self, error: BaseException, name: str) -> _Link:
        other = getattr(error, name)
        if other is not None and other is came_with(error).get(name):
            return KEPT  # It brings it along itself, and the more often it travels the larger it would be.
        return self.add(other)


def came_with(error: BaseException) -> dict[str, BaseException | None]:
    """What an exception that came from elsewhere had where it came from."""
    links: dict[str, BaseException | None] = error.__dict__.get("_marline_links", {})
    return links


class _Portable:
    """Replaces what cannot be pickled."""

    def __init__(self, stand_in: Callable[[BaseException], BaseException]) -> None:
        self.stand_in = stand_in
        self.known: dict[int, tuple[BaseException, BaseException]] = {}

    def of(self, error: BaseException) -> BaseException:
        if id(error) not in self.known:
            self.known[id(error)] = error, self.made(error)
        return self.known[id(error)][1]

    def made(self, error: BaseException) -> BaseException:
        if isinstance(error, BaseExceptionGroup):
            parts = [self.of(one) for one in error.exceptions]
            if any(part is not one for part, one in zip(parts, error.exceptions, strict=True)):
                group = error.derive(parts)
                for note in getattr(error, "__notes__", ()):
                    group.add_note(note)
                return group
        try:
            pickle.loads(dumps_by_value(error, _reducers([error]))[0])
        except Exception:
            return self.stand_in(error)
        return error


def note_links(error: Any) -> None:
    """An exception has come from elsewhere with these."""
    error._marline_links = {"__cause__": error.__cause__, "__context__": error.__context__}
