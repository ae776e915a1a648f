"""The native module of the package, written in Rust (`crates/python`).

Private: import from `marline`.
"""

import pickle
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn, Self, TypeVar, final

_T = TypeVar("_T")

# Resources: `num_cpus`, `num_gpus`, `memory`, `resources`.
_Amounts = dict[str, Any]
# The number of results; for a stream, how many items may wait to be taken; whether all items come
# in one result; whether large results are durable.
_Returns = tuple[int, int | None, bool, bool]
# `max_retries`, `retry_exceptions`, `timeout`, `preemptible`, `durable`.
_TaskLifeOptions = dict[str, Any]
# `max_restarts`, `max_task_retries`, `max_concurrency`, `max_pending_calls`, `detached`,
# `get_if_exists`, `preemptible`, `idle_ttl`, `saves`, `checkpoint_every`, `checkpoint_interval`.
_ActorLifeOptions = dict[str, Any]
# The limits of an object store: `object_store_memory`, `object_spilling_directory`.
_StoreLimits = dict[str, Any]

VERSION: str
DEFAULT_MAX_UNCONSUMED: int
MAX_INTERFACE_BYTES: int
MAX_RETURNS: int
MAX_UNCONSUMED: int

__all__ = [
    "DEFAULT_MAX_UNCONSUMED",
    "MAX_INTERFACE_BYTES",
    "MAX_RETURNS",
    "MAX_UNCONSUMED",
    "VERSION",
    "Actor",
    "ActorOptions",
    "CallCompletion",
    "CodeScope",
    "Completions",
    "ContainedReferences",
    "ErrorParts",
    "Function",
    "ItemSender",
    "ObjectRef",
    "ObjectRefGenerator",
    "Output",
    "OutputPiece",
    "RunningWork",
    "Session",
    "SharedBytes",
    "StatusClient",
    "TaskOptions",
    "UnreadNotice",
    "about_to_fork",
    "available_cpus",
    "buffer_callback",
    "enable_submit_context",
    "forked",
    "interrupt_main_thread",
    "pickle_with_references",
    "serve",
    "sweep",
    "take_cancellation",
]

@final
class ObjectRef:
    """A reference to an object: the result of a task or call, or a value that was put.

    Pass it to tasks and calls, or read its value with `marline.get()` or `await`.
    """

    def hex(self) -> str:
        """Returns the object's id as text, as logs and the command line show it."""

    def task_id(self) -> str:
        """Returns the id of the task or call that makes the value, or the id made for a put."""

    def done(self) -> bool:
        """Returns whether the value, or its error, has come."""

    def future(self) -> Future[Any]:
        """Returns a `concurrent.futures.Future` for the value."""

    def _value(self) -> Any: ...
    def _value_if_local(self) -> tuple[Any] | None: ...
    @staticmethod
    def _load(origin: Sequence[int], index: int, session: Session | None = None) -> ObjectRef: ...
    def __await__(self) -> Generator[Any, None, Any]: ...
    def __hash__(self) -> int: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: Any, /) -> Self: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class ObjectRefGenerator:
    """An iterator of references to the items of work with `num_returns="streaming"`, in order.

    Each reference comes as soon as its value has come. `async for` works, too. Closing the iterator
    cancels the task.
    """

    def __iter__(self) -> Self: ...
    def __next__(self) -> ObjectRef: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, ObjectRef]: ...
    def close(self) -> None:
        """Cancels the task, and releases the items that were not taken.

        References that were taken stay valid.
        """

    def task_id(self) -> str:
        """Returns the id of the task that yields the items."""

    def _take(self) -> tuple[ObjectRef | None, bool]: ...
    def _cancel(self, force: bool, alone: bool) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class ItemSender:
    """Encodes and sends the items of a generator."""

    def send_and_wait(self, value: Any) -> bool: ...
    def send(self, value: Any) -> None: ...
    def has_room(self) -> bool: ...
    def is_stopped(self) -> bool: ...

