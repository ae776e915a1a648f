"""The fork server: the process whose forks are executors.

It has imported their modules, and has one thread.

Its standard input is a socket to its worker, which tells it when to fork and which fork to wait
for. It ends with the worker, and removes what the worker has left behind.

The first executors are forked as soon as the server can run a task. Modules that only some tasks
and actors need are imported after that.
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
    from marline._environment.package_folder import PackageFolder

# The environment variable for how executors start: "fork", or "spawn".
START_METHOD = "MARLINE_START_METHOD"

# The longest message from the worker, in bytes.
MAX_BYTES = 128 << 10


class Server:
    """The fork server. See the module."""

    def __init__(self, worker: socket.socket) -> None:
        self.worker = worker
        self.forks: set[int] = set()
        self.folder: str | None = None
        self.spawns = False
        self.packages: PackageFolder | None = None
        self.is_warm = False
        # A pidfd of the worker's process, readable when that process has ended. The socket does not
        # show that while forks of the process hold the worker's end open.
        self.worker_process: int | None = None

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
        """Waits for a message. Returns false if the process with the worker has ended."""
        poll = select.poll()
        poll.register(self.worker.fileno(), select.POLLIN)
        if self.worker_process is not None:
            poll.register(self.worker_process, select.POLLIN)
        if self.forks and not self.is_warm and not poll.poll(0):
            self.is_warm = True
            with contextlib.suppress(Exception):  # Code that needs a missing module gets the error.
                warm()
        return all(descriptor != self.worker_process for descriptor, _ in poll.poll())

    def set_up(self, setup: dict[str, Any]) -> None:
        """Applies the worker's setup: paths, the cluster's address, the folder for packages, its process."""
        from marline._environment import environment
        from marline._session import sessions

        if "path" in setup:
            sys.path[:] = setup["path"]
        if "address" in setup:
            sessions.executor_cluster = setup["address"], setup.get("token")
        if os.path.isdir(setup.get("folder", "")):
            os.chdir(setup["folder"])
        self.spawns = os.environ.get(START_METHOD) == "spawn"
        self.folder = setup.get("remove")
        if self.folder is not None:
            environment.package_root = os.path.join(self.folder, "packages")
        else:
            from marline._environment.package_folder import PackageFolder

            with contextlib.suppress(OSError):  # Work that needs packages then fails with an error.
                self.packages = PackageFolder()
                environment.package_root = self.packages.path
        if "driver" in setup:
            with contextlib.suppress(OSError):
                self.worker_process = os.pidfd_open(setup["driver"])

    def get_ready(self, descriptors: list[int]) -> None:
        """Redirects standard error to the worker's, and reports the versions of Marline and
        Python."""
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
            if self.worker_process is not None:
                os.close(self.worker_process)
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
        """Kills the executors and removes the files that the worker has left."""
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
    """Runs an executor in this fork. With ``spawns``, replaces the fork by a new Python that runs it."""
    os.setpgid(0, 0)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    if spawns:
        from marline._executor.spawned import become_spawned

        become_spawned(variable)
    serve(variable)


def serve(variable: str) -> None:
    """Runs an executor in this process."""
    from marline import _native
    from marline._executor import runner

    for stream in (sys.stdout, sys.stderr):
        # Writes a line together with its end, even if Python was started without buffering.
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reseed()
    runner.prepare()
    _native.serve(variable)


def reseed() -> None:
    """Seeds random numbers again: forks of one process must not draw the same ones."""
    if "random" in sys.modules:
        sys.modules["random"].seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4)))
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(int.from_bytes(os.urandom(8)) >> 1)


def share() -> None:
    """Freezes all objects, so that garbage collections in forks do not copy their memory."""
    gc.collect()
    gc.freeze()


def warm() -> None:
    """Imports modules that only some executors need, once for all later forks."""
    import hashlib  # noqa: F401
    import random  # noqa: F401

    import marline._api.cluster
    import marline._environment.apply
    import marline._executor.event_loop
    import marline._serialize.failures  # noqa: F401

    share()


def main() -> None:
    # Imported once, for all forks.
    import marline._executor.runner  # noqa: F401

    worker = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    # Ctrl-C at a terminal is for the driver, which decides what ends. This process has its own
    # group: it survives when the driver's group is killed, and cleans up.
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
