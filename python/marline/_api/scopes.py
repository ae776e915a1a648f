"""Scopes of user code: the running task or call, and each ``with marline.scope():`` in it.

The native side is ``scope.rs``. A submission asks this module for its scope and context variables.
"""

from __future__ import annotations

import contextlib
import contextvars
from types import TracebackType
from typing import Any

from marline import _native
from marline._api import propagation

# The innermost scope of the running code.
current_scope: contextvars.ContextVar[_native.CodeScope | None] = contextvars.ContextVar(
    "marline", default=None
)

# How long a scope waits for its cancelled work, in seconds. A task that does not stop is killed
# after 5.
PATIENCE = 10.0


def submit_context(namespace: str | None) -> tuple[dict[str, Any] | None, _native.CodeScope | None]:
    """Returns the context variables that travel with a submission, and its scope.

    ``namespace``: that of the session, if it has set one. Called by the native module.
    """
    return propagation.outgoing_values(namespace), current_scope.get()


class Scope:
    """The context manager that :func:`scope` returns, for ``with`` and ``async with``.

    It cannot be entered again while it is entered.
    """

    def __init__(self) -> None:
        self._entered: tuple[_native.CodeScope, contextvars.Token[_native.CodeScope | None]] | None = None

    def _enter(self) -> Scope:
        if self._entered is not None:
            raise RuntimeError("this scope is entered already: make another one with marline.scope()")
        _native.enable_submit_context()
        scope = _native.CodeScope.inside(current_scope.get())
        self._entered = scope, current_scope.set(scope)
        return self

    def _leave(self) -> _native.CodeScope:
        assert self._entered is not None
        (scope, token), self._entered = self._entered, None
        with contextlib.suppress(ValueError):  # A generator may be closed in another context.
            current_scope.reset(token)
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

        from marline._concurrent.aio import wait_for_end

        scope = self._leave()
        if error is not None:
            scope.end()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await wait_for_end(scope)
            _note(error, scope.unfinished())


def _note(error: BaseException, unfinished: int) -> None:
    if unfinished:
        error.add_note(
            f"{unfinished} tasks or calls that the scope submitted did not end within {PATIENCE:.0f} s"
        )


def scope() -> Scope:
    """Returns a context manager that cancels the work submitted inside it if the block fails.

    Use it as ``with marline.scope():`` or ``async with marline.scope():``. If an exception leaves
    the block (also ``KeyboardInterrupt`` or ``asyncio.CancelledError``), the tasks and calls that
    were submitted inside are cancelled. The block waits for them, up to 10 s, and the exception
    goes on. If the block ends without an exception, nothing is cancelled or waited for. Actors that
    were created inside live on.

    Work that is submitted by coroutines which were started inside counts; work of other threads
    does not. A task that does not stop is killed. A method that does not stop goes on in its actor.

    >>> import marline
    >>> @marline.remote
    ... def square(x):
    ...     return x * x
    >>> with marline.init(num_cpus=2), marline.scope():
    ...     marline.get([square.remote(x) for x in range(4)])
    [0, 1, 4, 9]
    """
    return Scope()
