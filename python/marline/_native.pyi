"""The native module. Private: users import from `marline`."""

import pickle
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn, Self, TypeVar, final

_T = TypeVar("_T")

# `num_cpus`, `num_gpus`, `memory`, `resources`.
_Amounts = dict[str, Any]
# How many results, how many items may wait, whether all items come in one result.
_Returns = tuple[int, int | None, bool, bool]
# `max_restarts`, `max_task_retries`, `max_concurrency`, `max_pending_calls`, `detached`, `get_if_exists`,
# `preemptible`, `idle_ttl`.
_Terms = dict[str, Any]
# The name, the host, the pid, whether it is of standard error, the lines if there are any, how many were
# dropped, how many were missed, and the id that their log has.
_Piece = tuple[str, str, int, bool, str | None, int, int, str]
# A failure that nobody read: of a task, call or actor; its name; the kind of the error, the class of the
# exception if user code raised it, the message; whether a value is gone, whether memory ran short.
_Unread = tuple[str, str, str, str | None, str, bool, bool]

VERSION: str

__all__ = [
    "VERSION",
    "Actor",
    "ActorOptions",
    "CallEnd",
    "Completions",
    "Function",
    "Items",
    "ObjectRef",
    "ObjectRefGenerator",
    "Output",
    "Scope",
    "Session",
    "SharedBytes",
    "Status",
    "TaskOptions",
    "Things",
    "about_to_fork",
    "available_cpus",
    "forked",
    "interrupt_main_thread",
    "is_to_stop",
    "look_around",
    "met_buffer",
    "noting",
    "serve",
    "sweep",
]

@final
class ObjectRef:
    """A reference to a value: the result of a task, or what was put. Pass it to tasks, or get its value."""

    def hex(self) -> str:
        """The id, as it is printed elsewhere."""

    def task_id(self) -> str:
        """The id of the task that makes it."""

    def done(self) -> bool:
        """Whether its value has come."""

    def future(self) -> Future[Any]:
        """A future of `concurrent.futures` for its value."""

    def _value(self) -> Any: ...
    def _at_once(self) -> tuple[Any] | None: ...
    @staticmethod
    def _load(origin: Sequence[int], index: int) -> ObjectRef: ...
    def __await__(self) -> Generator[Any, None, Any]: ...
    def __hash__(self) -> int: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: Any, /) -> Self: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class ObjectRefGenerator:
    """What a task or call with `num_returns="streaming"` gives: an iterator of references to its items, in
    order, each as soon as its value has come. With `async for` as well. Closing it cancels the task."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> ObjectRef: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, ObjectRef]: ...
    def close(self) -> None:
        """Wants no more: the task is cancelled, and what was not taken is let go. What was taken stays."""

    def task_id(self) -> str:
        """The id of the task that makes the items."""

    def _take(self) -> tuple[ObjectRef | None, bool]: ...
    def _cancel(self, force: bool, alone: bool) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Items:
    """Where a generator's items go."""

    def give(self, value: Any) -> bool: ...
    def send(self, value: Any) -> None: ...
    def has_room(self) -> bool: ...
    def is_stopped(self) -> bool: ...

@final
class Session:
    """A process's membership in a cluster: its own, embedded one, or one elsewhere."""

    @property
    def number(self) -> int: ...
    @staticmethod
    def embed(
        address: str,
        amounts: _Amounts,
        command: list[str],
        setup: str,
        shows_output: bool,
        store: tuple[int | None, str | None],
    ) -> Session: ...
    @staticmethod
    def join(address: str | None, token: str | None) -> Session: ...
    @staticmethod
    def here(address: str | None) -> tuple[str, str] | None: ...
    def output(self) -> Output: ...
    def report_unread(self) -> None: ...
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
        things: Things | None = None,
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
class Things:
    """What the references name that something pickled has in it."""

    def __len__(self) -> int: ...

@final
class SharedBytes:
    """Bytes of a large value, which can be read and not written for as long as anything is made of them."""

    def __len__(self) -> int: ...

@final
class Status:
    """Whom to ask about the cluster."""

    def __new__(cls, address: str, token: str | None) -> Status: ...
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
    def is_a(self, class_: str) -> None: ...
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
        max_retries: int,
        retry_exceptions: bool | list[str],
        timeout: float | None,
        preemptible: bool,
        durable: bool,
    ) -> TaskOptions: ...

@final
class ActorOptions:
    """How an actor lives."""

    def __new__(
        cls, placement: _Amounts, amounts: _Amounts, terms: _Terms, name: str | None, namespace: str
    ) -> ActorOptions: ...

@final
class Completions:
    """What came for one event loop."""

    def __new__(cls) -> Completions: ...
    def fileno(self) -> int: ...
    def expect(self, reference: ObjectRef, token: int) -> None: ...
    def value(self, reference: ObjectRef, token: int) -> tuple[Any] | None: ...
    def forget(self, token: int) -> None: ...
    def expect_item(self, generator: ObjectRefGenerator, token: int) -> None: ...
    def expect_room(self, items: Items, token: int) -> None: ...
    def expect_end(self, scope: Scope, token: int) -> None: ...
    def take(self) -> list[int]: ...

@final
class Output:
    """What a driver's work prints."""

    def take(self, timeout: float | None) -> list[_Piece] | None: ...

@final
class Scope:
    """A stretch of user code: the task or call that runs on this thread, or a part of it."""

    def __new__(cls) -> Scope: ...
    @staticmethod
    def inside(outer: Scope | None) -> Scope:
        """One inside another, or inside nothing."""

    def end(self) -> None:
        """Cancels what was submitted in it and has not ended, and what is from now on."""

    def stop(self) -> None:
        """The same if the task or call was asked to stop, and not alone; what is submitted later stays."""

    def wait(self, timeout: float) -> int:
        """Waits until all that was submitted in it has ended; how many have not in time."""

    def is_cancelled(self) -> bool:
        """Whether the task or call is to stop."""

    def unfinished(self) -> int:
        """How much of what was submitted in it has not ended."""

    def running(self) -> tuple[str, str, int, str | None, int | None, list[int]] | None:
        """The name of what runs, the task, its attempt, the actor and its epoch, the GPUs."""

    def left(self) -> float | None:
        """The seconds that it has left."""

@final
class CallEnd:
    """Who is told how a call ended that was begun."""

    def finish(self, result: Any) -> None: ...
    def fail(self, error: BaseException) -> None: ...

def serve(variable: str) -> None: ...
def interrupt_main_thread() -> None: ...
def is_to_stop() -> bool: ...
def noting(dumps: Callable[[], _T]) -> tuple[_T, Things]: ...
def available_cpus() -> int: ...
def look_around() -> None: ...
def about_to_fork() -> None: ...
def forked() -> None: ...
def met_buffer(buffer: pickle.PickleBuffer) -> bool: ...
def sweep() -> None: ...
