"""The worker program of the tests: functions and a class whose runs leave traces."""

from __future__ import annotations

import os
import time

import worker


def add(a: int, b: int) -> int:
    return a + b


def divide(a: int, b: int) -> tuple[int, int]:
    return a // b, a % b


def fail(message: str) -> None:
    raise ValueError(message)


def pid() -> int:
    return os.getpid()


def hold(value: object, journal: str, gate: str) -> object:
    """Waits until the file `gate` exists, and returns the value.

    Writes its start and end to the journal.
    """
    note(journal, "started")
    try:
        while not os.path.exists(gate):
            time.sleep(0.005)
    except BaseException:
        note(journal, "stopped")
        raise
    note(journal, "ended")
    return value


def note(journal: str, what: str) -> None:
    with open(journal, "a") as file:
        file.write(f"{what} {os.getpid()} {time.monotonic()}\n")


class Counter:
    def __init__(self, start: int) -> None:
        if start < 0:
            raise ValueError("a counter starts at 0 or above")
        self.total, self.seen = start, list[int]()

    def add(self, number: int) -> int:
        self.seen.append(number)
        self.total += number
        return self.total

    def order(self) -> list[int]:
        return self.seen

    def fail(self) -> None:
        raise KeyError("nothing there")

    def pid(self) -> int:
        return os.getpid()

    def hold(self, journal: str, gate: str) -> object:
        return hold(self.total, journal, gate)


if __name__ == "__main__":
    # With `python:*` the worker also gets tasks for functions that it does not have.
    worker.main([add, divide, fail, pid, hold], [Counter], ["python:*"])
