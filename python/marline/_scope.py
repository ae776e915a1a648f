"""Where user code is, and what work that is submitted there has from it: the task or call that runs, and each
``with marline.scope()`` in it."""

from __future__ import annotations

import contextlib
import contextvars
from types import TracebackType
from typing import Any

from marline import _native, _propagate

# The innermost one.
current: contextvars.ContextVar[_native.Scope | None] = contextvars.ContextVar("marline", default=None)

# The seconds in which what was cancelled ends: it is killed after 5 if it does not stop.
PATIENCE = 10.0


def around() -> tuple[dict[str, Any] | None, _native.Scope | None]:
    """What surrounds what is submitted here; called by the native module."""
    return _propagate.values(), current.get()


class Scope:
    """What :func:`scope` returns, for ``with`` and ``async with``; it can be used once at a time."""

    def __init__(self) -> None:
        self._entered: tuple[_native.Scope, contextvars.Token[_native.Scope | None]] | None = None

    def _enter(self) -> Scope:
        if self._entered is not None:
            raise RuntimeError("this scope is entered already: make another one with marline.scope()")
        _native.look_around()
        scope = _native.Scope.inside(current.get())
        self._entered = scope, current.set(scope)
        return self

    def _leave(self) -> _native.Scope:
        assert self._entered is not None
        (scope, token), self._entered = self._entered, None
        with contextlib.suppress(ValueError):  # A generator may be left in another context.
            current.reset(token)
        return scope

    def __enter__(self) -> Scope:
        return self._enter()

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        scope = self._leave()
        if error is not None:
            scope.end()
            _note(error, scope.wait(PATIENCE))

    async def __aenter__(self) -> Scope:
        return self._enter()

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        import asyncio

        from marline._aio import wait_for_end

        scope = self._leave()
        if error is not None:
            scope.end()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await wait_for_end(scope)
            _note(error, scope.unfinished())


def _note(error: BaseException, unfinished: int) -> None:
    if unfinished:
        error.add_note(f"{unfinished} of what the scope submitted did not end within {PATIENCE:.0f} s")


def scope() -> Scope:
    """What is submitted in ``with marline.scope():`` does not outlive a failure; so with ``async with``.

    If an exception leaves the block (also ``KeyboardInterrupt`` or ``asyncio.CancelledError``), tasks and
    calls that were submitted inside are cancelled and waited for, and the exception goes on. If the block
    ends without one, nothing is cancelled and nothing is waited for. Actors that were created inside live on.

    What coroutines submit that were started inside counts; what other threads submit does not. A method that
    does not stop when it is cancelled goes on in its actor: only tasks are killed.

    >>> import marline
    >>> @marline.remote
    ... def square(x):
    ...     return x * x
    >>> with marline.init(num_cpus=2), marline.scope():
    ...     marline.get([square.remote(x) for x in range(4)])
    [0, 1, 4, 9]
    """
    return Scope()
