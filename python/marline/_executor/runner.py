"""Inside an executor: loads the code of functions and classes, runs it, and cancels it.

The native module (``executor.rs``) calls the functions of this file by name. Actors with coroutines
run in ``_executor.event_loop``.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import pickle
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

from marline import _native
from marline._api import propagation
from marline._api.actors import is_async_class
from marline._api.errors import NotFoundError, TaskCancelledError
from marline._api.scopes import current_scope
from marline._serialize.pickling import ArgumentSlot, can_read, code_key, incompatible
from marline._session import namespaces

# Cancels the code of a task or call that runs beside the main thread, on another thread or an event
# loop. By the id of the task.
cancel_callbacks: dict[str, Callable[[], object]] = {}
# The threads that tasks and calls run on, other than the main thread, by the id of the task.
_threads: dict[str, int] = {}
_main = 0

# An interrupt waits until an import has ended. The seconds between checks.
IMPORT_RECHECK = 0.005
# Whether a thread waits to interrupt the main thread after an import.
_interrupts_later = False

_make_record = logging.getLogRecordFactory()


def prepare() -> None:
    """Prepares this process for running user code. Called once, on the main thread."""
    global _main
    _main = threading.get_ident()
    signal.signal(signal.SIGURG, _cancel_main)
    # Context variables that came with the work travel on with what it submits.
    _native.enable_submit_context()
    logging.setLogRecordFactory(_record)


def _record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    """Makes a log record with the task, attempt and actor that logs it."""
    record = _make_record(*args, **kwargs)
    scope = current_scope.get()
    running = scope.running() if scope is not None else None
    record.marline_task = None if running is None else label(running.name)
    record.marline_task_id = None if running is None else running.task
    record.marline_attempt = None if running is None else running.attempt
    record.marline_actor = None if running is None else running.actor
    return record


def label(name: str) -> str:
    """Returns the readable part of a function's name, without its runtime and hash."""
    return name.partition(":")[2].rpartition("#")[0] or name


def _cancel_main(_number: int, frame: types.FrameType | None) -> None:
    """The handler of SIGURG: raises ``TaskCancelledError`` if the main thread's task was cancelled.

    An import is not interrupted: half of a module would stay in ``sys.modules``, and every later
    task that imports it would fail. The worker kills a task that does not end within the grace
    period.
    """
    global _interrupts_later
    if not _imports(frame):
        if _native.take_cancellation():
            raise TaskCancelledError("the task was cancelled")
    elif not _interrupts_later:
        _interrupts_later = True
        # Not `threading.Thread`: that takes a lock which the interrupted code may hold.
        _thread.start_new_thread(_interrupt_after_import, ())


def _imports(frame: types.FrameType | None) -> bool:
    """Returns whether an import is running in the stack of this frame."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _interrupt_after_import() -> None:
    global _interrupts_later
    while _imports(sys._current_frames().get(_main)):
        time.sleep(IMPORT_RECHECK)
    _interrupts_later = False
    _native.interrupt_main_thread()  # The handler checks again: another import may have started.


def is_code_of(name: str, pickled: bytes) -> bool:
    """Returns whether ``pickled`` is the complete code for the key at the end of the name."""
    _, _, key = name.rpartition("#")
    return not key or code_key(pickled) == key


def load_code(name: str, pickled: bytes, version: int, environment: bytes | None) -> Any:
    """Loads a function or class, in the runtime environment that came with its code."""
    if not can_read(version):
        raise incompatible(version, name)
    if environment is not None:
        from marline._environment import apply

        apply.apply(environment)
    return pickle.loads(pickled)


def import_by_name(name: str) -> Any:
    """Imports a function or class that came without code: ``python:package.module.function``."""
    import pkgutil

    path = name.partition(":")[2]
    try:
        found = pkgutil.resolve_name(path)
    except (AttributeError, ValueError) as error:
        raise NotFoundError(f"{path!r} cannot be imported: {error}") from None
    # A remote function stands for its plain function.
    return getattr(found, "__marline_remote__", found)


def fill_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], values: list[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Puts the values of references into their slots among the arguments."""
    whole = tuple(values[arg.index] if type(arg) is ArgumentSlot else arg for arg in args)
    named = {name: values[arg.index] if type(arg) is ArgumentSlot else arg for name, arg in kwargs.items()}
    return whole, named


