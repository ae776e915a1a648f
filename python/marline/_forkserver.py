"""The process whose forks are executors: it has imported what they need, and has one thread.

Its standard input is a socket to its worker, which says what to fork and what to wait for. It ends when
the worker does, and takes what is left of it away.

The first executors are forked as soon as it can run a task; what only some tasks and actors need is imported
after that.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marline._package_folder import PackageFolder

# How executors come to be: "fork", or "spawn".
START_METHOD = "MARLINE_START_METHOD"

# The longest message.
MAX_BYTES = 128 << 10


class Server:
    """See the module."""

    def __init__(self, worker: socket.socket) -> None:
        self.worker = worker
        self.forks: set[int] = set()
        self.folder: str | None = None
        self.spawns = False
        self.packages: PackageFolder | None = None
        self.is_warm = False
        # Readable when the worker has ended; forks of it may have its end of the socket open still.
        self.driver: int | None = None

    def serve(self) -> None:
        while self.listen():
            message, descriptors, _, _ = socket.recv_fds(self.worker, MAX_BYTES, 3)
            if not message:
                return
            kind, _, rest = message.decode().partition(" ")
            if kind == "setup":
                self.set_up(json.loads(rest))
                self.get_ready(descriptors)
            elif kind == "fork":
                number, variable = rest.split(" ", 1)
                self.fork(number, variable, descriptors)
            elif kind == "reap":
                self.reap(int(rest))

    def listen(self) -> bool:
        """Waits for a message; says whether the worker lives."""
        poll = select.poll()
        poll.register(self.worker.fileno(), select.POLLIN)
        if self.driver is not None:
            poll.register(self.driver, select.POLLIN)
        if self.forks and not self.is_warm and not poll.poll(0):
            self.is_warm = True
            with contextlib.suppress(Exception):  # Whoever needs it will see why it cannot be imported.
                warm()
        return all(descriptor != self.driver for descriptor, _ in poll.poll())

    def set_up(self, setup: dict[str, Any]) -> None:
        """Looks for modules where the driver does, and learns which cluster this is."""
        from marline import _runtime_env, _session

        if "path" in setup:
            sys.path[:] = setup["path"]
        if "address" in setup:
            _session.home = setup["address"], setup.get("token")
        if os.path.isdir(setup.get("folder", "")):
            os.chdir(setup["folder"])
        self.spawns = os.environ.get(START_METHOD) == "spawn"
        self.folder = setup.get("remove")
        if self.folder is not None:
            _runtime_env.folder = os.path.join(self.folder, "packages")
        else:
            from marline._package_folder import PackageFolder

            with contextlib.suppress(OSError):  # Who needs it is told that there is none.
                self.packages = PackageFolder()
                _runtime_env.folder = self.packages.path
        if "driver" in setup:
            with contextlib.suppress(OSError):
                self.driver = os.pidfd_open(setup["driver"])

    def get_ready(self, descriptors: list[int]) -> None:
        """From now on, errors go where the worker's do. Says which versions these are."""
        from marline import _native

        for descriptor in descriptors:
            os.dup2(descriptor, 2)
            os.close(descriptor)
        python = ".".join(map(str, sys.version_info[:3]))
        self.worker.send(f"ready {_native.VERSION} {python}".encode())

    def fork(self, number: str, variable: str, descriptors: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self.worker.send(f"failed {number} {error.errno}".encode())
        else:
            if pid == 0:
                self.become_executor(variable, descriptors)
            self.forks.add(pid)
            self.worker.send(f"born {number} {pid}".encode())
        for descriptor in descriptors:
            os.close(descriptor)

    def become_executor(self, variable: str, descriptors: list[int]) -> None:
        try:
            self.worker.close()
            if self.driver is not None:
                os.close(self.driver)
            become_executor(variable, descriptors, self.spawns)
        finally:
            os._exit(1)

    def reap(self, pid: int) -> None:
        try:
            _, status = os.waitpid(pid, 0)
        except ChildProcessError:
            status = -1
        self.forks.discard(pid)
        self.worker.send(f"dead {pid} {status}".encode())

    def clean_up(self) -> None:
        """The worker is gone: what it left goes, too."""
        import shutil

        from marline import _native

        for pid in self.forks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.packages is not None:
            self.packages.remove()
        _native.sweep()


def become_executor(variable: str, descriptors: list[int], spawns: bool) -> None:
    """Is an executor until this process ends; as a Python started anew, if wanted."""
    os.setpgid(0, 0)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    if spawns:
        from marline._spawned import become_spawned

        become_spawned(variable)
    serve(variable)


def serve(variable: str) -> None:
    """Does what an executor does."""
    from marline import _executor, _native

    for stream in (sys.stdout, sys.stderr):
        # A line and its end together, also where Python is told not to buffer.
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reseed()
    _executor.prepare()
    _native.serve(variable)


def reseed() -> None:
    """Forks of one process must not draw the same numbers."""
    if "random" in sys.modules:
        sys.modules["random"].seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4)))
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(int.from_bytes(os.urandom(8)) >> 1)


def share() -> None:
    """What there is now is shared with forks: their collections do not touch it."""
    gc.collect()
    gc.freeze()


def warm() -> None:
    """Imports what only some executors need, once, for all that are forked from now on."""
    import hashlib  # noqa: F401
    import random  # noqa: F401

    import marline._cluster
    import marline._executor_loop
    import marline._failure
    import marline._runtime_env_here  # noqa: F401

    share()


def main() -> None:
    # Imported here, once, for all forks.
    import marline._executor  # noqa: F401

    worker = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    # An interrupt at a terminal is for the driver: it ends what is to end. Where somebody kills the driver's
    # whole group, this process is left to clean up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    share()
    server = Server(worker)
    try:
        server.serve()
    finally:
        server.clean_up()


if __name__ == "__main__":
    main()
