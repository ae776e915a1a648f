"""This process's session: ``init``, ``shutdown``, ``put``, ``get``, ``wait`` and ``cancel``.

A process has one session at most. A driver starts or joins a cluster with ``init``, or on first
use. An executor joins the cluster that it works for when user code first submits work.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from marline import _namespace, _native, _runtime_env
from marline._errors import (
    ClusterUnavailableError,
    DeniedError,
    InvalidError,
    UnsupportedError,
    WorkerLostError,
)
from marline._native import ObjectRef, ObjectRefGenerator
from marline._option_values import checked, checked_flag
from marline._references import check_get, check_limit, references

if TYPE_CHECKING:
    from marline._context_engine import ContextFuture
    from marline._output import Printer

# The longest path of a folder that leaves room for the name of a socket inside: the kernel takes
# 107 bytes in all.
MAX_FOLDER_BYTES = 100

# The environment variable that turns off the lines about unread failures if it is 0, whatever
# ``init`` says.
UNREAD = "MARLINE_LOG_UNREAD_FAILURES"

_lock = threading.Lock()
_session: _native.Session | None = None
# The folder of the embedded cluster.
_folder: str | None = None
# Shows the output of this process's work.
_printer: Printer | None = None
# In an executor: the address and the token of the cluster that it works for. Joined on first use.
executor_cluster: tuple[str, str | None] | None = None
# The address of the session's cluster (None: the only cluster on this machine), and the token if
# one was passed.
_address_and_token: tuple[str | None, str | None] | None = None


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
    return _session is not None or executor_cluster is not None


def current() -> _native.Session:
    """Returns the session.

    Without one, joins the executor's cluster, or starts an embedded cluster.
    """
    session = _session
    if session is None:
        if executor_cluster is None:
            init()
        else:
            _join_executor_cluster(*executor_cluster)
        session = _session
        assert session is not None
    return session


def _join_executor_cluster(address: str, token: str | None) -> None:
    """Joins the cluster of this executor, when its user code first needs a session."""
    global _session, _address_and_token
    with _lock:
        if _session is None:
            _session = _native.Session.join(address, token)
            _address_and_token = address, token


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
    global _printer
    unknown = [name for name in others if not name.startswith("_")]
    if unknown:
        raise TypeError(f"init() got an unexpected keyword argument {unknown[0]!r}{_meant(unknown[0])}")
    _check_words(address, token)
    _check_flags(log_to_driver=log_to_driver, log_unread_failures=log_unread_failures)
    env, namespace = _runtime_env.parse(runtime_env), _namespace.checked(namespace)
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
        if _session is not None:
            if ignore_reinit_error:
                return SessionGuard("here")
            raise RuntimeError("marline.init() was called already: call marline.shutdown() first")
        if address is not None and address != "local":
            _reject_amounts(address, passed)
        # Amounts are allowed with MARLINE_ADDRESS: a script for one machine may be moved to a
        # cluster.
        address = address or os.environ.get("MARLINE_ADDRESS") or "local"
        if address == "local":
            session, address = _embed(amounts, store, log_to_driver)
        else:
            session = _join(address, token)
    try:
        if log_to_driver:
            from marline._output import Printer  # Imported now, while the executors start.

            _printer = Printer(session.output(), address if _folder is not None else None)
        if log_unread_failures and os.environ.get(UNREAD) != "0":
            session.print_unread_failures()
        _runtime_env.default_env = _runtime_env.ship_env(env, session).env
        _namespace.set_for_driver(namespace)
    except BaseException:
        shutdown()
        raise
    return SessionGuard(address)


def _meant(name: str) -> str:
    import inspect

    from marline._typo import suggestion

    return suggestion(name, inspect.signature(init).parameters)


def _check_words(address: Any, token: Any) -> None:
    if address is not None and not isinstance(address, str):
        raise TypeError(f"address is {address!r}: it is 'local', 'auto', 'host:port' or 'unix:/path'")
    if token is not None and not isinstance(token, str):
        # The error does not show the token.
        raise TypeError(f"token is a string, not {type(token).__name__}")


def _check_flags(**flags: Any) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} is {flag!r}: it is True or False")


def warn_of_other(what: str, address: str | None) -> None:
    """Warns if a task names another cluster than the one that runs it. It stays in its own."""
    if address is not None and executor_cluster is not None:
        from marline import _home

        _home.warn_of_other(what, address, executor_cluster)


def _reject_amounts(address: str, passed: dict[str, Any]) -> None:
    """Rejects amounts of resources for a cluster elsewhere: a driver that joins adds none to it."""
    name = next((name for name, amount in passed.items() if amount is not None), None)
    if name is not None:
        raise InvalidError(
            f"{name} is for a cluster that starts here: what the one at {address!r} offers is set where its "
            "workers are started (marline worker --help)"
        )


def _join(address: str, token: str | None) -> _native.Session:
    """Joins a cluster elsewhere."""
    global _session, _address_and_token
    try:
        token = _token_of_environment() if token is None else token
        # The record of a local cluster is not read here: after a restart it has another token and
        # socket.
        _address_and_token = None if address == "auto" else address, token
        _session = _native.Session.join(*_address_and_token)
    except WorkerLostError as error:
        instead = 'marline.init("local") starts one in this process'
        raise ClusterUnavailableError(f"{error}; {instead}") from None
    return _session


def _embed(amounts: dict[str, Any], store: dict[str, Any], shows_output: bool) -> tuple[_native.Session, str]:
    """Starts a cluster in this process. Returns the session and the address."""
    import json

    global _session, _folder, _address_and_token
    method = os.environ.get("MARLINE_START_METHOD", "fork")
    if method not in ("fork", "spawn"):
        raise InvalidError(f"MARLINE_START_METHOD is {method!r}: it is 'fork' or 'spawn'")
    _folder = _made_folder()
    if amounts["num_cpus"] is None:
        amounts = {**amounts, "num_cpus": float(_native.available_cpus())}
    here = f"unix:{_folder}/socket"
    setup = json.dumps(
        {
            "path": sys.path,
            "folder": os.getcwd(),
            "address": here,
            "driver": os.getpid(),
            "remove": _folder,
        }
    )
    command = [sys.executable, "-m", "marline._forkserver"]
    limits = store["object_store_memory"], store["object_spilling_directory"]
    try:
        _session = _native.Session.embed(here, amounts, command, setup, shows_output, limits)
    except BaseException:
        _remove(_folder)
        _folder = None
        raise
    _address_and_token = here, None
    # Imported now, while the executors start, and not at exit. An import at exit runs code, and
    # then CPython forgets that an interrupt ends the process: the exit code would be wrong.
    import shutil  # noqa: F401

    return _session, here


def _made_folder() -> str:
    """Makes a folder that only this user can read."""
    folder = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"marline-{os.urandom(4).hex()}")
    if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
        folder = os.path.join("/tmp", os.path.basename(folder))
    try:
        os.mkdir(folder, 0o700)
        return folder
    except OSError:
        import tempfile  # Tries other folders and other names.

        return tempfile.mkdtemp(prefix="marline-")


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _token_of_environment() -> str | None:
    """Returns the token from the file that MARLINE_TOKEN_FILE names, if it is set."""
    file = os.environ.get("MARLINE_TOKEN_FILE")
    if not file:
        return None
    try:
        with open(file) as readable:
            return readable.read().strip()
    except OSError as error:
        words = f"the token cannot be read from the file that MARLINE_TOKEN_FILE names: {error}"
        raise DeniedError(words) from None


def _found(address: str | None, token: str | None) -> tuple[str, str | None]:
    """Returns the current address and token of the cluster."""
    if address is not None and token is not None:
        return address, token
    found = _native.Session.find_local_cluster(address)
    if found is None:
        assert address is not None
        return address, token
    return found[0], token or found[1]


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
    """Ends the session.

    ``is_cut_short``: an exception ended the program before it could read its results. Then failures
    whose references still exist are not printed as unread.
    """
    global _session, _folder, _printer
    with _lock:
        session, _session = _session, None
        folder, _folder = _folder, None
        printer, _printer = _printer, None
        if executor_cluster is None:
            _leave_surroundings()
    if session is not None:
        session.close_unread(not is_cut_short)
        if printer is not None and session.may_lag():
            printer.settle()
        session.shutdown()
    if printer is not None:
        printer.join()
    if folder is not None:
        _remove(folder)


def _at_exit() -> None:
    # `last_value` is the exception that has ended the program, if one did.
    _shutdown(is_cut_short=getattr(sys, "last_value", None) is not None)


atexit.register(_at_exit)


def _leave_surroundings() -> None:
    """Resets the runtime environment and the namespace that ``init`` has set for all work."""
    _runtime_env.default_env = _runtime_env.NOTHING
    _namespace.set_for_driver(None)


def _forked() -> None:
    """In a fork: forgets the session, which belongs to the parent."""
    global _session, _folder, _printer, _lock
    _native.forked()
    _lock = threading.Lock()
    _session = _folder = _printer = None
    if executor_cluster is None:
        _leave_surroundings()


os.register_at_fork(
    before=_native.about_to_fork,
    # Again after the fork: other threads may have started to read a blob after the first call.
    after_in_parent=_native.about_to_fork,
    after_in_child=_forked,
)


def status() -> _native.StatusClient:
    """Returns a client for questions about the cluster."""
    current()
    assert _address_and_token is not None
    return _native.StatusClient(*_found(*_address_and_token))


def put(value: Any, *, durable: bool = False) -> ObjectRef:
    """Puts a value into the cluster, and returns a reference to it.

    The value travels once, no matter how many tasks use it. It is lost with its node, unless it is
    ``durable``: then it is saved first, in a folder that all nodes see (``marline worker
    --durable-dir``). A value that cannot be pickled is a ``TypeError``.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     numbers = marline.put([1, 2, 3])
    ...     marline.get([marline.remote(sum).remote(numbers), marline.remote(max).remote(numbers)])
    [6, 3]
    """
    if isinstance(value, ObjectRef):
        raise TypeError("put() of a reference: pass the reference itself")
    return current().put(value, checked_flag("durable", durable))


@overload
def get(refs: ObjectRef, *, timeout: float | None = None) -> Any: ...


@overload
def get(refs: Sequence[ObjectRef], *, timeout: float | None = None) -> list[Any]: ...


def get(refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = None) -> Any:
    """Waits for the values of references, and returns them.

    ``refs`` is a reference, or a list of references, whose values come in a list. If a task has
    failed, its exception is raised. After ``timeout`` seconds a ``GetTimeoutError`` is raised.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     marline.get(marline.remote(abs).remote(-1))
    ...     marline.get([marline.remote(abs).remote(n) for n in (-2, -3)], timeout=60)
    1
    [2, 3]
    """
    try:
        if type(refs) is ObjectRef:
            return _native.Session.get([refs], timeout)[0]
        return _native.Session.get(refs, timeout)
    except TypeError:
        check_get(refs, timeout)
        raise  # The arguments are right: a task has failed with this TypeError.


def wait(
    refs: Sequence[ObjectRef],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Waits until ``num_returns`` values have come, at most ``timeout`` seconds.

    Returns two lists: ``num_returns`` references whose values have come (fewer after a timeout),
    and the others. A large value on another node is fetched to this one meanwhile, and has come
    when it is here. With ``fetch_local=False`` it stays on its node, and has come as soon as it
    exists. A failed task counts as come.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     refs = [marline.remote(abs).remote(n) for n in (-1, -2, -3)]
    ...     while refs:
    ...         ready, refs = marline.wait(refs)
    ...         print(len(ready), len(refs))
    1 2
    1 1
    1 0
    """
    refs = references("wait", refs)
    if not refs and num_returns == 1:
        return [], []  # A loop over the references that `wait` returns ends like this.
    if not hasattr(num_returns, "__index__"):
        raise TypeError(f"num_returns is {num_returns!r}: it is a whole number")
    if not 1 <= num_returns <= len(refs):
        raise ValueError(f"num_returns is {num_returns}, there are {len(refs)} references")
    if not isinstance(fetch_local, bool):
        raise TypeError(f"fetch_local is {fetch_local!r}: it is True or False")
    if len(set(refs)) != len(refs):
        raise ValueError("wait() got a reference twice")
    try:
        done = _native.Session.wait(refs, num_returns, timeout, fetch_local)
    except TypeError:
        check_limit(timeout)
        raise
    ready = [ref for ref, is_done in zip(refs, done, strict=True) if is_done][:num_returns]
    chosen = set(ready)
    return ready, [ref for ref in refs if ref not in chosen]


