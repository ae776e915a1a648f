"""What can go wrong: one exception for each thing that a caller may do differently."""

from __future__ import annotations

from typing import Any


class MarlineError(Exception):
    """Every error of Marline.

    ``may_have_run`` says whether the work it speaks of may have run: if not, doing it again does it once.
    """

    may_have_run: bool = False


class GetTimeoutError(MarlineError, TimeoutError):
    """The time was over."""


class TaskCancelledError(MarlineError):
    """The task was cancelled."""


class NotReadyError(MarlineError):
    """It has not finished yet."""


class NotFoundError(MarlineError, ValueError):
    """There is no such thing."""


class AlreadyExistsError(MarlineError, ValueError):
    """The name is taken."""


class WorkerLostError(MarlineError):
    """A part of the cluster went away. Trying again may help."""


class ClusterUnavailableError(WorkerLostError, ConnectionError):
    """No cluster could be joined: none runs there, or it cannot be reached."""


class ActorUnavailableError(WorkerLostError):
    """The actor cannot be reached now. Trying again may help."""


class ObjectLostError(MarlineError):
    """The value is gone for good."""


class ActorDiedError(MarlineError):
    """The actor is gone for good."""


class FencedError(MarlineError):
    """This process's session is over; what it says changes nothing."""


class TaskError(MarlineError):
    """User code failed. The exception is an instance of its own class, too."""

    #: The class of the exception, as it was where it was raised.
    class_name: str = ""
    #: The traceback, as text.
    remote_traceback: str = ""
    # What it was made from, and is made from again when it is pickled.
    _marline_parts: tuple[str, str, str, tuple[bytes, int] | None] = ("", "", "", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return of_user_code, self._marline_parts


class RuntimeEnvError(MarlineError):
    """The environment in which work was to run could not be made."""


class TooLargeError(MarlineError, ValueError):
    """Larger than a limit."""


class ExhaustedError(MarlineError):
    """A limit is reached, which the message names, or there is not enough of something."""


class OutOfMemoryError(ExhaustedError):
    """There was not enough memory."""


class UnsupportedError(MarlineError, NotImplementedError):
    """Not possible here."""


class InvalidError(MarlineError, ValueError):
    """It makes no sense."""


class IncompatibleError(MarlineError):
    """Another version."""


class DeniedError(MarlineError, PermissionError):
    """It is not allowed."""


class InternalError(MarlineError):
    """A fault of Marline itself."""


_KINDS: dict[str, type[MarlineError]] = {
    "Timeout": GetTimeoutError,
    "Cancelled": TaskCancelledError,
    "NotReady": NotReadyError,
    "NotFound": NotFoundError,
    "AlreadyExists": AlreadyExistsError,
    "Unavailable": WorkerLostError,
    "Gone": ActorDiedError,
    "Fenced": FencedError,
    "Failed": TaskError,
    "TooLarge": TooLargeError,
    "Exhausted": ExhaustedError,
    "Unsupported": UnsupportedError,
    "Invalid": InvalidError,
    "Incompatible": IncompatibleError,
    "Denied": DeniedError,
    "Internal": InternalError,
}


def name_of_class(cls: type) -> str:
    """What a class of exceptions is called elsewhere."""
    # A class of a function's own that came by value has forgotten whose it was.
    name = cls.__qualname__.rpartition("<locals>.")[2]
    return name if cls.__module__ == "builtins" else f"{cls.__module__}.{name}"


def class_of(kind: str, is_value_gone: bool, is_out_of_memory: bool) -> type[MarlineError]:
    """The class of the exception that stands for an error of this kind."""
    cls = _KINDS.get(kind, InternalError)
    if is_value_gone and cls is ActorDiedError:
        return ObjectLostError
    if is_out_of_memory and cls is ExhaustedError:
        return OutOfMemoryError
    return cls


def make(
    kind: str,
    may_have_run: bool,
    message: str,
    class_name: str | None,
    remote_traceback: str | None,
    pickled: tuple[bytes, int] | None,
    cause: BaseException | None,
    is_value_gone: bool = False,
    is_out_of_memory: bool = False,
) -> BaseException:
    """The exception that stands for an error; called by the native module."""
    if isinstance(cause, TaskError):
        return cause  # A task fails as what it depends on did.
    if kind == "Failed":
        return of_user_code(message, class_name or "", remote_traceback or "", pickled)
    error = class_of(kind, is_value_gone, is_out_of_memory)(message)
    error.may_have_run = may_have_run
    error.__cause__ = cause
    return error


def of_user_code(
    message: str, class_name: str, remote_traceback: str, pickled: tuple[bytes, int] | None
) -> BaseException:
    """The exception that stands for one of user code."""
    from marline import _error_chain, _pickle

    error = None
    if pickled is not None and _pickle.can_read(pickled[1]):
        try:
            original, own_traceback = _error_chain.loads(pickled[0])
            text = remote_traceback if own_traceback is None else own_traceback
            error = _as_task_error(original, _text(message, text))
        except BaseException:
            error = None
    if error is None:
        text = _text(message, remote_traceback)
        error = TaskError(f"{class_name}: {text}" if class_name else text)
    _error_chain.note_links(error)
    error._marline_parts = message, class_name, remote_traceback, pickled
    error.class_name = class_name
    error.remote_traceback = remote_traceback
    error.may_have_run = True
    return error


def in_this_process(
    error: BaseException,
    class_name: str,
    message: str,
    remote_traceback: str,
    pickled: tuple[bytes, int] | None,
) -> BaseException:
    """The exception that stands for one of user code which ran in this process: itself if possible, with its
    traceback."""
    if isinstance(error, TaskError):
        return error
    frames = error.__traceback__
    if isinstance(error, MarlineError):
        import copy

        error = copy.copy(error)  # It may be the error of another task, too.
    made = _as_task_error(error, message)
    if made is None:
        made = of_user_code(message, class_name, remote_traceback, None)
        made.__cause__ = error
    made.__traceback__ = frames
    made._marline_parts = message, class_name, remote_traceback, pickled
    made.class_name = class_name
    made.remote_traceback = remote_traceback
    made.may_have_run = True
    return made  # type: ignore[no-any-return]


def _text(message: str, traceback: str) -> str:
    if not traceback:
        return message
    return f"{message}\n\nThe traceback, where it was raised:\n{traceback}".rstrip()


_made: dict[type[BaseException], type[Any]] = {}


def _both(cls: type[BaseException]) -> type[Any]:
    """A class that is both `cls` and a TaskError; the same one each time."""
    if cls in _made:
        return _made[cls]

    def text(self: Any) -> str:
        return str(self._marline_text)

    names = {
        "__reduce__": TaskError.__reduce__,
        "__str__": text,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    return _made.setdefault(cls, type(cls.__name__, (cls, TaskError), names))


def _as_task_error(original: BaseException, text: str) -> Any:
    """The same exception, as an instance of its own class and of TaskError."""
    if not isinstance(original, Exception) or isinstance(original, StopIteration | StopAsyncIteration):
        return None  # These end loops where they are raised, and may not be raised into futures.
    try:
        original._marline_text = text  # type: ignore[attr-defined]
        if not isinstance(original, TaskError):
            original.__class__ = _both(type(original))
        return original
    except (TypeError, AttributeError):
        # Its instances are laid out in a way that cannot be extended: made anew, as pickle does it.
        try:
            reduced: Any = original.__reduce_ex__(5)
            error = _both(type(original))(*reduced[1])
            if len(reduced) > 2 and reduced[2]:
                error.__setstate__(reduced[2])
            error.__cause__, error.__context__ = original.__cause__, original.__context__
            error.__suppress_context__ = original.__suppress_context__  # Setting the cause has set it.
            error._marline_text = text
            return error
        except Exception:
            return None
