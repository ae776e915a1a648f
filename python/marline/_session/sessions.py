"""The sessions of this process: ``init`` and ``shutdown``, and which session is used.

The module functions use one session: the one that ``init`` or their first use has started. Without
it, they use that of the oldest open ``Context`` on a cluster. An executor joins the cluster that it
works for when user code first needs a session.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from marline import _native
from marline._api.errors import InvalidError
from marline._api.option_values import checked
from marline._environment import environment
from marline._session import namespaces, session
from marline._session.session import Session

if TYPE_CHECKING:
    import weakref

# The environment variable that turns off the lines about unread failures if it is 0, whatever
# ``init`` says.
UNREAD = "MARLINE_LOG_UNREAD_FAILURES"

_lock = threading.Lock()
# The session of ``init``, of the first use, or of the executor. The native module reads it, too.
own: Session | None = None
# The sessions of contexts, the oldest first.
_of_contexts: list[weakref.ref[Session]] = []
# In an executor: the address and the token of the cluster that it works for. Joined on first use.
executor_cluster: tuple[str, str | None] | None = None


class SessionGuard:
    """The result of ``init``: a context manager that ends the session."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __enter__(self) -> SessionGuard:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if executor_cluster is None:  # In a task, the session belongs to the executor: it goes on.
            _shutdown(is_cut_short=kind is not None)

    def __repr__(self) -> str:
        return f"<marline at {self.address}>"


def is_initialized() -> bool:
    """Returns whether this process has a session.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     marline.is_initialized()
    True
    >>> marline.is_initialized()
    False
    """
    # A task is part of a cluster from the beginning.
    return in_use() is not None or executor_cluster is not None


def in_use() -> Session | None:
    """Returns the session that the module functions use, if there is one."""
    if own is not None:
        return own
    for reference in tuple(_of_contexts):
        of_context = reference()
        if of_context is not None and not of_context.is_over:
            return of_context
    return None


def current() -> Session:
    """Returns the session that the module functions use.

    Without one, joins the executor's cluster, or starts an embedded cluster.
    """
    used = in_use()
    if used is None:
        if executor_cluster is None:
            init()
        else:
            _join_executor_cluster(*executor_cluster)
        used = own
        assert used is not None
    return used


def namespace_in_use() -> str:
    """Returns the namespace of this process. Starts no session."""
    used = in_use()
    return namespaces.current() if used is None else used.namespace


def _join_executor_cluster(address: str, token: str | None) -> None:
    """Joins the cluster of this executor, when its user code first needs a session."""
    global own
    with _lock:
        if own is None:
            own = Session.join(address, token)


def init(
    address: str | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: int | None = None,
    resources: dict[str, float] | None = None,
    object_store_memory: int | None = None,
    object_spilling_directory: str | os.PathLike[str] | None = None,
    token: str | None = None,
    namespace: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    log_to_driver: bool = True,
    log_unread_failures: bool = True,
    ignore_reinit_error: bool = False,
    **others: Any,
) -> SessionGuard:
    """Starts a cluster in this process, or joins the cluster at ``address``.

    ``address``: ``"local"`` starts a cluster; ``"auto"`` is the cluster that ``marline up`` runs on
    this machine; ``"host:port"`` is a cluster elsewhere. Without it, ``MARLINE_ADDRESS`` counts,
    and then ``"local"``. ``token`` is the secret of a cluster elsewhere; by default it is read from
    the file that ``MARLINE_TOKEN_FILE`` names.

    For a cluster in this process:

    - ``num_cpus``: its CPUs; by default those that this process may use, within the quota of its
      cgroup. ``num_gpus``, ``memory`` and ``resources`` are its other resources.
    - ``object_store_memory``: the most bytes of large values in memory; by default
      ``MARLINE_STORE_MEMORY``, or 30 % of the memory.
    - ``object_spilling_directory``: the folder for large values that do not fit; by default
      ``MARLINE_SPILL_DIR``, or the folder for temporary files; ``""`` is nowhere.

    For the work of this process:

    - ``runtime_env``: the environment of work that does not set its own.
    - ``namespace``: the namespace of names of actors, ``"default"`` unless set.
    - ``log_to_driver``: whether its output is shown here.
    - ``log_unread_failures``: whether a failure whose error is never read is printed in one line.
      ``MARLINE_LOG_UNREAD_FAILURES=0`` turns that off, too.

    Returns a context manager that ends the session. A second call is a ``RuntimeError``, unless
    ``ignore_reinit_error`` is true. In a task, ``init()`` does nothing: the task already belongs to
    a cluster. Options that start with an underscore are ignored.

    >>> import marline
    >>> with marline.init(num_cpus=2, resources={"disk": 1}):
    ...     sorted(marline.cluster_resources().items())
    [('CPU', 2.0), ('disk', 1.0)]
    """
    global own
    unknown = [name for name in others if not name.startswith("_")]
    if unknown:
        raise TypeError(f"init() got an unexpected keyword argument {unknown[0]!r}{_meant(unknown[0])}")
    _check_words(address, token)
    _check_flags(log_to_driver=log_to_driver, log_unread_failures=log_unread_failures)
    env, namespace = environment.parse(runtime_env), namespaces.checked(namespace)
    amounts = {"num_cpus": num_cpus, "num_gpus": num_gpus, "memory": memory, "resources": resources}
    store = {
        "object_store_memory": object_store_memory,
        "object_spilling_directory": object_spilling_directory,
    }
    passed = {**amounts, **store}
    amounts, store = checked(amounts), checked(store)
    with _lock:
        if executor_cluster is not None:
            warn_of_other("init", address)
            return SessionGuard(executor_cluster[0])  # A task is part of a cluster already.
        if own is not None:
            if ignore_reinit_error:
                return SessionGuard("here")
            raise RuntimeError("marline.init() was called already: call marline.shutdown() first")
        if address is not None and address != "local":
            _reject_amounts(address, passed)
        # Amounts are allowed with MARLINE_ADDRESS: a script for one machine may be moved to a
        # cluster.
        address = address or os.environ.get("MARLINE_ADDRESS") or "local"
        begun = own = _begin(address, token, amounts, store, log_to_driver, log_unread_failures)
    try:
        begun.default_env = environment.ship_env(env, begun).env
        if namespace is not None:
            begun.set_namespace(namespace)
    except BaseException:
        shutdown()
        raise
    return SessionGuard(begun.address)


