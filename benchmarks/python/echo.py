"""The floor of a round trip: a message to another Python process and back, through the kernel.

`Echo` is this side. The other side is `python echo.py IN OUT [CPU]`: it reads from one descriptor
and writes the same bytes to the other. Both sides block, and neither pickles.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

# About as many bytes as a task without arguments takes on its way to an executor.
MESSAGE = os.urandom(100)
LARGEST = 4096


class Echo:
    """Another process that sends back what it reads, over a Unix socket or two pipes."""

    def __init__(self, kind: str, cpu: int | None = None) -> None:
        if kind == "socket":
            here, there = socket.socketpair()
            self._read = self._write = here.detach()
            theirs = [there.fileno(), there.fileno()]
            there.detach()
        else:
            their_read, self._write = os.pipe()
            self._read, their_write = os.pipe()
            theirs = [their_read, their_write]
        words = [
            sys.executable,
            "-S",
            "-E",
            __file__,
            *map(str, theirs),
            *([] if cpu is None else [str(cpu)]),
        ]
        self._process = subprocess.Popen(words, pass_fds=theirs)
        for descriptor in set(theirs):
            os.close(descriptor)

    def there_and_back(self) -> None:
        os.write(self._write, MESSAGE)
        os.read(self._read, LARGEST)

    def end(self) -> None:
        for descriptor in {self._read, self._write}:
            os.close(descriptor)
        self._process.wait(10)


def main() -> None:
    read, write, *cpu = map(int, sys.argv[1:])
    if cpu:
        os.sched_setaffinity(0, cpu)
    while data := os.read(read, LARGEST):
        os.write(write, data)


if __name__ == "__main__":
    main()
