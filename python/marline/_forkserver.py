"""The process whose forks are executors: it has imported what they need, and has one thread.

Its standard input is a socket to its worker, which says what to fork and what to wait for. It ends when
the worker does.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import sys

# The longest message.
MAX_BYTES = 128 << 10


def main() -> None:
    # Imported here, once, for all forks.
    import marline._executor
    import marline._session  # noqa: F401

    worker = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    # An interrupt at a terminal is for the driver: it ends what is to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # What is shared with forks is not touched by their collections.
    while True:
        message, descriptors, _, _ = socket.recv_fds(worker, MAX_BYTES, 3)
        if not message:
            return
        kind, _, rest = message.decode().partition(" ")
        if kind == "setup":
            set_up(json.loads(rest))
        elif kind == "fork":
            number, variable = rest.split(" ", 1)
            fork(worker, number, variable, descriptors)
        elif kind == "reap":
            reap(worker, int(rest))


def set_up(setup: dict[str, object]) -> None:
    """Looks for modules where the driver does."""
    path = setup.get("path")
    if isinstance(path, list):
        sys.path[:] = path
    address, token = setup.get("address"), setup.get("token")
    if isinstance(address, str):
        from marline import _session

        _session.home = (address, token if isinstance(token, str) else None)
    folder = setup.get("folder")
    if isinstance(folder, str) and os.path.isdir(folder):
        os.chdir(folder)


def fork(worker: socket.socket, number: str, variable: str, descriptors: list[int]) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        pid = None
        worker.send(f"failed {number} {error.errno}".encode())
    if pid == 0:
        try:
            worker.close()
            become_executor(variable, descriptors)
        finally:
            os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)
    if pid is not None:
        worker.send(f"born {number} {pid}".encode())


def become_executor(variable: str, descriptors: list[int]) -> None:
    from marline import _executor, _native

    os.setpgid(0, 0)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reseed()
    _executor.prepare()
    _native.serve(variable)


def reseed() -> None:
    """Forks of one process must not draw the same numbers."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4)))
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(int.from_bytes(os.urandom(8)) >> 1)


def reap(worker: socket.socket, pid: int) -> None:
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        status = -1
    worker.send(f"dead {pid} {status}".encode())


if __name__ == "__main__":
    main()
