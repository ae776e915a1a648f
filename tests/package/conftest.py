"""Every test has a cluster of its own; at its end nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import marline
import pytest

# Far longer than anything here takes on a busy machine.
PATIENCE = 60.0


def until(what: str | Callable[[], str], condition: Callable[[], bool]) -> None:
    """Waits for a condition; what it waited for may be put into words at the end."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited a minute: {what() if callable(what) else what}"
        time.sleep(0.002)


def lives(pid: int) -> bool:
    """Whether there is a process that has this id and has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def descendants(pid: int) -> set[int]:
    """The processes that a process started, and those that they started."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry)] = int(stat.rsplit(")", 1)[1].split()[1])
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


class Separate:
    """A controller and workers as processes of their own; or, with `up`, what people start."""

    def __init__(self, folder: Path, kind: str = "controller", *words: str) -> None:
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self.folder: Path | None = None
        self.processes: list[subprocess.Popen[str]] = []
        announced = self.start(kind, "--listen", "127.0.0.1:0", *words)
        self.address: str = announced["address"]
        self.token = Path(announced["token_file"]).read_text().strip()

    def start(self, *words: str) -> dict[str, Any]:
        """Starts a process, and waits until it says that it has begun."""
        binary = os.environ.get("MARLINE_BINARY", "marline")
        process = subprocess.Popen(
            [binary, "--json", *words],
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.folder,
        )
        self.processes.append(process)
        assert process.stdout is not None
        announced: dict[str, Any] = json.loads(process.stdout.readline())
        return announced

    def worker(self, *words: str) -> dict[str, Any]:
        return self.start("worker", "--quiet", "--python", sys.executable, *words)

    def end(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE)


@contextlib.contextmanager
def up(folder: Path) -> Iterator[Separate]:
    """What `marline up` starts."""
    running = Separate(folder, "up", "--cpus", "2", "--quiet", "--python", sys.executable)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture(params=["embedded", "separate"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster with two CPUs: in this process, or in processes of its own."""
    before = descendants(os.getpid())
    if request.param == "embedded":
        with marline.init(num_cpus=2):
            yield request.param
    else:
        separate = Separate(tmp_path_factory.mktemp("run"))
        try:
            separate.worker("--cpus", "2")
            with marline.init(separate.address, token=separate.token):
                yield request.param
        finally:
            separate.end()
    until("nothing is left", lambda: not (descendants(os.getpid()) - before))
