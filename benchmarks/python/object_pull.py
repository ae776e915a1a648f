"""Measures how long a large value takes from one node to another.

`python object_pull.py marline --out FILE`, or `ray`. Both nodes are on one machine. For comparison,
the same bytes go through a socket of the loopback interface.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import contain
import figures
import footprint
import numpy as np

api: Any = importlib.import_module(sys.argv[1])

SIZES = {"1 MB": 10**6, "100 MB": 10**8, "1 GB": 10**9}
COUNTS = {"1 MB": 50, "100 MB": 10, "1 GB": 3}
# The memory of each node's store, in bytes.
STORE = 4 * 10**9


def give(size: int, kept: dict[int, Any] = {}) -> Any:  # noqa: B006
    """Returns an array of this size, the same one each time, so that making it is not measured."""
    if size not in kept:
        kept.clear()
        kept[size] = np.ones(size, np.uint8)
    return kept[size]


def length(array: Any) -> int:
    return len(array)


remote_give: Any = api.remote(give)
remote_length: Any = api.remote(length)


@contextmanager
def marline_nodes() -> Iterator[None]:
    """Starts a controller and two workers as separate processes, and joins them."""
    beside = Path(sys.executable).parent / "marline"
    binary = os.environ.get("MARLINE_BINARY", str(beside))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "MARLINE_STORE_MEMORY": str(STORE)}

        def start(*words: str) -> dict[str, Any]:
            command = [binary, "--json", *words]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            started.callback(process.wait, 30)
            started.callback(process.terminate)
            assert process.stdout is not None
            announced: dict[str, Any] = json.loads(process.stdout.readline())
            return announced

        controller = start("controller", "--listen", "127.0.0.1:0")
        for name in ("left", "right"):
            start("worker", "--quiet", "--python", sys.executable, "--cpus", "1", "--resource", f"{name}=1")
        token = Path(controller["token_file"]).read_text().strip()
        with api.init(controller["address"], token=token):
            yield


@contextmanager
def ray_nodes() -> Iterator[None]:
    """Starts two nodes in the way of Ray's own tests, and joins them."""
    contain.require_isolation()
    utilities = importlib.import_module("ray.cluster_utils")
    nodes = utilities.Cluster()
    for name in ("left", "right"):
        nodes.add_node(num_cpus=1, resources={name: 1}, object_store_memory=STORE, include_dashboard=False)
    api.init(address=nodes.address, logging_level="ERROR")
    contain.require_isolation(footprint.descendants())
    yield
    api.shutdown()
    nodes.shutdown()


def puller(size: int) -> Callable[[], float]:
    """Returns a function that makes a value on one node and uses it in a task on the other.

    The function returns how long the task took, in microseconds.
    """
    left = remote_give.options(resources={"left": 1})
    right = remote_length.options(resources={"right": 1})

    def pull() -> float:
        ref = left.remote(size)
        api.wait([ref], fetch_local=False)
        return figures.calls(lambda: api.get(right.remote(ref)), 1)[0]

    return pull


def through_a_socket(size: int, count: int) -> list[float]:
    """Measures the same bytes from thread to thread through a socket.

    Returns times in microseconds.
    """
    data, room = bytes(size), memoryview(bytearray(size))
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()

    def send_once() -> None:
        thread = threading.Thread(target=sender.sendall, args=(data,))
        thread.start()
        got = 0
        while got < size:
            got += receiver.recv_into(room[got:])
        thread.join()

    with sender, receiver:
        return figures.calls(send_once, count)


def main() -> None:
    parser = figures.arguments()
    parser.add_argument("api", choices=["marline", "ray"])
    parser.add_argument(
        "--small", action="store_true", help="use no value above 2 MB, to check that the program runs"
    )
    options = parser.parse_args()
    recorder = figures.FigureRecorder(options.scale)
    with {"marline": marline_nodes, "ray": ray_nodes}[options.api]():
        for name, size in SIZES.items():
            size = min(size, 2 * 10**6) if options.small else size
            count, pull = recorder.count(COUNTS[name], 2), puller(size)
            for _ in range(2):
                pull()
            recorder.spread(f"pull {name}", [pull() for _ in range(count)])
            recorder.spread(f"socket {name}", through_a_socket(size, count + 1)[1:])
    figures.write(options.out, getattr(api, "__version__", "of this commit"), recorder.figures)


if __name__ == "__main__":
    main()
