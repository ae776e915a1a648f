"""This process's session: ``init``, ``get``, ``put``, ``wait``."""

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

# The longest folder whose name leaves room for that of a socket in it: the kernel takes 107 bytes.
MAX_FOLDER_BYTES = 100

# Set to 0, failures that nobody reads are not printed, whatever ``init`` says.
UNREAD = "MARLINE_LOG_UNREAD_FAILURES"

_lock = threading.Lock()
_session: _native.Session | None = None
_folder: str | None = None
# Shows what this process's work prints.
_printer: Printer | None = None
# Where the cluster is, and its token. In an executor: the one that it works for, joined when it is needed.
home: tuple[str, str | None] | None = None
# The address that was asked for (None: whichever cluster runs here), and the token, if one was given.
_at: tuple[str | None, str | None] | None = None


class Running:
    """What ``init`` returns: a context manager that shuts the session down."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if home is None:  # In a task, the session is its executor's: others may need it still.
            _shutdown(is_cut_short=kind is not None)

    def __repr__(self) -> str:
        return f"<marline at {self.address}>"


def is_initialized() -> bool:
    """Whether this process has a session.

    >>> import marline
    >>> with marline.init(num_cpus=2):
    ...     marline.is_initialized()
    True
    >>> marline.is_initialized()
    False
    """
    return _session is not None or home is not None  # A task is part of a cluster from its first line on.


def current() -> _native.Session:
    """The session; an embedded cluster is started if there is none."""
    session = _session
    if session is None:
        if home is None:
            init()
        else:
            _join_home(*home)
        session = _session
        assert session is not None
    return session


def _join_home(address: str, token: str | None) -> None:
    """User code of an executor submits work of its own."""
    global _session, _at
    with _lock:
        if _session is None:
            _session = _native.Session.join(address, token)
            _at = address, token


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
) -> Running:
    """Starts a cluster in this process, or joins the one at ``address`` (``MARLINE_ADDRESS``).

    ``"local"`` starts one whatever ``MARLINE_ADDRESS`` says; ``"auto"`` is the one that ``marline up`` runs
    on this machine. Without ``num_cpus`` it has as many as this process may use: those it may run on, within
    the quota of its cgroup. Large values take ``object_store_memory`` bytes at most (or
    ``MARLINE_STORE_MEMORY``; 30 % of what there is); what has no room goes to ``object_spilling_directory``
    (or ``MARLINE_SPILL_DIR``; the usual one for temporary files; ``""``: nowhere). A cluster elsewhere has
    what its workers offer, and asks for its ``token`` (or ``MARLINE_TOKEN_FILE``). All work of this process
    runs in ``runtime_env``, as far as it does not say otherwise, and names of actors count in ``namespace``
    (``"default"``). What it prints is shown here, unless ``log_to_driver`` is false. A failure whose error
    nobody reads is printed in one line, unless ``log_unread_failures`` is false or
    ``MARLINE_LOG_UNREAD_FAILURES`` is 0. A task is part of a cluster already: there it changes nothing.

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
    said = {**amounts, **store}
    amounts, store = checked(amounts), checked(store)
    with _lock:
        if home is not None:
            warn_of_other("init", address)
            return Running(home[0])  # A task that says so is part of a cluster already.
        if _session is not None:
            if ignore_reinit_error:
                return Running("here")
            raise RuntimeError("marline.init() was called already: call marline.shutdown() first")
        if address is not None and address != "local":
            _refuse_amounts(address, said)
        # A script that says what it needs here may be told to run elsewhere.
        address = address or os.environ.get("MARLINE_ADDRESS") or "local"
        if address == "local":
            session, address = _embed(amounts, store, log_to_driver)
        else:
            session = _join(address, token)
    try:
        if log_to_driver:
            from marline._output import Printer  # While the executors start.

            _printer = Printer(session.output(), address if _folder is not None else None)
        if log_unread_failures and os.environ.get(UNREAD) != "0":
            session.report_unread()
        _runtime_env.around = _runtime_env.shipped(env, session).env
        _namespace.say(namespace)
    except BaseException:
        shutdown()
        raise
    return Running(address)


def _meant(name: str) -> str:
    import inspect

    from marline._typo import meant

    return meant(name, inspect.signature(init).parameters)


def _check_words(address: Any, token: Any) -> None:
    if address is not None and not isinstance(address, str):
        raise TypeError(f"address is {address!r}: it is 'local', 'auto', 'host:port' or 'unix:/path'")
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token is a string, not {type(token).__name__}")  # It is not shown.


def _check_flags(**flags: Any) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} is {flag!r}: it is True or False")


def warn_of_other(what: str, address: str | None) -> None:
    """A task cannot be part of another cluster than the one that runs it."""
    if address is not None and home is not None:
        from marline import _home

        _home.warn_of_other(what, address, home)