def cancel(
    ref: ObjectRef | ObjectRefGenerator | ContextFuture, *, force: bool = False, recursive: bool = True
) -> None:
    """Cancels a task or call: its references fail with ``TaskCancelledError``.

    ``TaskCancelledError`` is raised in the running code. Work that the task has submitted is
    cancelled, too, unless ``recursive`` is false. With ``force`` the process of a task is killed at
    once; that needs ``recursive``. Values that have come stay.

    >>> import marline, time
    >>> with marline.init(num_cpus=2):
    ...     nap = marline.remote(time.sleep).remote(600)
    ...     marline.cancel(nap)
    ...     try:
    ...         marline.get(nap)
    ...     except marline.TaskCancelledError:
    ...         print("cancelled")
    cancelled
    """
    if not isinstance(ref, ObjectRef | ObjectRefGenerator):
        from marline._context_engine import ContextFuture

        if isinstance(ref, ContextFuture):
            ref.cancel(force=force, recursive=recursive)
            return
        raise TypeError(f"cancel() takes one reference, not {type(ref).__name__}{_stops(ref)}")
    if force and not recursive:
        raise UnsupportedError(
            "recursive=False needs force=False: force=True kills the process of the task, and the work that "
            "the task has submitted ends with it"
        )
    if isinstance(ref, ObjectRefGenerator):
        ref._cancel(force, not recursive)
    else:
        _native.Session.cancel(ref, force, not recursive)


def _stops(thing: Any) -> str:
    """Returns a hint for an error message: the function that ends ``thing``."""
    return ": an actor is ended with kill()" if hasattr(thing, "_actor") else ""