@final
class Session:
    """A membership of this process in a cluster, which is embedded or runs elsewhere."""

    @property
    def number(self) -> int: ...
    @staticmethod
    def embed(
        address: str,
        amounts: _Amounts,
        command: list[str],
        setup: str,
        shows_output: bool,
        store: _StoreLimits,
    ) -> Session: ...
    @staticmethod
    def join(address: str | None, token: str | None) -> Session: ...
    @staticmethod
    def find_local_cluster(address: str | None) -> tuple[str, str] | None: ...
    def output(self) -> Output: ...
    def set_namespace(self, namespace: str) -> None: ...
    def owns(self, reference: ObjectRef) -> bool: ...
    def print_unread_failures(self) -> None: ...
    def close_unread(self, with_held: bool) -> None: ...
    def may_lag(self) -> bool: ...
    def shutdown(self) -> None: ...
    def put(self, value: Any, durable: bool = False) -> ObjectRef: ...
    def put_raw(
        self,
        data: bytes,
        code_version: int = 0,
        environment: bytes | None = None,
        packages: Sequence[ObjectRef] = ...,
        references: ContainedReferences | None = None,
    ) -> ObjectRef: ...
    @staticmethod
    def get(references: Sequence[ObjectRef], timeout: float | None) -> list[Any]: ...
    @staticmethod
    def wait(
        references: Sequence[ObjectRef], count: int, timeout: float | None, fetch_local: bool
    ) -> list[bool]: ...
    @staticmethod
    def cancel(reference: ObjectRef, force: bool, alone: bool) -> None: ...
    def create_actor(
        self,
        class_: Function,
        options: ActorOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        interface: bytes,
    ) -> Actor: ...
    def find_actor(self, namespace: str, name: str, is_plain: bool) -> tuple[Actor, bytes]: ...

@final
class ContainedReferences:
    """The references inside pickled code."""

    def __len__(self) -> int: ...

@final
class SharedBytes:
    """Bytes of a large value, read in place. They cannot be written."""

    def __len__(self) -> int: ...

@final
class StatusClient:
    """A client for questions about the cluster."""

    def __new__(cls, address: str, token: str | None) -> StatusClient: ...
    def resources(self) -> tuple[dict[str, float], dict[str, float]]: ...
    def kept(self) -> tuple[int, int]: ...
    def workers(self) -> list[dict[str, Any]]: ...
    def stores(self) -> list[dict[str, Any]]: ...
    def named_actors(self) -> list[tuple[str, str]]: ...
    def actor(self, id: str) -> dict[str, Any]: ...
    def actor_named(self, namespace: str, name: str) -> dict[str, Any]: ...
    def actors(self) -> list[dict[str, Any]]: ...

@final
class Function:
    """A function or a class: its name, its code, and how it runs."""

    def __new__(
        cls, runtime: str, label: str, key: str, code: ObjectRef, options: TaskOptions, returns: _Returns
    ) -> Function: ...
    @staticmethod
    def named(name: str, options: TaskOptions) -> Function: ...
    def submit(self, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

@final
class Actor:
    """A handle to an actor."""

    @property
    def id(self) -> str: ...
    @property
    def session(self) -> Session: ...
    def set_class_name(self, class_: str) -> None: ...
    def call(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        returns: _Returns,
        timeout: float | None = None,
    ) -> Any: ...
    def end(self, *, restart: bool) -> None: ...
    @staticmethod
    def _load(id: Sequence[int], is_plain: bool) -> Actor: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: Any, /) -> Self: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class TaskOptions:
    """How a task runs."""

    def __new__(
        cls,
        amounts: _Amounts,
        life_options: _TaskLifeOptions,
    ) -> TaskOptions: ...

@final
class ActorOptions:
    """How an actor runs, its name and its namespace."""

    def __new__(
        cls,
        placement: _Amounts,
        amounts: _Amounts,
        life_options: _ActorLifeOptions,
        name: str | None,
        namespace: str,
    ) -> ActorOptions: ...

