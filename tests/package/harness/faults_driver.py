"""A driver of the fault suite: submits work of every kind and records how each piece of it ends.

    faults_driver.py NAME SEED PIECES FOLDER

Several threads submit pieces of work until PIECES were submitted (0: no limit) or the file
FOLDER/stop exists. Then the driver waits until every piece has ended. It writes two files that
tests read:

- FOLDER/NAME.ledger has one line of JSON for each submission and one for each end. `faults.Ledger`
  reads it.
- FOLDER/NAME.ran has one line for each attempt that ran. The attempt itself writes it.

The address of the cluster and its token file come from the environment.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import marline
import numpy as np

# The most pieces that run at a time: each thread waits for the end of its piece.
THREADS = 6
# How many seconds a piece may take. Retries and restarts wait up to 30 s each.
PATIENCE = 180.0
# Sizes in bytes: of values that travel with messages, and of values that go to a store.
SMALL, LARGE = 1_000, [120_000, 400_000, 2_000_000]

Array = np.ndarray[Any, np.dtype[np.uint32]]


def pattern(seed: int, size: int) -> Array:
    """Returns an array of `size` bytes that no other seed has."""
    return (np.arange(size // 4, dtype=np.uint32) + np.uint32(seed)) * np.uint32(2_654_435_761)


def sum_of(value: Array) -> int:
    return int(value.sum(dtype=np.uint64))


def note(ran: str, *words: object) -> None:
    """Adds a line to the file `ran` that says that this attempt runs.

    Each line is one write, so that lines of several processes do not mix.
    """
    context = marline.get_runtime_context()
    line = " ".join(
        str(word) for word in (*words, context.task_id, context.actor_epoch or 0, context.attempt)
    )
    with open(ran, "ab", buffering=0) as lines:
        lines.write(f"{line}\n".encode())


@marline.remote(max_retries=-1)
def square(ran: str, number: int, index: int, seconds: float = 0) -> int:
    note(ran, "square", number, index)
    time.sleep(seconds)
    return (number + index) ** 2


@marline.remote(max_retries=-1)
def make(seed: int, size: int) -> Array:
    return pattern(seed, size)


@marline.remote(max_retries=-1)
def add_up(value: Array) -> int:
    return sum_of(value)


@marline.remote(max_retries=-1)
def nest(ran: str, number: int) -> int:
    inner = [square.remote(ran, number, index) for index in range(100, 103)]
    large = make.remote(number, LARGE[0])
    squares: list[int] = marline.get(inner)
    return sum(squares) + sum_of(marline.get(large))


@marline.remote(max_retries=-1, num_returns="streaming")
def generate(seed: int, count: int, size: int) -> Iterator[Array]:
    for index in range(count):
        yield pattern(seed + index, size)


@marline.remote(max_restarts=-1, max_task_retries=-1)
class Counter:
    def __init__(self, ran: str) -> None:
        self.ran, self.count = ran, 0

    def add(self, number: int, index: int) -> tuple[int, int, int]:
        """Returns the epoch of the actor, how many calls this instance has had, and the result."""
        note(self.ran, "add", number, index)
        self.count += 1
        epoch = marline.get_runtime_context().actor_epoch
        assert epoch is not None
        return epoch, self.count, number * index

    def large(self, seed: int, size: int) -> Array:
        return pattern(seed, size)


class Driver:
    def __init__(self, name: str, seed: int, pieces: int, folder: Path) -> None:
        self.name, self.seed, self.pieces, self.folder = name, seed, pieces, folder
        self.ran = str(folder / f"{name}.ran")
        self.ledger = open(folder / f"{name}.ledger", "a")  # noqa: SIM115
        self.lock = threading.Lock()
        self.number = 0
        self.counters = [Counter.remote(self.ran) for _ in range(2)]
        project = folder / f"{name}.project"
        project.mkdir()
        (project / "faults_helper.py").write_text("def triple(x):\n    return 3 * x\n")
        self.triple = marline.remote(
            max_retries=-1, runtime_env={"py_modules": [str(project / "faults_helper.py")]}
        )(triple)
        # The kinds of work, with the weight of each in the random choice.
        self.kinds: dict[Callable[[int, random.Random], None], int] = {
            self.tasks: 20,
            self.slow_tasks: 10,
            self.nested: 10,
            self.calls: 20,
            self.passed: 12,
            self.fetched: 8,
            self.put: 8,
            self.returned: 5,
            self.stream: 10,
            self.packaged: 3,
        }

    def write(self, number: int, kind: str, event: str, **more: object) -> None:
        line = {"at": time.time(), "number": number, "kind": kind, "event": event, **more}
        with self.lock:
            self.ledger.write(json.dumps(line) + "\n")
            self.ledger.flush()

    def begin(self) -> int:
        """Returns the number of the next piece, or 0 if there is none."""
        with self.lock:
            if (self.folder / "stop").exists() or 0 < self.pieces <= self.number:
                return 0
            self.number += 1
            return self.number

    def run(self) -> None:
        while number := self.begin():
            choice = random.Random(f"{self.seed} {number}")
            kinds = list(self.kinds)
            # The first pieces are one of each kind.
            if number <= len(kinds):
                piece = kinds[number - 1]
            else:
                piece = choice.choices(kinds, list(self.kinds.values()))[0]
            kind = piece.__name__
            self.write(number, kind, "submit")
            try:
                piece(number, choice)
            except AssertionError as error:
                self.write(number, kind, "end", error="wrong", text=str(error)[-2000:])
            except Exception as error:
                text, where = str(error)[-2000:], line_of(error)
                self.write(number, kind, "end", error=type(error).__name__, text=text, where=where)
                # Without a pause, a driver whose session is over would fill the disk with errors.
                time.sleep(0.1)
            else:
                self.write(number, kind, "end")

    def tasks(self, number: int, choice: random.Random) -> None:
        refs = waiting = [square.remote(self.ran, number, index) for index in range(4)]
        while waiting:
            ready, waiting = marline.wait(waiting, timeout=PATIENCE)
            if not ready:
                raise marline.GetTimeoutError("wait() found nothing")
        for _ in range(2):
            equal(marline.get(refs, timeout=PATIENCE), [(number + index) ** 2 for index in range(4)])

    def slow_tasks(self, number: int, choice: random.Random) -> None:
        refs = [square.remote(self.ran, number, index, choice.uniform(0, 0.6)) for index in range(2)]
        equal(marline.get(refs, timeout=PATIENCE), [number**2, (number + 1) ** 2])

    def nested(self, number: int, choice: random.Random) -> None:
        expected = sum((number + index) ** 2 for index in range(100, 103)) + sum_of(pattern(number, LARGE[0]))
        equal(marline.get(nest.remote(self.ran, number), timeout=PATIENCE), expected)

    def calls(self, number: int, choice: random.Random) -> None:
        counter = choice.choice(self.counters)
        refs = [counter.add.remote(number, index) for index in range(5)]
        answers = marline.get(refs, timeout=PATIENCE)
        equal([answer for _, _, answer in answers], [number * index for index in range(5)])
        order = [(epoch, count) for epoch, count, _ in answers]
        assert order == sorted(set(order)), f"the calls ran out of order: {order}"

    def passed(self, number: int, choice: random.Random) -> None:
        """Passes a large result on to two tasks. The driver does not get it."""
        size = choice.choice(LARGE)
        ref = make.remote(number, size)
        sums = marline.get([add_up.remote(ref) for _ in range(2)], timeout=PATIENCE)
        equal(sums, [sum_of(pattern(number, size))] * 2)

    def fetched(self, number: int, choice: random.Random) -> None:
        size = choice.choice(LARGE)
        value = marline.get(make.remote(number, size), timeout=PATIENCE)
        assert np.array_equal(value, pattern(number, size)), "the large result is wrong"

    def put(self, number: int, choice: random.Random) -> None:
        size = choice.choice(LARGE)
        ref = marline.put(pattern(number, size))
        equal(marline.get(add_up.remote(ref), timeout=PATIENCE), sum_of(pattern(number, size)))
        assert np.array_equal(marline.get(ref, timeout=PATIENCE), pattern(number, size)), "the value is wrong"

    def returned(self, number: int, choice: random.Random) -> None:
        """Gets a large result of an actor call."""
        size = choice.choice(LARGE)
        value = marline.get(choice.choice(self.counters).large.remote(number, size), timeout=PATIENCE)
        assert np.array_equal(value, pattern(number, size)), "the large result is wrong"

    def stream(self, number: int, choice: random.Random) -> None:
        count, size = choice.choice([3, 20]), choice.choice([SMALL, LARGE[0]])
        came = 0
        for ref in generate.remote(number, count, size):
            value = marline.get(ref, timeout=PATIENCE)
            assert np.array_equal(value, pattern(number + came, size)), f"item {came} is wrong"
            came += 1
        equal(came, count)

    def packaged(self, number: int, choice: random.Random) -> None:
        equal(marline.get(self.triple.remote(number), timeout=PATIENCE), 3 * number)


def triple(number: int) -> int:
    import faults_helper  # type: ignore[import-not-found]

    result: int = faults_helper.triple(number)
    return result


def line_of(error: Exception) -> str | None:
    """Returns the line of this file from which an error came."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.line for frame in frames if frame.filename == __file__][-1]


def equal(came: object, expected: object) -> None:
    assert came == expected, f"{came}, not {expected}"


def main(name: str, seed: str, pieces: str, folder: str) -> None:
    with marline.init():
        driver = Driver(name, int(seed), int(pieces), Path(folder))
        threads = [threading.Thread(target=driver.run) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del driver
    print(f"ended {os.getpid()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
