"""Fixtures and helpers of all tests of the package.

Each test starts its own cluster. When the test ends, the fixture waits until every process of the
cluster has ended. Helpers that look at object stores are in `store.py`, those that inject faults in
`faults.py`.
"""

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

# The longest wait of a test, in seconds: far longer than any step takes on a busy machine.
PATIENCE = 60.0

# A shell starts background jobs with SIGINT ignored. The scripts of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until(what: str | Callable[[], str], condition: Callable[[], bool]) -> None:
    """Waits until the condition holds. Fails with `what` after a minute.

    `what` says what the condition is. A function is called only when the wait fails.
    """
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited a minute: {what() if callable(what) else what}"
        time.sleep(0.002)


def is_alive(pid: int) -> bool:
    """Returns whether a process with this id exists and has not ended. A zombie has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def descendants(pid: int) -> set[int]:
    """Returns the children of a process, their children, and so on."""
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


class SeparateCluster:
    """A cluster of separate processes: a controller and its workers, or one `marline up`."""

    def __init__(
        self, folder: Path, command: str = "controller", *words: str, listen: str = "127.0.0.1"
    ) -> None:
        # Words that stand before each command, such as `ip netns exec NAME`.
        self.command_prefix: list[str] = []
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self.folder: Path | None = None
        self.processes: list[subprocess.Popen[str]] = []
        announced = self.start(command, "--listen", f"{listen}:0", *words)
        self.address: str = announced["address"]
        self.token = Path(announced["token_file"]).read_text().strip()

    def start(self, *words: str) -> dict[str, Any]:
        """Starts a `marline` process and returns the JSON line that it prints when it is ready."""
        binary = os.environ.get("MARLINE_BINARY", "marline")
        process = subprocess.Popen(
            [*self.command_prefix, binary, "--json", *words],
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


class RestartableCluster(SeparateCluster):
    """A cluster whose controller can be killed and started again at the same address.

    The token comes from a file, so that it stays the same for every controller.
    """

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
def marline_up(folder: Path, *words: str) -> Iterator[SeparateCluster]:
    """Runs `marline up` with two CPUs, and ends it afterwards."""
    running = SeparateCluster(folder, "up", "--cpus", "2", "--quiet", "--python", sys.executable, *words)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture(params=["embedded", "separate"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster with two CPUs that the test has joined: embedded in this process, or separate."""
    before = descendants(os.getpid())
    if request.param == "embedded":
        with marline.init(num_cpus=2):
            yield request.param
    else:
        separate = SeparateCluster(tmp_path_factory.mktemp("run"))
        try:
            separate.worker("--cpus", "2")
            with marline.init(separate.address, token=separate.token):
                yield request.param
        finally:
            separate.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


@pytest.fixture
def restartable_cluster(tmp_path: Path) -> Iterator[RestartableCluster]:
    before = descendants(os.getpid())
    started = RestartableCluster(tmp_path / "run")
    try:
        started.worker("--cpus", "2", "--address", started.address)
        with marline.init(started.address, token=started.token):
            yield started
    finally:
        started.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


# The engines of `marline.Context`.
CONTEXTS = ["sync", "threads", "local", "host:port"]
CONTEXTS_ON_CLUSTERS = ["local", "host:port"]


@pytest.fixture(params=CONTEXTS)
def engine(request: pytest.FixtureRequest) -> str:
    """The engine of a `marline.Context`."""
    return str(request.param)


@pytest.fixture
def ctx(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[marline.Context]:
    """A context on each engine, with two CPUs.

    When the test ends, every process that the context started must have ended, and on engines
    without a cluster every thread that it started in this process, too.
    """
    before, threads = descendants(os.getpid()), set(threading.enumerate())
    if engine == "host:port":
        separate = SeparateCluster(tmp_path_factory.mktemp("run"))
        try:
            separate.worker("--cpus", "2")
            with marline.Context(separate.address, token=separate.token) as context:
                yield context
        finally:
            separate.end()
    else:
        with marline.Context(engine, num_cpus=2) as context:
            yield context
    wait_until("every process of the context has ended", lambda: not (descendants(os.getpid()) - before))
    if engine not in CONTEXTS_ON_CLUSTERS:
        wait_until("every thread of the context has ended", lambda: not set(threading.enumerate()) - threads)


def skip(engine: str, *engines: str, why: str) -> None:
    """Skips the test on engines that lack what it needs. docs/python.md lists these limits."""
    if engine in engines:
        pytest.skip(f"{engine}: {why}")


# The beginning of the source of every `Script`. A script prints lines for the test with
# `print_line`, and waits in `wait_for_resume` until the test calls `Script.resume`.
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

def print_line(*words):
    print(*words, flush=True)

def wait_for_resume():
    return sys.stdin.readline()

"""


class Script:
    """A user's script, in a process of its own. Its source is `PREAMBLE` and `source`."""

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
        """Waits for the next line that the script prints, and returns it without the line end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def resume(self) -> None:
        """Lets the script's `wait_for_resume` return."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, patience: float = PATIENCE) -> tuple[int, str, str]:
        """Waits for the script's end.

        Returns its exit code and the unread rest of its two outputs.
        """
        out, err = self.process.communicate(timeout=patience)
        return self.process.returncode, out, err


@pytest.fixture
def scripts() -> Iterator[list[Script]]:
    """A list to which a test adds the scripts that it starts.

    Those that still run at its end are killed.
    """
    started: list[Script] = []
    yield started
    for script in started:
        if script.process.poll() is None:
            script.process.kill()
        script.process.communicate()


class CapturedOutput:
    """All that this process has written so far to its standard output and standard error.

    It reads pytest's capture files and leaves them as they are. `readouterr` would empty them, and
    lose what another thread writes at that moment.
    """

    def __init__(self) -> None:
        self.out = self.err = ""

    def look(self) -> CapturedOutput:
        self.out, self.err = (os.pread(fd, os.fstat(fd).st_size, 0).decode() for fd in (1, 2))
        return self

    def wait_until(self, text: str) -> None:
        wait_until(
            lambda: f"{text!r} is in the output {self.out + self.err!r}",
            lambda: self.look().shows(text),
        )

    def shows(self, text: str) -> bool:
        return text in self.out or text in self.err


@pytest.fixture
def captured_output(capfd: pytest.CaptureFixture[str]) -> CapturedOutput:
    return CapturedOutput()