@final
class Completions:
    """The queue of one waiter: the tokens of the values, items and ends that have arrived."""

    def __new__(cls) -> Completions: ...
    def fileno(self) -> int: ...
    def notify_value(self, reference: ObjectRef, token: int) -> None: ...
    def value(self, reference: ObjectRef, token: int) -> tuple[Any] | None: ...
    def forget(self, token: int) -> None: ...
    def notify_item(self, generator: ObjectRefGenerator, token: int) -> None: ...
    def notify_room(self, items: ItemSender, token: int) -> None: ...
    def notify_scope_end(self, scope: CodeScope, token: int) -> None: ...
    def take(self) -> list[int]: ...

@final
class Output:
    """The output of this driver's work."""

    def take(self, timeout: float | None) -> list[OutputPiece] | None: ...

@final
class CodeScope:
    """A scope of user code: the task or call on this thread, or a `with` block inside it."""

    def __new__(cls) -> CodeScope: ...
    @staticmethod
    def inside(outer: CodeScope | None) -> CodeScope:
        """Makes a scope inside `outer`, or one that no scope encloses."""

    def end(self) -> None:
        """Cancels submitted work that has not ended, and all work that is submitted in it later."""

    def cancel_if_recursive(self) -> None:
        """Cancels submitted work that has not ended, if the task's cancel includes that work.

        Work that is submitted later goes on.
        """

    def wait(self, timeout: float) -> int:
        """Waits until all submitted work has ended. Returns how many have not ended in time."""

    def is_cancelled(self) -> bool:
        """Returns whether the task or call was cancelled."""

    def unfinished(self) -> int:
        """Returns how many of the submitted tasks and calls have not ended."""

    def running(self) -> RunningWork | None:
        """Returns the description of the task or call; `None` outside of one."""

    def seconds_left(self) -> float | None:
        """Returns the seconds until the deadline of the task, if it has one."""

@final
class RunningWork:
    """A running task or call."""

    @property
    def name(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def actor(self) -> str | None: ...
    @property
    def actor_epoch(self) -> int | None: ...
    @property
    def gpus(self) -> list[int]: ...

@final
class ErrorParts:
    """The parts of an error, from which Python makes the exception."""

    @property
    def kind(self) -> str: ...
    @property
    def may_have_run(self) -> bool: ...
    @property
    def message(self) -> str: ...
    @property
    def class_name(self) -> str | None: ...
    @property
    def remote_traceback(self) -> str | None: ...
    @property
    def pickled(self) -> tuple[bytes, int] | None: ...
    @property
    def cause(self) -> BaseException | None: ...
    @property
    def is_value_gone(self) -> bool: ...
    @property
    def is_out_of_memory(self) -> bool: ...

@final
class OutputPiece:
    """A piece of output of remote work."""

    @property
    def name(self) -> str: ...
    @property
    def hostname(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def is_error(self) -> bool: ...
    @property
    def text(self) -> str | None: ...
    @property
    def dropped(self) -> int: ...
    @property
    def missed(self) -> int: ...
    @property
    def log(self) -> str: ...

@final
class UnreadNotice:
    """The contents of the line about a failure whose error was never read."""

    @property
    def what(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def class_name(self) -> str | None: ...
    @property
    def message(self) -> str: ...
    @property
    def is_value_gone(self) -> bool: ...
    @property
    def is_out_of_memory(self) -> bool: ...

@final
class CallCompletion:
    """Reports the outcome of a call that was started on the event loop."""

    def finish(self, result: Any) -> None: ...
    def fail(self, error: BaseException) -> None: ...

def serve(variable: str) -> None: ...
def interrupt_main_thread() -> None: ...
def take_cancellation() -> bool: ...
def pickle_with_references(dumps: Callable[[], _T]) -> tuple[_T, ContainedReferences]: ...
def available_cpus() -> int: ...
def enable_submit_context() -> None: ...
def about_to_fork() -> None: ...
def forked() -> None: ...
def buffer_callback(buffer: pickle.PickleBuffer) -> bool: ...
def sweep() -> None: ...
