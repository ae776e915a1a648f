"""One large array, read by four tasks at a time, without a copy. (Needs numpy.)

The array is put once, into shared memory. Each task gets a view of it. The program checks the memory of
every process: its private memory must not grow by the size of the array, its shared memory does.

    python examples/shared_array.py                    a cluster in this process, an array of 1 GB
    python examples/shared_array.py --address auto     the cluster of `marline up` here, or host:port
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import marline
import numpy as np

MB = 1_000_000
TASKS = 4
PYTHON = 100  # MB of private memory that a process with numpy may have anyway

Array = np.ndarray[Any, Any]


def memory() -> tuple[float, float]:
    """Returns the private and the shared memory of this process, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own, shared = (int(lines[name].split()[0]) * 1024 / MB for name in ("RssAnon", "RssShmem"))
    return own, shared


@marline.remote
def total(array: Array) -> tuple[int, int, float, float, float, float]:
    """Returns the sum, the process id, the time, and the memory: private, its growth, and shared."""
    began, (before, _) = time.perf_counter(), memory()
    result = int(array.sum())
    own, shared = memory()
    return result, os.getpid(), time.perf_counter() - began, own, own - before, shared


def room(arguments: argparse.Namespace) -> tuple[int, str]:
    """Returns the size of the array in bytes, and why it is smaller than requested (empty: it is not)."""
    if arguments.address is None:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        # Until it is put, this process has an array of its own. Both must fit, and other programs.
        most, why = int(fields["MemAvailable"].split()[0]) * 1024 // 4, "a quarter of the memory that is free"
    else:
        most = min((one["limit"] * 9 // 10 for one in marline.object_stores()), default=64 * MB)
        why = "what fits into the store of each worker"
    return (arguments.megabytes * MB, "") if arguments.megabytes * MB <= most else (most, why)


def run(size: int) -> None:
    began, array = time.perf_counter(), np.arange(size // 8)
    made, began = time.perf_counter() - began, time.perf_counter()
    ref = marline.put(array)
    put = time.perf_counter() - began
    expected = int(array.sum())
    del array
    print(f"an array of {size / MB:,.0f} MB: made in {made:.2f} s, put into shared memory in {put:.2f} s")
    began = time.perf_counter()
    readers = marline.get([total.remote(ref) for _ in range(TASKS)])
    took = time.perf_counter() - began
    for _, pid, seconds, own, grown, shared in readers:
        print(
            f"  process {pid} added it up in {seconds:.2f} s: {own:5.0f} MB of its own ({grown:+.0f}), "
            f"{shared:,.0f} MB shared"
        )
    print(f"{TASKS} tasks took {took:.2f} s; copies would have been {TASKS * size / MB:,.0f} MB more")
    if any(result != expected for result, *_ in readers):
        sys.exit("a task has another sum: it did not get the array that was put")
    if any(max(own - PYTHON, grown) > size / MB / 10 for *_, own, grown, _ in readers):
        sys.exit("a task has too much private memory: the array was copied")
    print("every sum is right, and no process has a copy")


def main() -> None:
    parser = argparse.ArgumentParser(description="one array in shared memory, read by four tasks")
    parser.add_argument("--address", help="the cluster: auto, or host:port (default: one in this process)")
    parser.add_argument("--megabytes", type=int, default=1000, help="the size of the array (1000)")
    arguments = parser.parse_args()
    if arguments.address is None:
        size, why = room(arguments)
        running = marline.init(num_cpus=TASKS, object_store_memory=size + 16 * MB)
    else:
        running = marline.init(arguments.address)
        size, why = room(arguments)
    with running:
        if why:
            print(f"{arguments.megabytes} MB are more than {why}: it is {size / MB:,.0f} MB here")
        run(size)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