def _begin(
    address: str,
    token: str | None,
    amounts: dict[str, Any],
    store: dict[str, Any],
    log_to_driver: bool = True,
    log_unread_failures: bool = True,
) -> Session:
    """Starts a cluster in this process, or joins the one at an address."""
    if address == "local":
        begun = Session.embed(amounts, store, log_to_driver)
    else:
        begun = Session.join_elsewhere(address, token)
    try:
        if log_to_driver:
            begun.show_output()
        if log_unread_failures and os.environ.get(UNREAD) != "0":
            begun.native.print_unread_failures()
    except BaseException:
        begun.end()
        raise
    return begun


def begin_for_context(kind: str, token: str | None, num_cpus: float | None) -> Session:
    """Starts the session of a context on a cluster."""
    import weakref

    _check_words(kind, token)
    amounts = {"num_cpus": num_cpus, "num_gpus": None, "memory": None, "resources": None}
    store = {"object_store_memory": None, "object_spilling_directory": None}
    amounts = checked(amounts)
    if kind != "local":
        _reject_amounts(kind, {"num_cpus": num_cpus})
    begun = _begin(kind, token, amounts, checked(store))
    with _lock:
        _of_contexts[:] = [known for known in _of_contexts if known() is not None]
        _of_contexts.append(weakref.ref(begun))
    return begun


def _meant(name: str) -> str:
    import inspect

    from marline._api.typo import suggestion

    return suggestion(name, inspect.signature(init).parameters)


def _check_words(address: Any, token: Any) -> None:
    if address is not None and not isinstance(address, str):
        raise TypeError(f"address must be 'local', 'auto', 'host:port' or 'unix:/path', not {address!r}")
    if token is not None and not isinstance(token, str):
        # The error does not show the token.
        raise TypeError(f"token must be a string, not {type(token).__name__}")


def _check_flags(**flags: Any) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be True or False, not {flag!r}")


def warn_of_other(what: str, address: str | None) -> None:
    """Warns if a task names another cluster than the one that runs it. It stays in its own."""
    if address is not None and executor_cluster is not None:
        from marline._session import own_cluster

        own_cluster.warn_of_other(what, address, executor_cluster)


def _reject_amounts(address: str, passed: dict[str, Any]) -> None:
    """Rejects amounts of resources for a cluster elsewhere: a driver that joins adds none to it."""
    name = next((name for name, amount in passed.items() if amount is not None), None)
    if name is not None:
        raise InvalidError(
            f"{name} is for a cluster that starts here: what the one at {address!r} offers is set where its "
            "workers are started (marline worker --help)"
        )


def shutdown() -> None:
    """Ends the session, and the cluster if it is embedded in this process.

    A second call does nothing.

    >>> import marline
    >>> running = marline.init(num_cpus=2)
    >>> marline.shutdown()
    >>> marline.is_initialized()
    False
    """
    _shutdown(is_cut_short=False)


def _shutdown(is_cut_short: bool) -> None:
    """Ends the session that the module functions use. See :meth:`Session.end`."""
    global own
    with _lock:
        used, own = in_use(), None
    if used is not None:
        used.end(is_cut_short)


def _at_exit() -> None:
    # `last_value` is the exception that has ended the program, if one did.
    session.end_all(is_cut_short=getattr(sys, "last_value", None) is not None)


atexit.register(_at_exit)


def _forked() -> None:
    """In a fork: forgets the sessions, which belong to the parent."""
    global own, _lock
    _native.forked()
    session.forget_all()
    _lock = threading.Lock()
    own = None
    _of_contexts.clear()


os.register_at_fork(
    before=_native.about_to_fork,
    # Again after the fork: other threads may have started to read a blob after the first call.
    after_in_parent=_native.about_to_fork,
    after_in_child=_forked,
)
