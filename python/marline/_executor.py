"""Inside an executor: which code a name means, and running it."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import ctypes
import inspect
import logging
import os
import pickle
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from marline import _namespace, _native, _propagate, _runtime_env_here
from marline._errors import NotFoundError, TaskCancelledError
from marline._pickle import Need, can_read, incompatible
from marline._scope import current

_codes: dict[str, Any] = {}
_pickled: dict[str, tuple[bytes, int, bytes | None]] = {}
# What runs on threads other than the main one, and on the event loop, by the id of its task.
_threads: dict[str, int] = {}
_awaits: dict[str, asyncio.Task[Any]] = {}
_loop: asyncio.AbstractEventLoop | None = None
_main = 0

_make_record = logging.getLogRecordFactory()


class ActorExit(BaseException):
    """What ends an actor from inside."""


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


def _cancel_main(_number: int, _frame: object) -> None:
    """What runs on the main thread may be asked to stop; waiting for something ends with it."""
    if _native.is_to_stop():
        raise TaskCancelledError("the task was cancelled")


def code(name: str, pickled: bytes, version: int, environment: bytes | None) -> Any:
    """The function or class of this name. Its code comes once, with the environment that it is to be read in,
    and is read until that succeeds."""
    if name not in _codes:
        pickled, version, environment = _pickled.setdefault(name, (pickled, version, environment))
        if not can_read(version):
            raise incompatible(version, name)
        if environment is not None:
            _runtime_env_here.apply(environment)
        _codes[name] = pickle.loads(pickled)
        del _pickled[name]
    return _codes[name]


def find(name: str) -> Any:
    """The function or class of a name that came without code: ``python:package.module.function``."""
    if name not in _codes:
        path = name.partition(":")[2]
        try:
            found = pkgutil.resolve_name(path)
        except (AttributeError, ValueError) as error:
            raise NotFoundError(f"{path!r} is nothing that can be imported: {error}") from None
        # What is remote stands for what it was made of.
        _codes[name] = getattr(found, "__marline_remote__", found)
    return _codes[name]


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
        return _call(function, args, kwargs)
    # On a thread of its own, which signals do not reach.
    running = scope.running()
    task = running[1] if running else ""
    _threads[task] = threading.get_ident()
    try:
        return _call(function, args, kwargs)
    finally:
        _threads.pop(task, None)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = function(*args, **kwargs)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


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
    global _loop
    is_async = is_async_class(cls)
    if is_async:
        _loop = asyncio.new_event_loop()
        threading.Thread(target=_loop.run_forever, name="marline-asyncio", daemon=True).start()
        made = asyncio.run_coroutine_threadsafe(_make(cls, args, kwargs), _loop)
        return made.result(), True
    return cls(*args, **kwargs), False


async def _make(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return cls(*args, **kwargs)


def load(actor: Any, state: Any, is_async: bool) -> None:
    """An actor begins with what an earlier life of it saved."""
    if is_async:
        assert _loop is not None
        asyncio.run_coroutine_threadsafe(_load(actor, state), _loop).result()
    else:
        actor.load_checkpoint(state)


async def _load(actor: Any, state: Any) -> None:
    result = actor.load_checkpoint(state)
    if inspect.isawaitable(result):
        await result


def leave() -> None:
    """The actor has ended itself: what is to be done at the end is done."""
    atexit._run_exitfuncs()
    sys.stdout.flush()


def is_async_class(cls: type) -> bool:
    """Whether any method of a class is a coroutine."""
    return any(inspect.iscoroutinefunction(method) for _, method in inspect.getmembers(cls))


def begin(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    along: dict[str, Any] | None,
    end: _native.CallEnd,
) -> None:
    """Has the event loop run a method, with what came along."""
    assert _loop is not None
    scope = _native.Scope()
    _loop.call_soon_threadsafe(_start, method, args, kwargs, along, end, scope)


def _start(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    along: dict[str, Any] | None,
    end: _native.CallEnd,
    scope: _native.Scope,
) -> None:
    context = contextvars.copy_context()
    context.run(current.set, scope)
    if along is not None:
        context.run(_propagate.arrive, along)
    running = scope.running()
    task = asyncio.get_running_loop().create_task(_await(method, args, kwargs, end, scope), context=context)
    if running is not None:
        _awaits[running[1]] = task
        task.add_done_callback(lambda _: _awaits.pop(running[1], None))


async def _await(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    end: _native.CallEnd,
    scope: _native.Scope,
) -> None:
    try:
        result = method(*args, **kwargs)
        if inspect.isawaitable(result):
            result = await result
    except asyncio.CancelledError:
        scope.stop()
        end.fail(TaskCancelledError("the call was cancelled"))
        raise
    except BaseException as error:
        flush()
        end.fail(error)
    else:
        flush()
        end.finish(result)


def interrupt(task: str) -> None:
    """A task is to stop that does not run on the main thread."""
    # Once: what it does to end in good order is not disturbed when it is asked again.
    awaited, thread = _awaits.pop(task, None), _threads.pop(task, None)
    if awaited is not None and _loop is not None:
        _loop.call_soon_threadsafe(awaited.cancel)
    elif thread is not None:
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        raise_in(ctypes.c_ulong(thread), ctypes.py_object(TaskCancelledError))
