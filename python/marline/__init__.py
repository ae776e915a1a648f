"""Tasks, actors and objects, from one laptop to a cluster.

>>> import marline
>>> @marline.remote
... def square(x):
...     return x * x
>>> with marline.init(num_cpus=2):
...     marline.get([square.remote(x) for x in range(4)])
[0, 1, 4, 9]
"""

from typing import TYPE_CHECKING

from marline import _native
from marline._api.actors import ActorClass, ActorHandle, exit_actor, get_actor, kill
from marline._api.errors import (
    ActorDiedError,
    ActorUnavailableError,
    AlreadyExistsError,
    ClusterUnavailableError,
    DeniedError,
    ExhaustedError,
    FencedError,
    GetTimeoutError,
    IncompatibleError,
    InternalError,
    InvalidError,
    MarlineError,
    NotFoundError,
    NotReadyError,
    ObjectLostError,
    OutOfMemoryError,
    RuntimeEnvError,
    TaskCancelledError,
    TaskError,
    TooLargeError,
    UnsupportedError,
    WorkerLostError,
)
from marline._api.remote import RemoteFunction, remote
from marline._api.values import cancel, get, put, wait
from marline._native import ObjectRef, ObjectRefGenerator
from marline._session.sessions import init, is_initialized, shutdown

if TYPE_CHECKING:
    from marline._api.actor_pool import ActorPool
    from marline._api.cluster import (
        RuntimeContext,
        available_resources,
        cluster_resources,
        get_runtime_context,
        list_named_actors,
        method,
        nodes,
        object_stores,
    )
    from marline._api.generators import DynamicObjectRefGenerator
    from marline._api.map import map
    from marline._api.named import NamedClass, NamedFunction, actor_class, function
    from marline._api.propagation import propagate, trace_context
    from marline._api.scopes import Scope, scope
    from marline._concurrent.executor_pool import Executor
    from marline._engines.context import Context, default_context, use_context
    from marline._engines.engine import ActorStatus, ContextActor, ContextFuture

__all__ = [
    "ActorClass",
    "ActorDiedError",
    "ActorHandle",
    "ActorPool",
    "ActorStatus",
    "ActorUnavailableError",
    "AlreadyExistsError",
    "ClusterUnavailableError",
    "Context",
    "ContextActor",
    "ContextFuture",
    "DeniedError",
    "DynamicObjectRefGenerator",
    "Executor",
    "ExhaustedError",
    "FencedError",
    "GetTimeoutError",
    "IncompatibleError",
    "InternalError",
    "InvalidError",
    "MarlineError",
    "NamedClass",
    "NamedFunction",
    "NotFoundError",
    "NotReadyError",
    "ObjectLostError",
    "ObjectRef",
    "ObjectRefGenerator",
    "OutOfMemoryError",
    "RemoteFunction",
    "RuntimeContext",
    "RuntimeEnvError",
    "Scope",
    "TaskCancelledError",
    "TaskError",
    "TooLargeError",
    "UnsupportedError",
    "WorkerLostError",
    "actor_class",
    "available_resources",
    "cancel",
    "cluster_resources",
    "default_context",
    "exit_actor",
    "function",
    "get",
    "get_actor",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "list_named_actors",
    "map",
    "method",
    "nodes",
    "object_stores",
    "propagate",
    "put",
    "remote",
    "scope",
    "shutdown",
    "trace_context",
    "use_context",
    "wait",
]

__version__ = _native.VERSION

# Names that many programs do not use, by module. Each module is imported when one of its names is
# first used, so that `import marline` stays fast.
_LATER = {
    "_api.actor_pool": ["ActorPool"],
    "_api.cluster": [
        "RuntimeContext",
        "available_resources",
        "cluster_resources",
        "get_runtime_context",
        "list_named_actors",
        "method",
        "nodes",
        "object_stores",
    ],
    "_engines.context": ["Context", "default_context", "use_context"],
    "_engines.engine": ["ActorStatus", "ContextActor", "ContextFuture"],
    "_concurrent.executor_pool": ["Executor"],
    "_api.generators": ["DynamicObjectRefGenerator"],
    "_api.map": ["map"],
    "_api.named": ["NamedClass", "NamedFunction", "actor_class", "function"],
    "_api.propagation": ["propagate", "trace_context"],
    "_api.scopes": ["Scope", "scope"],
}
_HOMES = {name: home for home, names in _LATER.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'marline' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"marline.{home}")
    for each in _LATER[home]:
        globals()[each] = _public(getattr(module, each))
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _public(thing: object) -> object:
    """Sets the module of a public name to `marline`, for tracebacks, `repr` and pickles.

    Returns it.
    """
    if getattr(thing, "__module__", "").startswith("marline._"):
        thing.__module__ = "marline"
    return thing


for _name in __all__:
    if _name in globals():
        _public(globals()[_name])
del _name, TYPE_CHECKING
