"""What there is in the cluster, and what user code can know of itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from marline import _namespace, _session
from marline._option_values import checked_returns
from marline._scope import current

F = TypeVar("F", bound=Callable[..., Any])


def cluster_resources() -> dict[str, float]:
    """What all workers offer together.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     marline.cluster_resources()
    {'CPU': 2.0}
    """
    total: dict[str, float] = _session.status().resources()[0]
    return total


def available_resources() -> dict[str, float]:
    """What is free now.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     marline.available_resources()
    {'CPU': 2.0}
    """
    free: dict[str, float] = _session.status().resources()[1]
    return free


def nodes() -> list[dict[str, Any]]:
    """The workers. Of each: ``NodeID``, ``Alive``, ``NodeManagerHostname``, ``NodeManagerAddress``, ``Pid``,
    ``Resources`` and ``Available``.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     [(node["Alive"], node["Resources"]) for node in marline.nodes()]
    [(True, {'CPU': 2.0})]
    """
    return _session.status().workers()


def object_stores() -> list[dict[str, Any]]:
    """How full the workers' stores of large values are, in bytes. Of each: ``worker_id``, ``hostname``,
    ``pid``, ``limit``, ``used``, ``spilled`` (what is on the disk) and ``written`` (what went there in all).
    A worker that cannot be asked is left out.

    >>> import marline
    >>> with marline.init(num_cpus=2, object_store_memory=100_000_000):
    ...     value = marline.put(bytes(1_000_000))
    ...     [(store["limit"], store["used"] > 1_000_000) for store in marline.object_stores()]
    [(100000000, True)]
    """
    return _session.status().stores()


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """The names of actors that live: of this driver's namespace, or of all of them.

    >>> import marline, collections
    >>> with marline.init(num_cpus=2):
    ...     counter = marline.remote(name="the counter")(collections.Counter).remote()
    ...     print(marline.list_named_actors(), marline.list_named_actors(all_namespaces=True))
    ['the counter'] [{'namespace': 'default', 'name': 'the counter'}]
    """
    named = _session.status().named_actors()
    if all_namespaces:
        return [{"namespace": namespace, "name": name} for namespace, name in named]
    here = _namespace.current()
    return [name for namespace, name in named if namespace == here]


@dataclasses.dataclass(frozen=True)
class RuntimeContext:
    """What user code can know of itself while it runs. Outside of tasks and actors there is nothing but the
    namespace."""

    #: The task or call.
    task_id: str | None = None
    #: Which try at it: a fencing token for effects outside Marline.
    attempt: int | None = None
    #: The actor it runs in.
    actor_id: str | None = None
    #: The epoch of that actor: a fencing token too.
    actor_epoch: int | None = None
    #: The GPUs it was given.
    gpu_ids: tuple[int, ...] = ()
    #: The seconds it has left, if it has a ``timeout``; what it submits has no more.
    deadline: float | None = None
    #: Where names of actors count, unless one is said: the driver's.
    namespace: str = _namespace.DEFAULT

    def get_task_id(self) -> str | None:
        """The task or call."""
        return self.task_id

    def get_actor_id(self) -> str | None:
        """The actor it runs in."""
        return self.actor_id

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the actor lives for the second time, or later."""
        return (self.actor_epoch or 1) > 1


def get_runtime_context() -> RuntimeContext:
    """What is known of the task or call that runs here.

    >>> import marline
    >>> @marline.remote
    ... def attempt():
    ...     return marline.get_runtime_context().attempt
    >>> with marline.init(num_cpus=2):
    ...     marline.get(attempt.remote())
    1
    """
    scope = current.get()
    running = scope.running() if scope is not None else None
    if scope is None or running is None:
        return RuntimeContext(namespace=_namespace.current())
    _, task, attempt, actor, epoch, gpus = running
    return RuntimeContext(task, attempt, actor, epoch, tuple(gpus), scope.left(), _namespace.current())


def method(
    *, num_returns: int | str = 1, max_unconsumed: int | None = None, durable: bool = False
) -> Callable[[F], F]:
    """Options of a method of an actor: how many values it returns, or ``"streaming"``, or ``"dynamic"``;
    whether large ones are to outlive their node.

    >>> import marline
    >>> @marline.remote
    ... class Clerk:
    ...     @marline.method(num_returns=2)
    ...     def pair(self):
    ...         return "a", "b"
    >>> with marline.init(num_cpus=2):
    ...     first, second = Clerk.remote().pair.remote()
    ...     marline.get(second)
    'b'
    """
    returns = checked_returns(num_returns, max_unconsumed, durable)

    def mark(function: F) -> F:
        function.__marline_returns__ = returns  # type: ignore[attr-defined]
        return function

    return mark
