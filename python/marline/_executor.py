"""Inside an executor: which code a name means, and running it."""

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

from marline import _namespace, _native, _propagate
from marline._actor import is_async_class
from marline._errors import NotFoundError, TaskCancelledError
from marline._pickle import Need, can_read, code_key, incompatible
from marline._scope import current

# How to stop what runs on threads other than the main one, and on an event loop, by the id of its task.
stops: dict[str, Callable[[], object]] = {}
# The threads of those that have one.
_threads: dict[str, int] = {}
_main = 0

# An interrupt during an import waits for its end. The seconds between looks.
IMPORT_RECHECK = 0.005
# A thread waits to interrupt the main thread.
_interrupts_later = False

_make_record = logging.getLogRecordFactory()


def prepare() -> None:
    """Before anything runs here."""
    global _main
    _main = threading.get_ident()
    signal.signal(signal.SIGURG, _cancel_main)
    _native.look_around()  # What came along goes on.
    logging.setLogRecordFactory(_record)


def _record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    """A log record that says what it is about."""
    record = _make_record(*args, **kwargs)
    scope = current.get()
    running = scope.running() if scope is not None else None
    name, task, attempt, actor = running[:4] if running is not None else (None, None, None, None)
    record.marline_task = label(name) if name is not None else None
    record.marline_task_id, record.marline_attempt, record.marline_actor = task, attempt, actor
    return record


def label(name: str) -> str:
    """What a function is called by people: without where it runs, and which code it is."""
    return name.partition(":")[2].rpartition("#")[0] or name


def _cancel_main(_number: int, frame: types.FrameType | None) -> None:
    """Stops the task on the main thread, if it is to stop.

    An import is not interrupted: half of a module would stay in ``sys.modules``, and fail every later task
    that imports it. The worker kills a task that takes longer than its grace.
    """
    global _interrupts_later
    if not _imports(frame):
        if _native.is_to_stop():
            raise TaskCancelledError("the task was cancelled")
    elif not _interrupts_later:
        _interrupts_later = True
        # Unlike `threading.Thread`, it takes no lock that the interrupted code may hold.
        _thread.start_new_thread(_interrupt_after_import, ())


def _imports(frame: types.FrameType | None) -> bool:
    """Whether an import is under way."""
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
    _native.interrupt_main_thread()  # Its handler looks again: it may import something else by now.


def is_code_of(name: str, pickled: bytes) -> bool:
    """Whether this is the code whose key is at the end of the name."""
    _, _, key = name.rpartition("#")
    return not key or code_key(pickled) == key


def code(name: str, pickled: bytes, version: int, environment: bytes | None) -> Any:
    """Loads the function or class of this name, in the environment that came with its code."""
    if not can_read(version):
        raise incompatible(version, name)
    if environment is not None:
        from marline import _runtime_env_here

        _runtime_env_here.apply(environment)
    return pickle.loads(pickled)


def find(name: str) -> Any:
    """Imports the function or class of a name that came without code: ``python:package.module.function``."""
    import pkgutil

    path = name.partition(":")[2]
    try:
        found = pkgutil.resolve_name(path)
    except (AttributeError, ValueError) as error:
        raise NotFoundError(f"{path!r} is nothing that can be imported: {error}") from None
    # A remote function stands for the function that it was made of.
    return getattr(found, "__marline_remote__", found)


def fill(
    args: tuple[Any, ...], kwargs: dict[str, Any], values: list[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Puts values where they belong among the arguments."""
    whole = tuple(values[arg.index] if type(arg) is Need else arg for arg in args)
    named = {name: values[arg.index] if type(arg) is Need else arg for name, arg in kwargs.items()}
    return whole, named


def run(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], along: dict[str, Any] | None
) -> Any:
    """Calls a function or method of the user's, with what came along."""
    scope = _native.Scope()
    token = current.set(scope)
    try:
        if along is None:
            return _run(scope, function, args, kwargs)
        with _propagate.arrived(along):
            return _run(scope, function, args, kwargs)
    except TaskCancelledError:
        scope.stop()  # What it submitted after it was asked to stop, and before it heard of it.
        raise
    finally:
        current.reset(token)
        flush()


def stream(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    along: dict[str, Any] | None,
    items: _native.Items,
) -> None:
    """The same of one whose items are given as it yields them."""
    from marline._generator import give_all

    run(give_all, (items, function, args, kwargs), {}, along)


def collect(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], along: dict[str, Any] | None
) -> Any:
    """The same of one whose items are put, and given all together."""
    from marline._generator import collect

    return run(collect, (function, args, kwargs), {}, along)


def flush() -> None:
    """What was printed is the task's own, also a line without an end: it does not wait for the next task."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        return  # Whatever user code has put there.


def _run(
    scope: _native.Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if threading.get_ident() == _main:
        result = _call(function, args, kwargs)
        if scope.is_cancelled():  # During an import, perhaps: it was not interrupted there.
            _cancel_main(signal.SIGURG, None)
        return result
    # On a thread of its own, which signals do not reach.
    running = scope.running()
    task = running[1] if running else ""
    thread = threading.get_ident()
    _threads[task] = thread
    stops[task] = lambda: _cancel_thread(thread)
    try:
        if scope.is_cancelled():  # Before it could be reached.
            stop_here()
        result = _call(function, args, kwargs)
        if scope.is_cancelled():  # During an import, perhaps.
            stop_here()
        return result
    finally:
        stops.pop(task, None)
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
    """Ends this process, which is a fork of an executor; what it printed is kept."""
    flush()
    os._exit(0)


def show_gpus(gpus: list[int]) -> None:
    """What runs next, and nothing after it, was given these of those that this process sees."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = (seen[gpu] if gpu < len(seen) and seen[gpu] else str(gpu) for gpu in gpus)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)


def construct(
    cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], along: dict[str, Any] | None
) -> tuple[Any, bool]:
    """Makes an actor, with what came along; says whether its methods are coroutines."""
    _namespace.keep(along or {})
    with _propagate.arrived(along or {}):
        return _construct(cls, args, kwargs)


def _construct(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    if not is_async_class(cls):
        return cls(*args, **kwargs), False
    from marline import _executor_loop

    return _executor_loop.construct(cls, args, kwargs), True


def load(actor: Any, state: Any, is_async: bool) -> None:
    """An actor begins with what an earlier life of it saved."""
    if is_async:
        from marline import _executor_loop

        _executor_loop.load(actor, state)
    else:
        actor.load_checkpoint(state)


def leave() -> None:
    """The actor has ended itself: what is to be done at the end is done."""
    atexit._run_exitfuncs()
    sys.stdout.flush()


def stop_here() -> None:
    """What runs here is to stop, and has seen it by itself. Raises that, so that nothing is raised while it
    ends in good order; returns if somebody else is about to."""
    scope = current.get()
    running = scope.running() if scope is not None else None
    if threading.get_ident() == _main:
        _native.is_to_stop()
    elif running is not None and stops.pop(running[1], None) is None:
        return
    raise TaskCancelledError("the task was cancelled")


def interrupt(task: str) -> None:
    """A task is to stop that does not run on the main thread. Imports are not interrupted."""
    while (thread := _threads.get(task)) is not None and _imports(sys._current_frames().get(thread)):
        time.sleep(IMPORT_RECHECK)
    # Once: what it does to end in good order is not disturbed when it is asked again.
    stop = stops.pop(task, None)
    if stop is not None:
        stop()
