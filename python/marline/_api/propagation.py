"""Context variables that travel: they have the same values where work is submitted and runs.

A context variable cannot be pickled. It travels by its name, which is registered on both sides. A
value whose variable is not registered yet in this process is set on a variable made here. So the
value travels on with further work, and goes to the real variable when that is registered.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from marline import _native
from marline._session import namespaces

T = TypeVar("T")

#: The trace of the running task or call as W3C headers (``traceparent``, ``tracestate``), if there
#: is one.
trace_context: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar(
    "marline.trace_context", default=None
)

_lock = threading.Lock()
_variables: dict[str, contextvars.ContextVar[Any]] = {trace_context.name: trace_context}
_names: dict[contextvars.ContextVar[Any], str] = {trace_context: trace_context.name}
# Names that came before their variable was registered. Their variables were made here.
_made: set[str] = set()
# The variables that are reset when the running call ends, with their tokens.
_Undo = list[tuple[contextvars.ContextVar[Any], contextvars.Token[Any]]]
_undo: contextvars.ContextVar[_Undo | None] = contextvars.ContextVar("marline_undo", default=None)
_UNSET: Any = object()


def propagate(variable: contextvars.ContextVar[T], *, name: str | None = None) -> contextvars.ContextVar[T]:
    """Lets a context variable travel into tasks and calls with the value that it has at submission.

    Returns the variable. It travels under its own name, or under ``name``; a name that another
    variable uses is a ``ValueError``. In a module that executors import, call this at module level,
    so that executors call it, too. A variable of ``__main__`` travels with the code that uses it.

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
    _native.enable_submit_context()
    return variable


def outgoing_values(namespace: str | None = None) -> dict[str, Any] | None:
    """Returns the values that travel with submitted work, by name; ``None`` if there are none.

    ``namespace``: that of the driver's session, if it has set one.
    """
    context_values = {}
    for name, variable in tuple(_variables.items()):
        value = variable.get(_UNSET)
        if value is not _UNSET:
            context_values[name] = value
    trace = _current_trace()
    if trace is not None:
        context_values[trace_context.name] = trace
    namespace = namespace or namespaces.to_send()
    if namespace is not None:
        context_values[namespaces.KEY] = namespace
    return context_values or None


def _current_trace() -> dict[str, str] | None:
    """Returns the headers of the current span, if this process uses OpenTelemetry."""
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
def apply_values(context_values: Mapping[str, Any]) -> Iterator[None]:
    """Sets the values that came with a call, inside a ``with`` block."""
    undo: _Undo = []
    own = _undo.set(undo)
    detach = None
    try:
        detach = set_values(context_values)
        with namespaces.set_for_task(context_values):
            yield
    finally:
        if detach is not None:
            from opentelemetry import context

            context.detach(detach)
        for variable, token in reversed(undo):
            # A variable that was set in a copy of this context cannot be reset here, and need not
            # be.
            with contextlib.suppress(ValueError):
                variable.reset(token)
        _undo.reset(own)


def set_values(context_values: Mapping[str, Any]) -> Any:
    """Sets the values in the current context.

    Returns the token that detaches the trace, if there is one.
    """
    for name, value in context_values.items():
        if name != namespaces.KEY:  # The namespace belongs to the process, not to the context.
            _set(_variable(name), value)
    headers = context_values.get(trace_context.name)
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
    """Returns the variable of a name. Makes one if none is registered."""
    with _lock:
        variable = _variables.get(name)
        if variable is None:
            variable = contextvars.ContextVar(name)
            _variables[name] = variable
            _names[variable] = name
            _made.add(name)
        return variable


def reduce(variable: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    """Pickles a variable as its name and its default, for code that uses it."""
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
    """Unpickles a variable: returns the one registered under the name, or registers a new one."""
    if default and (name in _made or name not in _variables):
        with contextlib.suppress(ValueError):  # Another thread was faster.
            return propagate(contextvars.ContextVar(name, default=default[0]))
    return _variable(name)
