"""The options of tasks and actors: checked, merged, and converted for the native module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from marline import _native
from marline._api.errors import name_of_class
from marline._api.option_values import Returns, checked, returns_of
from marline._environment.environment import NOTHING, RuntimeEnv, parse
from marline._session import namespaces

TASK_OPTIONS = {
    "num_cpus",
    "num_gpus",
    "memory",
    "resources",
    "max_retries",
    "retry_exceptions",
    "timeout",
    "num_returns",
    "max_unconsumed",
    "preemptible",
    "durable",
    "name",
    "runtime_env",
}
ACTOR_OPTIONS = {
    "num_cpus",
    "num_gpus",
    "memory",
    "resources",
    "max_restarts",
    "max_task_retries",
    "max_concurrency",
    "max_pending_calls",
    "name",
    "namespace",
    "get_if_exists",
    "lifetime",
    "idle_ttl",
    "preemptible",
    "checkpoint_every",
    "checkpoint_interval",
    "runtime_env",
}

# How many coroutines of one actor run at a time by default (`max_concurrency`).
MAX_AWAITS = 1000


class Options(NamedTuple):
    """All options of a task or an actor, with their defaults."""

    num_cpus: float | None = None
    num_gpus: float = 0
    memory: int = 0
    resources: Mapping[str, float] | None = None
    max_retries: int = 3
    retry_exceptions: bool | Iterable[type[BaseException]] = False
    timeout: float | None = None
    num_returns: int | str = 1
    max_unconsumed: int | None = None
    preemptible: bool = True
    durable: bool = False
    max_restarts: int = 0
    max_task_retries: int = 0
    max_concurrency: int | None = None
    max_pending_calls: int = 100_000
    name: str | None = None
    namespace: str | None = None
    get_if_exists: bool = False
    lifetime: str | None = None
    idle_ttl: float | None = None
    checkpoint_every: int | None = None
    checkpoint_interval: float | None = None
    runtime_env: RuntimeEnv = NOTHING

    @property
    def label(self) -> str | None:
        """The name of a task, if the options set one."""
        return self.name

    def with_task_options(self, options: Mapping[str, Any]) -> Options:
        return self._with(options, TASK_OPTIONS, "a task")

    def with_actor_options(self, options: Mapping[str, Any]) -> Options:
        return self._with(options, ACTOR_OPTIONS, "an actor")

    def _with(self, options: Mapping[str, Any], known: set[str], what: str) -> Options:
        for option in options:
            if option not in known:
                raise TypeError(f"{what} has no option {option!r}{_instead(option, known)}")
        options = checked(options)
        if "runtime_env" in options:
            options = {**options, "runtime_env": parse(options["runtime_env"])}
        return self._replace(**options)

    def returns(self) -> Returns:
        return returns_of(self.num_returns, self.max_unconsumed)

    def for_task(self) -> _native.TaskOptions:
        retry: bool | list[str]
        if isinstance(self.retry_exceptions, bool):
            retry = self.retry_exceptions
        else:
            retry = [name_of_class(cls) for cls in self.retry_exceptions]
        life_options = {
            "max_retries": self.max_retries,
            "retry_exceptions": retry,
            "timeout": self.timeout,
            "preemptible": self.preemptible,
            "durable": self.durable,
        }
        return _native.TaskOptions(self._amounts(1.0), life_options)

    def for_actor(self, is_async: bool, saves: bool, namespace: str) -> _native.ActorOptions:
        """Returns the options of an actor, which is created in ``namespace`` unless it has its own."""
        life_options = {
            "max_restarts": self.max_restarts,
            "max_task_retries": self.max_task_retries,
            "max_concurrency": self.max_concurrency or (MAX_AWAITS if is_async else 1),
            "max_pending_calls": self.max_pending_calls,
            "detached": self.lifetime == "detached",
            "get_if_exists": self.get_if_exists,
            "preemptible": self.preemptible,
            "idle_ttl": self.idle_ttl,
            "saves": saves,
            "checkpoint_every": self.checkpoint_every,
            "checkpoint_interval": self.checkpoint_interval,
        }
        self.check_checkpoints(saves)
        # By default an actor needs one CPU to be placed, and uses none while it lives.
        placement, lives = self._amounts(1.0), self._amounts(0.0)
        namespace = namespaces.checked(self.namespace) or namespace
        return _native.ActorOptions(placement, lives, life_options, self.name, namespace)

    def check_checkpoints(self, saves: bool) -> None:
        """Raises a ``TypeError`` if checkpoints are wanted and the class cannot save its state."""
        if (self.checkpoint_every or self.checkpoint_interval) and not saves:
            raise TypeError("checkpoints need the methods save_checkpoint() and load_checkpoint(state)")

    def _amounts(self, cpus: float) -> dict[str, Any]:
        return {
            "num_cpus": float(cpus if self.num_cpus is None else self.num_cpus),
            "num_gpus": float(self.num_gpus),
            "memory": self.memory,
            "resources": dict(self.resources or {}),
        }


def _instead(option: str, known: set[str]) -> str:
    """Returns the hint for an unknown option: a similar one, and all that exist."""
    from marline._api.typo import suggestion

    return f"{suggestion(option, known)}: there are {', '.join(sorted(known))}"
