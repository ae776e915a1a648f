"""``put``, ``get``, ``wait`` and ``cancel``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from marline import _native
from marline._api.errors import UnsupportedError
from marline._api.option_values import checked_flag
from marline._api.references import check_get, check_limit, references
from marline._native import ObjectRef, ObjectRefGenerator
from marline._session import sessions

if TYPE_CHECKING:
    from marline._engines.engine import ContextFuture


def put(value: Any, *, durable: bool = False) -> ObjectRef:
    """Puts a value into the cluster, and returns a reference to it.

    This process sends the value once, no matter how many tasks use it. A value above 100 KiB is lost
    with the last node that has it, unless it is ``durable``: then ``put`` first saves it in a folder
    that all nodes see (``marline worker --durable-dir``). A smaller value is with the controller and
    is lost only with it. Raises ``TypeError`` if the value cannot be pickled.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     numbers = marline.put([1, 2, 3])
    ...     marline.get([marline.remote(sum).remote(numbers), marline.remote(max).remote(numbers)])
    [6, 3]
    """
    if isinstance(value, ObjectRef):
        raise TypeError("put() of a reference: pass the reference itself")
    return sessions.current().native.put(value, checked_flag("durable", durable))


@overload
def get(refs: ObjectRef, *, timeout: float | None = None) -> Any: ...


@overload
def get(refs: Sequence[ObjectRef], *, timeout: float | None = None) -> list[Any]: ...


def get(refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = None) -> Any:
    """Waits for the values of references, and returns them.

    ``refs`` is a reference or a list of references. For a list, returns a list of values. If a task
    has failed, raises its exception. After ``timeout`` seconds, raises a ``GetTimeoutError``.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     marline.get(marline.remote(abs).remote(-1))
    ...     marline.get([marline.remote(abs).remote(n) for n in (-2, -3)], timeout=60)
    1
    [2, 3]
    """
    try:
        if type(refs) is ObjectRef:
            return _native.Session.get([refs], timeout)[0]
        return _native.Session.get(refs, timeout)
    except TypeError:
        check_get(refs, timeout)
        raise  # The arguments are right: a task has failed with this TypeError.


def wait(
    refs: Sequence[ObjectRef],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Waits until ``num_returns`` values are ready, at most ``timeout`` seconds.

    Returns two lists: ``num_returns`` references whose values are ready (fewer after a timeout), and
    the others. A value is ready when it is on this node: ``wait`` pulls large values from other
    nodes. With ``fetch_local=False`` nothing is pulled, and a value is ready as soon as it exists.
    The result of a failed task counts as ready.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     refs = [marline.remote(abs).remote(n) for n in (-1, -2, -3)]
    ...     while refs:
    ...         ready, refs = marline.wait(refs)
    ...         print(len(ready), len(refs))
    1 2
    1 1
    1 0
    """
    refs = references("wait", refs)
    if not refs and num_returns == 1:
        return [], []  # A loop over the references that `wait` returns ends like this.
    if not hasattr(num_returns, "__index__"):
        raise TypeError(f"num_returns must be a whole number, not {num_returns!r}")
    if not 1 <= num_returns <= len(refs):
        raise ValueError(f"num_returns is {num_returns}, there are {len(refs)} references")
    if not isinstance(fetch_local, bool):
        raise TypeError(f"fetch_local must be True or False, not {fetch_local!r}")
    if len(set(refs)) != len(refs):
        raise ValueError("wait() got a reference twice")
    try:
        done = _native.Session.wait(refs, num_returns, timeout, fetch_local)
    except TypeError:
        check_limit(timeout)
        raise
    ready = [ref for ref, is_done in zip(refs, done, strict=True) if is_done][:num_returns]
    chosen = set(ready)
    return ready, [ref for ref in refs if ref not in chosen]


def cancel(
    ref: ObjectRef | ObjectRefGenerator | ContextFuture, *, force: bool = False, recursive: bool = True
) -> None:
    """Cancels a task or call: its references fail with ``TaskCancelledError``.

    ``TaskCancelledError`` is raised in the running code. Work that the task has submitted is
    cancelled, too, unless ``recursive`` is false. ``force`` kills the process of a task at once. It
    cannot be combined with ``recursive=False``. Values that are ready stay.

    >>> import marline, time
    >>> with marline.init(num_cpus=2):
    ...     nap = marline.remote(time.sleep).remote(600)
    ...     marline.cancel(nap)
    ...     try:
    ...         marline.get(nap)
    ...     except marline.TaskCancelledError:
    ...         print("cancelled")
    cancelled
    """
    if not isinstance(ref, ObjectRef | ObjectRefGenerator):
        from marline._engines.engine import ContextFuture

        if isinstance(ref, ContextFuture):
            ref.cancel(force=force, recursive=recursive)
            return
        raise TypeError(f"cancel() takes one reference, not {type(ref).__name__}{_stops(ref)}")
    if force and not recursive:
        raise UnsupportedError(
            "recursive=False needs force=False: force=True kills the process of the task, and the work that "
            "the task has submitted ends with it"
        )
    if isinstance(ref, ObjectRefGenerator):
        ref._cancel(force, not recursive)
    else:
        _native.Session.cancel(ref, force, not recursive)


def _stops(thing: Any) -> str:
    """Returns a hint for an error message: the function that ends ``thing``."""
    return ": an actor is ended with kill()" if hasattr(thing, "_actor") else ""
