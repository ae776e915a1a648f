"""A data pipeline: map, shuffle by key, reduce; with stages that fail, and nothing lost or counted twice.

Files of orders are read and split by customer, then added up for each customer. Some reads fail, and some
kill the process that they run in; those tasks run again by themselves. However many files there are, a few
are in flight at a time. What was split goes by reference to where it is added up. At the end the result is
compared with that of a plain loop.

    python examples/pipeline.py                    a cluster in this process
    python examples/pipeline.py --address auto     the one that `marline up` runs here, or host:port
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import marline

FILES = 120
LINES = 2000  # in a file
PARTS = 16  # into which customers are divided
IN_FLIGHT = 8  # files that are being read at a time


def read(file: int) -> Iterator[tuple[str, int]]:
    """The orders in a file: who, and how many cents. (Made up here, the same each time.)"""
    orders = random.Random(file)
    for _ in range(LINES):
        line = f"customer-{int(orders.paretovariate(0.5)) % 5000},{orders.randrange(1, 10_000)}"
        customer, cents = line.split(",")
        yield customer, int(cents)


def part_of(customer: str) -> int:
    # Not hash(): that of a string is another one in each process.
    return zlib.crc32(customer.encode()) % PARTS


def trouble(file: int) -> None:
    """What goes wrong with some files, when they are read for the first time."""
    if marline.get_runtime_context().attempt == 1:
        if file % 20 == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if file % 20 == 13:
            raise ConnectionError(f"file {file} cannot be reached")


# A lost process is no reason to fail (max_retries is 3, unless said otherwise); neither are these exceptions.
@marline.remote(num_returns=1 + PARTS, retry_exceptions=[ConnectionError])
def split(file: int) -> list[Any]:
    """The map stage: which attempt this is, and what each customer spent according to a file, in parts."""
    trouble(file)
    parts: list[Counter[str]] = [Counter() for _ in range(PARTS)]
    for customer, cents in read(file):
        parts[part_of(customer)][customer] += cents
    return [marline.get_runtime_context().attempt, *parts]


def add_up(pieces: list[marline.ObjectRef]) -> Counter[str]:
    """The reduce stage: a part of the customers, over all files."""
    total: Counter[str] = Counter()
    for piece in marline.get(pieces):
        total.update(piece)
    return total


def pipeline() -> Counter[str]:
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
    spent: Counter[str] = Counter()
    for total in marline.map(add_up, by_part, ordered=False, progress=True):
        spent.update(total)
    return spent


def plain() -> Counter[str]:
    """The same in one process, one after the other."""
    spent: Counter[str] = Counter()
    for file in range(FILES):
        for customer, cents in read(file):
            spent[customer] += cents
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description="orders added up by customer")
    parser.add_argument("--address", help="of a cluster: auto, or host:port (default: one in this process)")
    arguments = parser.parse_args()
    with marline.init(arguments.address):
        spent = pipeline()
    for customer, cents in spent.most_common(3):
        print(f"{customer:>14} {cents / 100:12,.2f}")
    print(f"{FILES * LINES} orders of {len(spent)} customers")
    if spent != plain():
        sys.exit("a plain loop has another result: something was lost or counted twice")
    print("a plain loop has the same result")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