def run(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context_values: dict[str, Any] | None,
) -> Any:
    """Calls user code, with the context variables that travelled with the work."""
    scope = _native.CodeScope()
    token = current_scope.set(scope)
    try:
        if context_values is None:
            return _run(scope, function, args, kwargs)
        with propagation.apply_values(context_values):
            return _run(scope, function, args, kwargs)
    except TaskCancelledError:
        # The task may have submitted work between its cancellation and this exception.
        scope.cancel_if_recursive()
        raise
    finally:
        current_scope.reset(token)
        flush()


def stream(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context_values: dict[str, Any] | None,
    items: _native.ItemSender,
) -> None:
    """Calls a function or method, and sends its items as it yields them."""
    from marline._api.generators import send_all

    run(send_all, (items, function, args, kwargs), {}, context_values)


def collect(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context_values: dict[str, Any] | None,
    durable: bool,
) -> Any:
    """Calls a function or method, puts its items, and returns their references in one result."""
    from marline._api.generators import collect

    return run(collect, (function, args, kwargs, durable), {}, context_values)


def flush() -> None:
    """Writes out what the task has printed, even an unfinished line, before the next task
    prints."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        return  # User code may have replaced the streams by any object.


def _run(
    scope: _native.CodeScope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if threading.get_ident() == _main:
        result = _call(function, args, kwargs)
        if scope.is_cancelled():  # Perhaps during an import, which was not interrupted.
            _cancel_main(signal.SIGURG, None)
        return result
    # On another thread, which signals do not reach.
    running = scope.running()
    task = "" if running is None else running.task
    thread = threading.get_ident()
    _threads[task] = thread
    cancel_callbacks[task] = lambda: _cancel_thread(thread)
    try:
        if scope.is_cancelled():  # Before the callback was registered.
            stop_here()
        result = _call(function, args, kwargs)
        if scope.is_cancelled():  # Perhaps during an import.
            stop_here()
        return result
    finally:
        cancel_callbacks.pop(task, None)
        _threads.pop(task, None)


def _cancel_thread(thread: int) -> None:
    import ctypes

    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    raise_in(ctypes.c_ulong(thread), ctypes.py_object(TaskCancelledError))


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = function(*args, **kwargs)
    if not isinstance(result, types.CoroutineType):
        return result
    import asyncio

    return asyncio.run(result)


def end_fork() -> None:
    """Ends this process, a fork that user code made, after writing out what it has printed."""
    flush()
    os._exit(0)


def show_gpus(gpus: list[int]) -> None:
    """Shows only these of the visible GPUs to the next work. No other work runs here after it."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = (seen[gpu] if gpu < len(seen) and seen[gpu] else str(gpu) for gpu in gpus)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)


def construct(
    cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], context_values: dict[str, Any] | None
) -> tuple[Any, bool]:
    """Makes the object of an actor. Returns it, and whether the class has coroutine methods."""
    namespaces.set_for_actor(context_values or {})
    with propagation.apply_values(context_values or {}):
        return _construct(cls, args, kwargs)


def _construct(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    if not is_async_class(cls):
        return cls(*args, **kwargs), False
    from marline._executor import event_loop

    return event_loop.construct(cls, args, kwargs), True


def load_checkpoint(actor: Any, state: Any, is_async: bool) -> None:
    """Loads the state that an earlier instance has saved into the object of an actor."""
    if is_async:
        from marline._executor import event_loop

        event_loop.load_checkpoint(actor, state)
    else:
        actor.load_checkpoint(state)


def run_exit_handlers() -> None:
    """Runs the functions that were registered with ``atexit``: the actor has ended itself."""
    atexit._run_exitfuncs()
    sys.stdout.flush()


def stop_here() -> None:
    """Raises ``TaskCancelledError`` in code that has noticed its cancellation by itself.

    After that, no other thread raises it again while the code cleans up. Returns if another thread
    is about to raise it.
    """
    scope = current_scope.get()
    running = scope.running() if scope is not None else None
    if threading.get_ident() == _main:
        _native.take_cancellation()
    elif running is not None and cancel_callbacks.pop(running.task, None) is None:
        return
    raise TaskCancelledError("the task was cancelled")


def interrupt(task: str) -> None:
    """Cancels a task or call that does not run on the main thread.

    Waits for the end of an import first.
    """
    while (thread := _threads.get(task)) is not None and _imports(sys._current_frames().get(thread)):
        time.sleep(IMPORT_RECHECK)
    # Removed, so that a second cancellation does not interrupt the code while it cleans up.
    stop = cancel_callbacks.pop(task, None)
    if stop is not None:
        stop()
