"""What the machine itself can do, and what the standard library and Dask make of it."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from figures import SCALE, timed


def noop() -> None: ...


def double(x: int) -> int:
    return 2 * x


def echo(ours: socket.socket, theirs: socket.socket) -> None:
    ours.close()  # Or the end of the other process would never be seen.
    while data := theirs.recv(4096):
        theirs.send(data)


def socket_round_trip() -> dict[str, float]:
    """A message of the size of a task to another process, and back, both blocking."""
    ours, theirs = socket.socketpair()
    child = multiprocessing.get_context("fork").Process(target=echo, args=(ours, theirs))
    child.start()
    theirs.close()
    message = os.urandom(100)

    def there_and_back() -> None:
        ours.send(message)
        ours.recv(4096)

    figures = timed(there_and_back, 5000)
    ours.close()
    child.join()
    return figures


def pool() -> dict[str, dict[str, float]]:
    with ProcessPoolExecutor(2) as executor:
        executor.submit(noop).result()
        figures = {"task there and back": timed(lambda: executor.submit(noop).result(), 3000)}
        count = 10_000 // SCALE
        began = time.perf_counter()
        for future in [executor.submit(noop) for _ in range(count)]:
            future.result()
        figures["tasks in bulk (10,000)"] = {"rate": count / (time.perf_counter() - began)}
        items = 200_000 // SCALE
        began = time.perf_counter()
        assert sum(1 for _ in executor.map(double, range(items), chunksize=1000)) == items
        figures["map, chunked (200,000)"] = {"rate": items / (time.perf_counter() - began)}
    return figures


def dask() -> dict[str, dict[str, float]]:
    from dask.distributed import Client

    with Client(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as client:
        client.submit(noop, pure=False).result()
        figures = {"task there and back": timed(lambda: client.submit(noop, pure=False).result(), 500)}
        count = 1000 // SCALE
        began = time.perf_counter()
        client.gather([client.submit(noop, pure=False) for _ in range(count)])
        figures["tasks in bulk (1,000)"] = {"rate": count / (time.perf_counter() - began)}
    return figures


if __name__ == "__main__":
    if "dask" in sys.argv:
        print(json.dumps({"figures": dask()}))
    else:
        print(json.dumps({"floor": socket_round_trip(), "figures": pool()}))
