"""A session: the part of this process in one cluster, which runs here or elsewhere.

``sessions`` has the session that the module functions use. A ``Context`` on a cluster has a session
of its own.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

from marline import _native
from marline._api.errors import ClusterUnavailableError, DeniedError, InvalidError, WorkerLostError
from marline._environment import environment
from marline._session import namespaces

if TYPE_CHECKING:
    from marline._environment.ship import PackageCache
    from marline._session.output import Printer

# The longest path of a folder that leaves room for the name of a socket inside: the kernel takes
# 107 bytes in all.
MAX_FOLDER_BYTES = 100

# What each open session of this process has to end.
_open: set[_Ending] = set()


class Session:
    """A membership in a cluster. Ends with :meth:`end`, or when it is collected."""

    def __init__(
        self, native: _native.Session, address: str, found_by: tuple[str | None, str | None], ending: _Ending
    ) -> None:
        self.native = native
        #: The address of the cluster.
        self.address = address
        #: The environment of work that does not set its own.
        self.default_env = environment.NOTHING
        #: The packages of runtime environments that were put into this session.
        self.packages: PackageCache | None = None
        # The address (None: the only cluster on this machine), and the token if one was passed.
        self._found_by = found_by
        self._namespace: str | None = None
        self._ending = ending

    @classmethod
    def join(cls, address: str | None, token: str | None) -> Session:
        """Joins a cluster. Without an address, joins the only one of this user on this machine."""
        native = _native.Session.join(address, token)
        return cls(native, address or "auto", (address, token), _Ending(native, None))

    @classmethod
    def join_elsewhere(cls, address: str, token: str | None) -> Session:
        """Joins the cluster that a driver names. ``"auto"`` is the one on this machine."""
        try:
            token = _token_of_environment() if token is None else token
            # The record of a local cluster is not read here: after a restart it has another token
            # and socket.
            return cls.join(None if address == "auto" else address, token)
        except WorkerLostError as error:
            instead = 'marline.init("local") starts one in this process'
            raise ClusterUnavailableError(f"{error}; {instead}") from None

    @classmethod
    def embed(cls, amounts: dict[str, Any], store: dict[str, Any], shows_output: bool) -> Session:
        """Starts a cluster in this process."""
        import json

        method = os.environ.get("MARLINE_START_METHOD", "fork")
        if method not in ("fork", "spawn"):
            raise InvalidError(f"MARLINE_START_METHOD must be 'fork' or 'spawn', not {method!r}")
        folder = _made_folder()
        if amounts["num_cpus"] is None:
            amounts = {**amounts, "num_cpus": float(_native.available_cpus())}
        address = f"unix:{folder}/socket"
        setup = {
            "path": sys.path,
            "folder": os.getcwd(),
            "address": address,
            "driver": os.getpid(),
            "remove": folder,
        }
        command = [sys.executable, "-m", "marline._executor.forkserver"]
        try:
            native = _native.Session.embed(address, amounts, command, json.dumps(setup), shows_output, store)
        except BaseException:
            _remove(folder)
            raise
        # Imported now, while the executors start, and not at exit. An import at exit runs code, and
        # then CPython forgets that an interrupt ends the process: the exit code would be wrong.
        import shutil  # noqa: F401

        return cls(native, address, (address, None), _Ending(native, folder))

    @property
    def namespace(self) -> str:
        """The namespace in which names of actors count, unless a call names one."""
        return self._namespace or namespaces.current()

    def set_namespace(self, namespace: str) -> None:
        """Sets the namespace of the work that is submitted from now on."""
        self._namespace = namespace
        self.native.set_namespace(namespace)

    def show_output(self) -> None:
        """Starts to show the output of the work that is submitted from now on."""
        from marline._session.output import Printer  # Imported now, while the executors start.

        is_embedded = self._ending.folder is not None
        self._ending.printer = Printer(self.native.output(), self.address if is_embedded else None)

    def status(self) -> _native.StatusClient:
        """Returns a client for questions about the cluster."""
        return _native.StatusClient(*self.address_and_token())

    def address_and_token(self) -> tuple[str, str | None]:
        """Returns the current address and token of the cluster. A restart may have changed them."""
        address, token = self._found_by
        if address is not None and token is not None:
            return address, token
        found = _native.Session.find_local_cluster(address)
        if found is None:
            assert address is not None
            return address, token
        return found[0], token or found[1]

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, or belongs to the process that was forked."""
        return not self._ending.is_open

    def end(self, is_cut_short: bool = False) -> None:
        """Ends the session, and the cluster if it is embedded. A second call does nothing.

        ``is_cut_short``: an exception ended the program before it could read its results. Then
        failures whose references still exist are not printed as unread.
        """
        self._ending.run(is_cut_short)

    def __del__(self) -> None:
        ending: _Ending | None = getattr(self, "_ending", None)
        if ending is not None and ending.is_open:
            ending.run_later()


class _Ending:
    """What a session has to end. It does not refer to the session, which may be collected."""

    def __init__(self, native: _native.Session, folder: str | None) -> None:
        self.native = native
        #: The folder of an embedded cluster.
        self.folder = folder
        #: Shows the output of the session's work.
        self.printer: Printer | None = None
        self.is_open = True
        _open.add(self)

    def run(self, is_cut_short: bool) -> None:
        try:
            _open.remove(self)
        except KeyError:
            return  # Another thread was faster.
        self.is_open = False
        self.native.close_unread(not is_cut_short)
        if self.printer is not None and self.native.may_lag():
            self.printer.settle()
        self.native.shutdown()
        if self.printer is not None:
            self.printer.join()
        if self.folder is not None:
            _remove(self.folder)

    def run_later(self) -> None:
        """Ends a session that was collected, on a thread: it may take a second."""
        warnings.warn(
            "a marline.Context was dropped and not closed: use it in a `with` block, or call close()",
            ResourceWarning,
            stacklevel=2,
        )
        try:
            threading.Thread(target=self.run, args=(False,), name="marline-end").start()
        except RuntimeError:  # The interpreter is ending, and starts no more threads.
            self.run(False)


def end_all(is_cut_short: bool) -> None:
    """Ends every session of this process."""
    for ending in list(_open):
        ending.run(is_cut_short)


def forget_all() -> None:
    """In a fork: forgets every session, because they belong to the parent."""
    for ending in _open:
        ending.is_open = False
    _open.clear()


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
