"""Context variables that travel: as they are set where work is submitted, they are set where it runs.

A variable cannot be pickled. It is known by its name, which is registered on both sides; a name that came
before its variable is kept under a variable made here, so that it travels on, and handed over later.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from marline import _namespace, _native

T = TypeVar("T")

#: The trace that what runs is part of, as W3C headers (``traceparent``, ``tracestate``), if there is one.
trace_context: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar(
    "marline.trace_context", default=None
)

_lock = threading.Lock()
_variables: dict[str, contextvars.ContextVar[Any]] = {trace_context.name: trace_context}
_names: dict[contextvars.ContextVar[Any], str] = {trace_context: trace_context.name}
# Names that came without a variable: theirs were made here.
_made: set[str] = set()
# What is to be undone when the call ends that runs.
_Undo = list[tuple[contextvars.ContextVar[Any], contextvars.Token[Any]]]
_undo: contextvars.ContextVar[_Undo | None] = contextvars.ContextVar("marline_undo", default=None)
_UNSET: Any = object()


def propagate(variable: contextvars.ContextVar[T], *, name: str | None = None) -> contextvars.ContextVar[T]:
    """Has a context variable travel into tasks and calls, where it is set; returns it.

    It is known by its name, or by ``name``: two variables cannot have the same. Modules that executors import
    say so too, when they are imported; a variable of ``__main__`` goes along with the code that uses it.

    >>> import contextvars, marline
    >>> request = marline.propagate(contextvars.ContextVar("request"))
    """
    name = name or variable.name
    with _lock:
        known = _variables.get(name)
        if known is not variable and known is not None and name not in _made:
            raise ValueError(f"another context variable travels as {name!r}: give this one a name of its own")
        if _names.get(variable, name) != name:
            raise ValueError(f"{variable.name!r} travels as {_names[variable]!r} already")
        _made.discard(name)
        _variables[name] = variable
        _names[variable] = name
    if known is not None and known is not variable:
        _names.pop(known, None)
        value = known.get(_UNSET)
        if value is not _UNSET:
            _set(variable, value)
    _native.look_around()
    return variable


def values() -> dict[str, Any] | None:
    """What is to travel with what is submitted here, by name."""
    along = {}
    for name, variable in tuple(_variables.items()):
        value = variable.get(_UNSET)
        if value is not _UNSET:
            along[name] = value
    trace = _current_trace()
    if trace is not None:
        along[trace_context.name] = trace
    namespace = _namespace.travels()
    if namespace is not None:
        along[_namespace.KEY] = namespace
    return along or None


def _current_trace() -> dict[str, str] | None:
    """The headers of the current span, where OpenTelemetry is used."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    try:
        from opentelemetry.propagate import inject
    except ImportError:
        return None
    headers: dict[str, str] = {}
    inject(headers)
    return headers or None


@contextlib.contextmanager
def arrived(along: Mapping[str, Any]) -> Iterator[None]:
    """Sets what came along, for one call."""
    undo: _Undo = []
    own = _undo.set(undo)
    detach = None
    try:
        detach = arrive(along)
        with _namespace.arrived(along):
            yield
    finally:
        if detach is not None:
            from opentelemetry import context

            context.detach(detach)
        for variable, token in reversed(undo):
            # One that was set in a copy of this context went with it.
            with contextlib.suppress(ValueError):
                variable.reset(token)
        _undo.reset(own)


def arrive(along: Mapping[str, Any]) -> Any:
    """Sets what came along, for as long as this context lives. Returns what detaches the trace."""
    for name, value in along.items():
        if name != _namespace.KEY:  # It is the process's, not the context's.
            _set(_variable(name), value)
    headers = along.get(trace_context.name)
    if headers is None or "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import context
    from opentelemetry.propagate import extract

    return context.attach(extract(headers))


def _set(variable: contextvars.ContextVar[Any], value: Any) -> None:
    token = variable.set(value)
    undo = _undo.get()
    if undo is not None:
        undo.append((variable, token))


def _variable(name: str) -> contextvars.ContextVar[Any]:
    """The variable of a name; one is made if there is none yet."""
    with _lock:
        variable = _variables.get(name)
        if variable is None:
            variable = contextvars.ContextVar(name)
            _variables[name] = variable
            _names[variable] = name
            _made.add(name)
        return variable


def reduce(variable: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    """How code that uses a variable names it."""
    name = _names.get(variable)
    if name is None:
        raise TypeError(
            f"the context variable {variable.name!r} does not travel: call marline.propagate() with it"
        )
    try:
        return _named, (name, contextvars.Context().run(variable.get))
    except LookupError:
        return _named, (name,)


def _named(name: str, *default: Any) -> contextvars.ContextVar[Any]:
    """The variable that code names which came here."""
    if default and (name in _made or name not in _variables):
        with contextlib.suppress(ValueError):  # Another thread was quicker.
            return propagate(contextvars.ContextVar(name, default=default[0]))
    return _variable(name)
