"""What an exception of user code is to others: words, a traceback, and itself if it travels."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

from marline import _error_chain
from marline._errors import TaskError, name_of_class, of_user_code

# The longest text of an exception that travels; what is longer loses its middle.
MAX_TEXT = 20_000
# So many classes that an exception is one of are told.
MAX_BASES = 64

_FOLDER = os.path.dirname(__file__)
# What calls user code in an executor: its traceback begins below that.
_CALLERS = ("_executor.py", "_executor_loop.py", "_propagate.py")


def describe(error: BaseException) -> tuple[str, str, str, tuple[bytes, int] | None]:
    """What an exception of user code is to others; called by the native module."""
    class_name, message = _words(error)
    _leave_out_our_frames(error)
    if isinstance(error, ModuleNotFoundError):
        message += _where_from(error)
    return class_name, message, _traceback(error), _pickled(error)


def _leave_out_our_frames(error: BaseException) -> None:
    """How user code was called is no news to its author."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None and _is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    error.__traceback__ = frame


def _is_ours(file: str) -> bool:
    return os.path.dirname(file) == _FOLDER and os.path.basename(file) in _CALLERS


def bases(error: BaseException) -> list[str]:
    """The classes that an exception is one of; called by the native module. What retries those retries it."""
    return [name_of_class(cls) for cls in type(error).__mro__[1:-1][:MAX_BASES]]


def _words(error: BaseException) -> tuple[str, str]:
    """The class of an exception, and its text."""
    cls = type(error)
    class_name = name_of_class(cls)
    if isinstance(error, TaskError) and cls is not TaskError:
        return class_name, error._marline_parts[0]  # The rest of its text is in the text of its traceback.
    try:
        return class_name, _cut(str(error))
    except BaseException as problem:  # Whatever it is, it is not how the task ended.
        return class_name, f"(its text could not be made: {type(problem).__name__})"


def _traceback(error: BaseException) -> str:
    """How it came to an exception, as text."""
    text = traceback.TracebackException.from_exception(error)
    _leave_out_repeats(text, error)
    return _cut("".join(text.format()))


def _own_traceback(error: BaseException) -> str | None:
    """The same without what belongs to it, if something does."""
    is_group = isinstance(error, BaseExceptionGroup)
    if error.__cause__ is None and error.__context__ is None and not is_group:
        return None
    text = traceback.TracebackException.from_exception(error)
    if is_group:
        text.exceptions = None
    return _cut("".join(text.format(chain=False)))


def _leave_out_repeats(text: traceback.TracebackException, error: BaseException) -> None:
    """What came from elsewhere has the text of what belongs to it in its own."""
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
    """How a module that is missing comes to where it is."""
    return (
        f" (in an executor on {os.uname().nodename}). If it is code of yours, send it along: "
        'runtime_env={"working_dir": FOLDER} or {"py_modules": [PATH]}; if not, install it in the Python '
        f"that workers run, {sys.executable}"
    )


def _pickled(error: BaseException) -> tuple[bytes, int] | None:
    return _error_chain.dumps(error, _own_traceback(error), _stand_in)


def _stand_in(error: BaseException) -> BaseException:
    """What is said of an exception that belongs to another, and cannot be pickled."""
    text = _cut("".join(traceback.format_exception(error, chain=False)))
    class_name, message = _words(error)
    return of_user_code(message, class_name, text, None)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[-half:]}"
