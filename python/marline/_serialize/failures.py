"""Describes an exception of user code for other processes."""

from __future__ import annotations

import os
import sys
import traceback
import types
from typing import Any

from marline._api.errors import TaskError, name_of_class, of_user_code
from marline._serialize import error_chains

# The longest text of an exception that travels, in characters. A longer text loses its middle.
MAX_TEXT = 20_000
# The most base classes of an exception that travel.
MAX_BASES = 64

# The folder of the package, with a slash.
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
# Folders of modules that are between our frames and user code: event loops, futures and
# cloudpickle.
_BETWEEN = ("asyncio", "futures", "cloudpickle")
# Our modules that call user code, or describe how it failed. A traceback that ends in one of them
# says nothing that the message does not say: a call had the wrong arguments, or a value could not
# be pickled or did not come.
_CALLERS = {
    "_api/generators.py",
    "_api/map.py",
    "_engines/engine.py",
    "_engines/in_process.py",
    "_engines/thread_job.py",
    "_engines/actor_mailbox.py",
    "_engines/on_cluster.py",
    "_engines/on_threads.py",
    "_engines/local_run.py",
    "_executor/event_loop.py",
    "_executor/runner.py",
    "_serialize/pickling.py",
    "_session/sessions.py",
}


def describe(error: BaseException) -> tuple[str, str, str, tuple[bytes, int] | None]:
    """Describes an exception: class, message, traceback, and its pickle if it has one.

    Called by the native module.
    """
    class_name, message = _words(error)
    _leave_out_our_frames(error)
    if isinstance(error, ModuleNotFoundError):
        message += _where_from(error)
    return class_name, message, _traceback(error), _pickled(error)


def _leave_out_our_frames(error: BaseException) -> None:
    """Removes the frames of Marline that called the user code."""
    left: BaseException | None = error
    while left is not None:
        left.__traceback__ = _of_user_code(left.__traceback__)
        # An error about a value that cannot be pickled has a cause, which begins in our code, too.
        left = left.__cause__ if left.__traceback__ is None else None


def _of_user_code(frame: types.TracebackType | None) -> types.TracebackType | None:
    """Returns the traceback from the first frame of user code on."""
    last = frame
    while frame is not None and (_is_ours(_file(frame)) or _folder(frame) in _BETWEEN):
        last, frame = frame, frame.tb_next
    if frame is None and last is not None and _file(last).removeprefix(_PACKAGE) not in _CALLERS:
        return last  # No user code, and not one of `_CALLERS`: a bug of ours, which is not hidden.
    return frame


def _file(frame: types.TracebackType) -> str:
    return frame.tb_frame.f_code.co_filename


def _folder(frame: types.TracebackType) -> str:
    return os.path.basename(os.path.dirname(_file(frame)))


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE)


def bases(error: BaseException) -> list[str]:
    """Returns the names of the base classes of an exception, for ``retry_exceptions``.

    Called by the native module.
    """
    return [name_of_class(cls) for cls in type(error).__mro__[1:-1][:MAX_BASES]]


def _words(error: BaseException) -> tuple[str, str]:
    """Returns the name of the exception's class, and its text."""
    cls = type(error)
    class_name = name_of_class(cls)
    if isinstance(error, TaskError) and cls is not TaskError:
        return class_name, error._marline_parts[0]  # Its text without the traceback.
    try:
        return class_name, _cut(str(error))
    except BaseException as problem:  # An error in `__str__` must not hide the error of the task.
        return class_name, f"(its text could not be made: {type(problem).__name__})"


def _traceback(error: BaseException) -> str:
    """Returns the traceback as text; empty if there is nothing to say besides the message."""
    if not _has_more(error):
        return ""
    text = traceback.TracebackException.from_exception(error)
    _leave_out_repeats(text, error)
    return _cut("".join(text.format()))


def _has_more(error: BaseException) -> bool:
    context = None if error.__suppress_context__ else error.__context__
    return _has_lines(error) or error.__cause__ is not None or context is not None


def _has_lines(error: BaseException) -> bool:
    """Returns whether the traceback says where the exception was raised."""
    # A syntax error has its own line, even without frames.
    return error.__traceback__ is not None or isinstance(error, BaseExceptionGroup | SyntaxError)


def _own_traceback(error: BaseException) -> str | None:
    """Returns the traceback of the exception alone, without its chain.

    ``None`` if it has no chain.
    """
    is_group = isinstance(error, BaseExceptionGroup)
    if error.__cause__ is None and error.__context__ is None and not is_group:
        return None
    if not _has_lines(error):
        return ""
    text = traceback.TracebackException.from_exception(error)
    if is_group:
        text.exceptions = None
    return _cut("".join(text.format(chain=False)))


def _leave_out_repeats(text: traceback.TracebackException, error: BaseException) -> None:
    """Removes causes and contexts whose text is already in that of an exception from elsewhere."""
    if isinstance(error, TaskError):
        links: Any = getattr(error, "_marline_links", {})
        if error.__cause__ is links.get("__cause__"):
            text.__cause__ = None
        if error.__context__ is links.get("__context__"):
            text.__context__ = None
    for part, other in ((text.__cause__, error.__cause__), (text.__context__, error.__context__)):
        if part is not None and other is not None:
            _leave_out_repeats(part, other)


def _where_from(error: ModuleNotFoundError) -> str:
    """Returns a hint how to bring a missing module to the executor."""
    return (
        f" (in an executor on {os.uname().nodename}). If it is code of yours, send it along: "
        'runtime_env={"working_dir": FOLDER} or {"py_modules": [PATH]}; if not, install it in the Python '
        f"that workers run, {sys.executable}"
    )


def _pickled(error: BaseException) -> tuple[bytes, int] | None:
    return error_chains.dumps(error, _own_traceback(error), _stand_in)


def _stand_in(error: BaseException) -> BaseException:
    """Returns a replacement for an exception of a chain that cannot be pickled."""
    text = _cut("".join(traceback.format_exception(error, chain=False)))
    class_name, message = _words(error)
    return of_user_code(message, class_name, text, None)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[-half:]}"
