"""Questions about the cluster, and about the task or call that runs this code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from marline._api.option_values import checked_returns
from marline._api.scopes import current_scope
from marline._session import namespaces, sessions

F = TypeVar("F", bound=Callable[..., Any])


def cluster_resources() -> dict[str, float]:
    """Returns the resources of all workers together.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     marline.cluster_resources()
    {'CPU': 2.0}
    """
    total: dict[str, float] = sessions.current().status().resources()[0]
    return total


def available_resources() -> dict[str, float]:
    """Returns the resources of all workers that are free now.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     marline.available_resources()
    {'CPU': 2.0}
    """
    free: dict[str, float] = sessions.current().status().resources()[1]
    return free


def nodes() -> list[dict[str, Any]]:
    """Returns the workers, a dict for each.

    The keys are ``NodeID``, ``Alive``, ``NodeManagerHostname``, ``NodeManagerAddress``, ``Pid``,
    ``Resources`` and ``Available``.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     [(node["Alive"], node["Resources"]) for node in marline.nodes()]
    [(True, {'CPU': 2.0})]
    """
    return sessions.current().status().workers()


def object_stores() -> list[dict[str, Any]]:
    """Returns how full the object stores of the workers are, a dict for each worker.

    The keys are ``worker_id``, ``hostname``, ``pid``, and in bytes: ``limit``, ``used``,
    ``spilled`` (on the disk now) and ``written`` (written to the disk in all). A worker that does
    not answer is left out.

    >>> import marline
    >>> with marline.init(num_cpus=2, object_store_memory=100_000_000):
    ...     value = marline.put(bytes(1_000_000))
    ...     [(store["limit"], store["used"] > 1_000_000) for store in marline.object_stores()]
    [(100000000, True)]
    """
    return sessions.current().status().stores()


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Returns the names of the living actors in the driver's namespace.

    With ``all_namespaces`` it returns a dict with ``namespace`` and ``name`` for each actor of all
    namespaces.

    >>> import marline, collections
    >>> with marline.init(num_cpus=2):
    ...     counter = marline.remote(name="the counter")(collections.Counter).remote()
    ...     print(marline.list_named_actors(), marline.list_named_actors(all_namespaces=True))
    ['the counter'] [{'namespace': 'default', 'name': 'the counter'}]
    """
    named = sessions.current().status().named_actors()
    if all_namespaces:
        return [{"namespace": namespace, "name": name} for namespace, name in named]
    here = sessions.current().namespace
    return [name for namespace, name in named if namespace == here]


@dataclasses.dataclass(frozen=True)
class RuntimeContext:
    """What user code can know about the task or call that runs it.

    Outside of tasks and actors, only the namespace is set.
    """

    #: The id of the task or call.
    task_id: str | None = None
    #: The number of the attempt. A fencing token for effects outside Marline.
    attempt: int | None = None
    #: The id of the actor, in a call.
    actor_id: str | None = None
    #: The epoch of the actor, in a call. A fencing token, too.
    actor_epoch: int | None = None
    #: The GPUs that were assigned to the task or actor.
    gpu_ids: tuple[int, ...] = ()
    #: The seconds that are left, if the work has a ``timeout``. Work that it submits gets no more
    #: time.
    deadline: float | None = None
    #: The namespace in which names of actors count, unless a call names one: that of the driver.
    namespace: str = namespaces.DEFAULT

    def get_task_id(self) -> str | None:
        """Returns the id of the task or call."""
        return self.task_id

    def get_actor_id(self) -> str | None:
        """Returns the id of the actor."""
        return self.actor_id

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the actor has restarted at least once."""
        return (self.actor_epoch or 1) > 1


def get_runtime_context() -> RuntimeContext:
    """Returns what is known about the task or call that runs this code.

    >>> import marline
    >>> @marline.remote
    ... def attempt():
    ...     return marline.get_runtime_context().attempt
    >>> with marline.init(num_cpus=2):
    ...     marline.get(attempt.remote())
    1
    """
    scope = current_scope.get()
    running = scope.running() if scope is not None else None
    if scope is None or running is None:
        return RuntimeContext(namespace=sessions.namespace_in_use())
    return RuntimeContext(
        running.task,
        running.attempt,
        running.actor,
        running.actor_epoch,
        tuple(running.gpus),
        scope.seconds_left(),
        sessions.namespace_in_use(),
    )


def method(
    *, num_returns: int | str = 1, max_unconsumed: int | None = None, durable: bool = False
) -> Callable[[F], F]:
    """Decorates a method of an actor class with options for its calls.

    ``num_returns`` is the number of results, ``"streaming"`` or ``"dynamic"``; ``max_unconsumed``
    limits the items of a stream that wait to be taken; ``durable`` lets large results outlive their
    node.

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
