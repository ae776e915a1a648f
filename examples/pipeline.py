"""A data pipeline: map, shuffle by key, reduce. Stages fail, the data does not fit in memory, and still
no order is lost or counted twice. (Needs numpy.)

1. Map: tasks read files of orders and divide them by customer. Some reads fail, and some kill their
   process. Marline runs those tasks again. At most a few files are in flight at a time.
2. Shuffle: the divided orders stay in shared memory. Orders that do not fit there go to the disk.
3. Reduce: tasks add up the orders of each customer. They read shared memory without a copy, and load
   spilled pieces from the disk when it is their turn.

At the end the program compares the result with that of a plain loop.

    python examples/pipeline.py                    a cluster in this process, with 40 MB for large values
    python examples/pipeline.py --address auto     the cluster of `marline up` on this machine, or host:port
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

import marline
import numpy as np

FILES = 60
ORDERS = 150_000  # in a file
CUSTOMERS = 5_000
PARTS = 4  # into which customers are divided
IN_FLIGHT = 4  # files that are being read at a time
MB = 1_000_000

Array = np.ndarray[Any, Any]


def read(file: int) -> tuple[Array, Array]:
    """Returns the orders in a file: customers and cents. They are generated, the same each time."""
    chance = np.random.default_rng(file)
    customers = (chance.pareto(0.5, ORDERS) % CUSTOMERS).astype(np.uint32)
    return customers, chance.integers(1, 10_000, ORDERS, dtype=np.uint32)


def added_up(customers: Array, cents: Array) -> Array:
    """Returns the number of orders and the cents of each customer."""
    orders = np.bincount(customers, minlength=CUSTOMERS)
    return np.stack([orders, np.bincount(customers, weights=cents, minlength=CUSTOMERS).astype(np.int64)])


def trouble(file: int) -> None:
    """Makes the first attempt fail for some files."""
    if marline.get_runtime_context().attempt == 1:
        if file % 20 == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if file % 20 == 13:
            raise ConnectionError(f"file {file} cannot be reached")


# A task whose process is lost runs again (max_retries is 3 by default), and so does a task that raises
# one of these exceptions.
@marline.remote(num_returns=1 + PARTS, retry_exceptions=[ConnectionError])
def split(file: int) -> list[Any]:
    """The map stage. Returns the number of this attempt, and the orders in a file, divided by customer."""
    trouble(file)
    customers, cents = read(file)
    parts = [np.stack([customers[chosen], cents[chosen]]) for chosen in in_parts(customers)]
    return [marline.get_runtime_context().attempt, *parts]


def in_parts(customers: Array) -> list[Array]:
    return [customers % PARTS == part for part in range(PARTS)]


def add_up(pieces: list[marline.ObjectRef]) -> Array:
    """The reduce stage: adds up a part of the customers over all files. It reads one piece after the
    other, so only one has to be in memory."""
    total = np.zeros((2, CUSTOMERS), dtype=np.int64)
    for piece in pieces:
        customers, cents = marline.get(piece)  # Read in shared memory: no copy.
        total += added_up(customers, cents)
    return total


def pipeline() -> Array:
    by_part: list[list[marline.ObjectRef]] = [[] for _ in range(PARTS)]
    attempts: list[marline.ObjectRef] = []
    reading: list[marline.ObjectRef] = []
    for file in range(FILES):
        if len(reading) == IN_FLIGHT:
            _, reading = marline.wait(reading)
        attempt, *pieces = split.remote(file)
        attempts.append(attempt)
        reading.append(attempt)
        for part, piece in zip(by_part, pieces, strict=True):
            part.append(piece)
    print(f"{FILES} files read, {sum(marline.get(attempts)) - FILES} of them again after the first attempt")
    total = np.zeros((2, CUSTOMERS), dtype=np.int64)
    for part_total in marline.map(add_up, by_part, ordered=False, progress=True):
        total += part_total
    return total


def say_what_was_kept() -> None:
    stores = marline.object_stores()
    limit, written = (sum(one[name] for one in stores) / MB for name in ("limit", "written"))
    orders = FILES * ORDERS * 8 / MB
    print(f"{orders:.0f} MB of orders, memory for {limit:.0f} MB; {written:.0f} MB went to the disk")


def plain() -> Array:
    """Returns the same result, from a plain loop in this process."""
    total = np.zeros((2, CUSTOMERS), dtype=np.int64)
    for file in range(FILES):
        total += added_up(*read(file))
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description="orders added up by customer")
    parser.add_argument("--address", help="the cluster: auto, or host:port (default: one in this process)")
    parser.add_argument("--memory", type=int, default=40 * MB, help="bytes, for a cluster in this process")
    arguments = parser.parse_args()
    memory = arguments.memory if arguments.address is None else None
    with marline.init(arguments.address, object_store_memory=memory):
        total = pipeline()
        say_what_was_kept()
    orders, cents = total
    for customer in np.argsort(cents)[:-4:-1]:
        print(f"{f'customer-{customer}':>14} {cents[customer] / 100:14,.2f}")
    print(f"{orders.sum()} orders of {np.count_nonzero(orders)} customers")
    if not np.array_equal(total, plain()):
        sys.exit("a plain loop has another result: an order was lost or counted twice")
    print("a plain loop has the same result")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
