"""The exceptions of Marline: one class for each way in which a caller may react.

It also maps errors of the native module, and exceptions of user code, to these classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marline import _native


class MarlineError(Exception):
    """The base of all errors of Marline.

    ``may_have_run`` says whether the failed work may have run. If it is false, submitting the work
    again runs it at most once.
    """

    may_have_run: bool = False


class GetTimeoutError(MarlineError, TimeoutError):
    """A timeout has passed."""


class TaskCancelledError(MarlineError):
    """The task was cancelled."""


class NotReadyError(MarlineError):
    """The value has not come yet."""


class NotFoundError(MarlineError, ValueError):
    """Nothing has this name or id."""


class AlreadyExistsError(MarlineError, ValueError):
    """The name is taken already."""


class WorkerLostError(MarlineError):
    """A worker, or another part of the cluster, was lost. Trying again may help."""


class ClusterUnavailableError(WorkerLostError, ConnectionError):
    """No cluster could be joined: none runs at the address, or it cannot be reached."""


class ActorUnavailableError(WorkerLostError):
    """The actor cannot be reached now. Trying again may help."""


class ObjectLostError(MarlineError):
    """The value is lost for good."""


class ActorDiedError(MarlineError):
    """The actor is dead for good."""


class FencedError(MarlineError):
    """The session of this process has ended: the cluster ignores what it sends."""


class TaskError(MarlineError):
    """User code has raised an exception.

    The error is also an instance of the exception's own class.

    So ``except ValueError`` catches a ``ValueError`` of a task, too.
    """

    #: The full name of the exception's class, where it was raised.
    class_name: str = ""
    #: The traceback of the exception, as text.
    remote_traceback: str = ""
    # The arguments of `of_user_code`, from which it is made again when it is unpickled.
    _marline_parts: tuple[str, str, str, tuple[bytes, int] | None] = ("", "", "", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return of_user_code, self._marline_parts


class RuntimeEnvError(MarlineError):
    """The runtime environment of the work could not be set up on its machine."""


class TooLargeError(MarlineError, ValueError):
    """A value, a package or a message is larger than its limit."""


class ExhaustedError(MarlineError):
    """A limit that the message names is reached, or a resource is used up."""


class OutOfMemoryError(ExhaustedError):
    """The memory was not enough."""


class UnsupportedError(MarlineError, NotImplementedError):
    """The operation is not supported here."""


class InvalidError(MarlineError, ValueError):
    """An argument or option is invalid."""


class IncompatibleError(MarlineError):
    """Two parts have versions that do not fit together."""


class DeniedError(MarlineError, PermissionError):
    """The token is missing or wrong, or the operation is not allowed."""


class InternalError(MarlineError):
    """A bug in Marline itself."""


_KINDS: dict[str, type[MarlineError]] = {
    "timeout": GetTimeoutError,
    "cancelled": TaskCancelledError,
    "not_ready": NotReadyError,
    "not_found": NotFoundError,
    "already_exists": AlreadyExistsError,
    "unavailable": WorkerLostError,
    "gone": ActorDiedError,
    "fenced": FencedError,
    "failed": TaskError,
    "too_large": TooLargeError,
    "exhausted": ExhaustedError,
    "unsupported": UnsupportedError,
    "invalid": InvalidError,
    "incompatible": IncompatibleError,
    "denied": DeniedError,
    "internal": InternalError,
}


def name_of_class(cls: type) -> str:
    """Returns the name by which other processes know a class of exceptions."""
    # A class that is defined in a function and was pickled by value has lost the name of the
    # function.
    name = cls.__qualname__.rpartition("<locals>.")[2]
    return name if cls.__module__ == "builtins" else f"{cls.__module__}.{name}"


def class_of(kind: str, is_value_gone: bool, is_out_of_memory: bool) -> type[MarlineError]:
    """Returns the class of the exception that stands for an error of this kind."""
    cls = _KINDS.get(kind, InternalError)
    if is_value_gone and cls is ActorDiedError:
        return ObjectLostError
    if is_out_of_memory and cls is ExhaustedError:
        return OutOfMemoryError
    return cls


def make(parts: _native.ErrorParts) -> BaseException:
    """Returns the exception that stands for an error. Called by the native module."""
    if isinstance(parts.cause, TaskError):
        return parts.cause  # Work fails with the error of the argument that it needs.
    if parts.kind == "failed":
        return of_user_code(
            parts.message, parts.class_name or "", parts.remote_traceback or "", parts.pickled
        )
    error = class_of(parts.kind, parts.is_value_gone, parts.is_out_of_memory)(parts.message)
    error.may_have_run = parts.may_have_run
    error.__cause__ = parts.cause
    return error


def of_user_code(
    message: str, class_name: str, remote_traceback: str, pickled: tuple[bytes, int] | None
) -> BaseException:
    """Returns the exception that stands for an exception of user code in another process."""
    from marline._serialize import error_chains, pickling

    error = None
    if pickled is not None and pickling.can_read(pickled[1]):
        try:
            original, own_traceback = error_chains.loads(pickled[0])
            text = remote_traceback if own_traceback is None else own_traceback
            error = _as_task_error(original, _text(message, text))
        except BaseException:
            error = None
    if error is None:
        text = _text(message, remote_traceback)
        error = TaskError(f"{class_name}: {text}" if class_name else text)
    error_chains.note_links(error)
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
    """Returns the exception that stands for an exception of user code in this process.

    That is the exception itself if possible, with its traceback.
    """
    if isinstance(error, TaskError):
        return error
    frames = error.__traceback__
    if isinstance(error, MarlineError):
        import copy

        error = copy.copy(error)  # Another task may have the same error object.
    task_error = _as_task_error(error, message)
    if task_error is None:
        task_error = of_user_code(message, class_name, remote_traceback, None)
        task_error.__cause__ = error
    task_error.__traceback__ = frames
    task_error._marline_parts = message, class_name, remote_traceback, pickled
    task_error.class_name = class_name
    task_error.remote_traceback = remote_traceback
    task_error.may_have_run = True
    return task_error  # type: ignore[no-any-return]


def _text(message: str, traceback: str) -> str:
    if not traceback:
        return message
    return f"{message}\n\nThe traceback, where it was raised:\n{traceback}".rstrip()


_made: dict[type[BaseException], type[Any]] = {}


def _both(cls: type[BaseException]) -> type[Any]:
    """Returns the class that derives from both `cls` and `TaskError`.

    It is made once for each `cls`.
    """
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
    """Returns the same exception as an instance of its own class and of `TaskError`, or `None`."""
    if not isinstance(original, Exception) or isinstance(original, StopIteration | StopAsyncIteration):
        return None  # Raised again, these would end a loop of the caller. Futures reject them.
    try:
        original._marline_text = text  # type: ignore[attr-defined]
        if not isinstance(original, TaskError):
            original.__class__ = _both(type(original))
        return original
    except (TypeError, AttributeError):
        # The memory layout of its class does not allow another class: make it again, as pickle
        # does.
        try:
            reduced: Any = original.__reduce_ex__(5)
            error = _both(type(original))(*reduced[1])
            if len(reduced) > 2 and reduced[2]:
                error.__setstate__(reduced[2])
            error.__cause__, error.__context__ = original.__cause__, original.__context__
            # Setting the cause has changed this.
            error.__suppress_context__ = original.__suppress_context__
            error._marline_text = text
            return error
        except Exception:
            return None
