"""Chains of exceptions as they travel: causes, contexts and members of groups.

Pickle alone forgets causes and contexts. The raised exception carries its own traceback as text.
The others carry their frames (``_serialize.frames``), so that Python prints each traceback once.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from marline._serialize.frames import Frame, frames_of, traceback_of
from marline._serialize.pickling import dumps_by_value

# The most exceptions of a chain that travel. The text of the traceback has the others.
MAX_ERRORS = 100

# The index of a cause or context in the chain. None: there is none. KEPT: the exception has it
# already when it is unpickled.
_Link = int | None
KEPT = -1


class Chain:
    """The exceptions of a chain. The first is the raised one.

    ``text`` is the traceback of the raised exception. It is ``None`` if the exception has no cause,
    context or members: then the traceback that travels beside the chain is the same.
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
        """Links the exceptions again, and returns the first one."""
        for error, frames in zip(self.errors, self.frames, strict=True):
            error.__traceback__ = traceback_of(frames)
        for error, (cause, context, is_suppressed) in zip(self.errors, self.links, strict=True):
            if cause != KEPT:
                error.__cause__ = None if cause is None else self.errors[cause]
            if context != KEPT:
                error.__context__ = None if context is None else self.errors[context]
            error.__suppress_context__ = is_suppressed  # Setting the cause has changed it.
        return self.errors[0]


def dumps(
    error: BaseException, text: str | None, stand_in: Callable[[BaseException], BaseException]
) -> tuple[bytes, int] | None:
    """Pickles an exception with its chain.

    Returns ``None`` if the exception itself cannot be pickled.

    Other exceptions of the chain that cannot be pickled are replaced by ``stand_in``.
    """
    try:
        return _checked(_Gathering(lambda link: link).chain(error, text))
    except BaseException:  # An error of pickling must not hide the error of the task.
        pass
    portable = _Portable(stand_in)
    if portable.of(error) is not error and not isinstance(error, BaseExceptionGroup):
        return None
    try:
        return _checked(_Gathering(portable.of).chain(error, text))
    except BaseException:
        return None


def loads(pickled: bytes) -> tuple[BaseException, str | None]:
    """Returns a pickled exception and the text of its traceback. May raise any exception."""
    chain: Chain = pickle.loads(pickled)
    return chain.restored(), chain.text


def _checked(chain: Chain) -> tuple[bytes, int]:
    pickled = dumps_by_value(chain, _reducers(chain.errors))
    loads(pickled[0])  # Fails here if the receiver could not read it.
    return pickled


def _reducers(errors: list[BaseException]) -> dict[type, Any]:
    """Returns how to pickle the exception classes that do not define it themselves."""
    return {type(error): _reduced for error in errors if _has_no_way_of_its_own(type(error))}


def _has_no_way_of_its_own(cls: type[BaseException]) -> bool:
    plain = cls.__reduce__ is BaseException.__reduce__ and cls.__reduce_ex__ is object.__reduce_ex__
    return plain and not issubclass(cls, BaseExceptionGroup)


def _reduced(error: BaseException) -> tuple[Any, ...]:
    return made_anew, (type(error), error.args), error.__dict__ or None


def made_anew(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Makes an exception again.

    Plain pickle calls the class with ``args``, which many classes do not accept.
    """
    try:
        error = cls(*args)
        if error.args == args:
            return error
    except Exception:
        pass
    return cls.__new__(cls, *args)


class _Gathering:
    """Collects the chain of an exception."""

    def __init__(self, portable: Callable[[BaseException], BaseException]) -> None:
        self.portable = portable
        self.errors: list[BaseException] = []
        self.links: list[tuple[_Link, _Link, bool]] = []
        self.frames: list[list[Frame]] = []
        self.known: dict[int, int] = {}

    def chain(self, error: BaseException, text: str | None) -> Chain:
        self.add(error)
        self.frames[0] = []  # They are in the text, and the receiver raises the exception again.
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
        # A stand-in has the frames in its text.
        self.frames.append(frames_of(error) if portable is error else [])
        self.links.append((None, None, error.__suppress_context__))
        cause, context = self.link(error, "__cause__"), self.link(error, "__context__")
        self.links[index] = cause, context, error.__suppress_context__
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                self.add(member)
        return index

    def link(self, error: BaseException, name: str) -> _Link:
        other = getattr(error, name)
        if other is not None and other is came_with(error).get(name):
            # The exception has it in its own pickle. Adding it again would make it larger with each
            # hop.
            return KEPT
        return self.add(other)


def came_with(error: BaseException) -> dict[str, BaseException | None]:
    """Returns the cause and context that an exception had when it arrived from another process."""
    links: dict[str, BaseException | None] = error.__dict__.get("_marline_links", {})
    return links


class _Portable:
    """Replaces exceptions that cannot be pickled by stand-ins."""

    def __init__(self, stand_in: Callable[[BaseException], BaseException]) -> None:
        self.stand_in = stand_in
        self.known: dict[int, tuple[BaseException, BaseException]] = {}

    def of(self, error: BaseException) -> BaseException:
        if id(error) not in self.known:
            self.known[id(error)] = error, self.made(error)
        return self.known[id(error)][1]

    def made(self, error: BaseException) -> BaseException:
        if isinstance(error, BaseExceptionGroup):
            parts = [self.of(member) for member in error.exceptions]
            if any(part is not member for part, member in zip(parts, error.exceptions, strict=True)):
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
    """Notes the cause and context of an exception that has arrived from another process."""
    error._marline_links = {"__cause__": error.__cause__, "__context__": error.__context__}
