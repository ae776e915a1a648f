"""Every test has a cluster of its own; at its end nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import marline
import pytest

# Far longer than anything here takes on a busy machine.
PATIENCE = 60.0

# A shell starts what runs in the background with SIGINT ignored. Scripts of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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

    def __init__(
        self, folder: Path, kind: str = "controller", *words: str, listen: str = "127.0.0.1"
    ) -> None:
        # What every command is preceded by.
        self.within: list[str] = []
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self.folder: Path | None = None
        self.processes: list[subprocess.Popen[str]] = []
        announced = self.start(kind, "--listen", f"{listen}:0", *words)
        self.address: str = announced["address"]
        self.token = Path(announced["token_file"]).read_text().strip()

    def start(self, *words: str) -> dict[str, Any]:
        """Starts a process, and waits until it says that it has begun."""
        binary = os.environ.get("MARLINE_BINARY", "marline")
        process = subprocess.Popen(
            [*self.within, binary, "--json", *words],
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


class Restartable(Separate):
    """A cluster whose controller can be killed, and come back where it was."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        file = folder / "token"
        file.touch(mode=0o600)
        file.write_text("known to all that are to come back")
        os.environ["MARLINE_TOKEN_FILE"] = str(file)
        try:
            super().__init__(folder)
        finally:
            del os.environ["MARLINE_TOKEN_FILE"]

    def restart(self) -> None:
        controller = self.processes.pop(0)
        controller.kill()
        controller.wait()
        self.start("controller", "--listen", self.address)
        self.processes.insert(0, self.processes.pop())


@contextlib.contextmanager
def up(folder: Path, *words: str) -> Iterator[Separate]:
    """What `marline up` starts."""
    running = Separate(folder, "up", "--cpus", "2", "--quiet", "--python", sys.executable, *words)
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


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[Restartable]:
    before = descendants(os.getpid())
    started = Restartable(tmp_path / "run")
    try:
        started.worker("--cpus", "2", "--address", started.address)
        with marline.init(started.address, token=started.token):
            yield started
    finally:
        started.end()
    until("nothing is left", lambda: not (descendants(os.getpid()) - before))


# The engines of `marline.Context`.
CONTEXTS = ["sync", "threads", "local", "host:port"]
CONTEXTS_ON_CLUSTERS = ["local", "host:port"]


@pytest.fixture(params=CONTEXTS)
def kind(request: pytest.FixtureRequest) -> str:
    """The engine of a context."""
    return str(request.param)


@pytest.fixture
def ctx(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[marline.Context]:
    """A context on each engine, with two CPUs. At its end no process is left, and no thread of this one."""
    before, threads = descendants(os.getpid()), set(threading.enumerate())
    if kind == "host:port":
        separate = Separate(tmp_path_factory.mktemp("run"))
        try:
            separate.worker("--cpus", "2")
            with marline.Context(separate.address, token=separate.token) as context:
                yield context
        finally:
            separate.end()
    else:
        with marline.Context(kind, num_cpus=2) as context:
            yield context
    until("no process is left", lambda: not (descendants(os.getpid()) - before))
    if kind not in CONTEXTS_ON_CLUSTERS:
        until("no thread is left", lambda: not set(threading.enumerate()) - threads)


def skip(kind: str, *kinds: str, why: str) -> None:
    """For what an engine cannot do; docs/python.md lists it."""
    if kind in kinds:
        pytest.skip(f"{kind}: {why}")


# What every script begins with.
PREAMBLE = """
import os, sys, time
import marline

@marline.remote
def nap(seconds):
    time.sleep(seconds)
    return os.getpid()

@marline.remote
class Counter:
    def __init__(self, count=0):
        self.count = count
    def add(self):
        self.count += 1
        return self.count
    def pid(self):
        return os.getpid()

def say(*words):
    print(*words, flush=True)

def told():
    return sys.stdin.readline()

"""


class Script:
    """A script of a user's, in a process of its own."""

    def __init__(self, source: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self) -> None:
        """What it waits for, to go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, patience: float = PATIENCE) -> tuple[int, str, str]:
        """How it ended, and what it printed that was not read."""
        out, err = self.process.communicate(timeout=patience)
        return self.process.returncode, out, err


@pytest.fixture
def scripts() -> Iterator[list[Script]]:
    """What a test starts; what runs at its end is killed."""
    started: list[Script] = []
    yield started
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


class Screen:
    """What this process has written so far. It is left where pytest keeps it: taking it out, as `readouterr`
    does, loses what another thread writes meanwhile."""

    def __init__(self) -> None:
        self.out = self.err = ""

    def look(self) -> Screen:
        self.out, self.err = (os.pread(fd, os.fstat(fd).st_size, 0).decode() for fd in (1, 2))
        return self

    def until(self, text: str) -> None:
        until(
            lambda: f"{text!r} is shown, not {self.out + self.err!r}",
            lambda: self.look().shows(text),
        )

    def shows(self, text: str) -> bool:
        return text in self.out or text in self.err


@pytest.fixture
def screen(capfd: pytest.CaptureFixture[str]) -> Screen:
    return Screen()