def _refuse_amounts(address: str, said: dict[str, Any]) -> None:
    """Whoever joins a cluster brings nothing to it."""
    name = next((name for name, amount in said.items() if amount is not None), None)
    if name is not None:
        raise InvalidError(
            f"{name} is for a cluster that starts here: what the one at {address!r} offers is said where its "
            "workers are started (marline worker --help)"
        )


def _join(address: str, token: str | None) -> _native.Session:
    """Joins a cluster elsewhere."""
    global _session, _at
    try:
        token = _token_of_environment() if token is None else token
        # Neither is looked up here: a cluster that is restarted has another token and another socket.
        _at = None if address == "auto" else address, token
        _session = _native.Session.join(*_at)
    except WorkerLostError as error:
        instead = 'marline.init("local") starts one in this process'
        raise ClusterUnavailableError(f"{error}; {instead}") from None
    return _session


def _embed(amounts: dict[str, Any], store: dict[str, Any], shows_output: bool) -> tuple[_native.Session, str]:
    """Starts a cluster in this process; says where it is."""
    import json

    global _session, _folder, _at
    method = os.environ.get("MARLINE_START_METHOD", "fork")
    if method not in ("fork", "spawn"):
        raise InvalidError(f"MARLINE_START_METHOD is {method!r}: executors come by 'fork' or 'spawn'")
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
    _at = here, None
    # While the executors start. Not at the end: what is first imported there executes code, for which CPython
    # forgets that an interrupt ends the process, and its exit code would not say so.
    import shutil  # noqa: F401

    return _session, here


def _made_folder() -> str:
    """A folder that nobody else looks into."""
    folder = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"marline-{os.urandom(4).hex()}")
    if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
        folder = os.path.join("/tmp", os.path.basename(folder))
    try:
        os.mkdir(folder, 0o700)
        return folder
    except OSError:
        import tempfile  # It knows other places, and other names.

        return tempfile.mkdtemp(prefix="marline-")


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _token_of_environment() -> str | None:
    """The token in the file that the environment names, if it names one."""
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
    """Where the cluster is at the moment, and its token."""
    if address is not None and token is not None:
        return address, token
    found = _native.Session.here(address)
    if found is None:
        assert address is not None
        return address, token
    return found[0], token or found[1]


def shutdown() -> None:
    """Ends the session, and the cluster if it lives in this process. Again, it changes nothing.

    >>> import marline
    >>> running = marline.init(num_cpus=2)
    >>> marline.shutdown()
    >>> marline.is_initialized()
    False
    """
    _shutdown(is_cut_short=False)


def _shutdown(is_cut_short: bool) -> None:
    """Ends the session. A program that an exception cut short did not come to read what it holds."""
    global _session, _folder, _printer
    with _lock:
        session, _session = _session, None
        folder, _folder = _folder, None
        printer, _printer = _printer, None
        if home is None:
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
    # Python has printed the exception that ends the program, if one does.
    _shutdown(is_cut_short=getattr(sys, "last_value", None) is not None)


atexit.register(_at_exit)


def _leave_surroundings() -> None:
    """What ``init`` said of all work is over."""
    _runtime_env.around = _runtime_env.NOTHING
    _namespace.say(None)


def _forked() -> None:
    """In a fork: what its parent had is not its own."""
    global _session, _folder, _printer, _lock
    _native.forked()
    _lock = threading.Lock()
    _session = _folder = _printer = None
    if home is None:
        _leave_surroundings()


os.register_at_fork(
    before=_native.about_to_fork,
    # Other threads may have begun to read something after it was said.
    after_in_parent=_native.about_to_fork,
    after_in_child=_forked,
)


def status() -> _native.Status:
    """Whom to ask about the cluster."""
    current()
    assert _at is not None
    return _native.Status(*_found(*_at))


def put(value: Any, *, durable: bool = False) -> ObjectRef:
    """Puts a value where tasks can use it by reference: it travels once, however many do.

    What is put is lost with the node that has it, unless it is ``durable``: then it is saved first, in a
    folder that all nodes see (``marline worker --durable-dir``).

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
    """The value of a reference, or the values of several, when they have come; or the exception of one.

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
        raise  # It is the task's own.


def wait(
    refs: Sequence[ObjectRef],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Waits until ``num_returns`` have come or the time is over: those that have, and the others.

    A large value that another node has is brought to this one meanwhile, and has come when it is here; with
    ``fetch_local=False`` it stays there, and has come as soon as it is made.

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
        return [], []  # So ends a loop over what `wait` gives back.
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
    """Asks a task to stop, and what it has submitted unless ``recursive`` is false; by force, it is killed at
    once.

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
            "force=True ends the process that waits for what the task submitted, and that with it: "
            "recursive=False needs force=False"
        )
    if isinstance(ref, ObjectRefGenerator):
        ref._cancel(force, not recursive)
    else:
        _native.Session.cancel(ref, force, not recursive)


def _stops(thing: Any) -> str:
    """What ends it, if something does."""
    return ": an actor is ended with kill()" if hasattr(thing, "_actor") else ""
