"""Drivers: how they begin, end, are interrupted, killed and forked; what is left is nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import PATIENCE, descendants, lives, until

PREAMBLE = """
import os, sys, time
import marline

@marline.remote
def nap(seconds):
    time.sleep(seconds)
    return os.getpid()

@marline.remote
class Sitter:
    def pid(self):
        return os.getpid()

def say(*words):
    print(*words, flush=True)
"""


class Driver:
    """A script of a user's in a process of its own, with a folder for what runs."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        (folder / "run").mkdir(exist_ok=True)
        (folder / "tmp").mkdir(exist_ok=True)
        path = folder / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "XDG_RUNTIME_DIR": str(folder / "run"),
                "TMPDIR": str(folder / "tmp"),
            },
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err

    def left(self) -> list[str]:
        """The files that are left."""
        places = [self.folder / "run" / "marline", self.folder / "tmp"]
        return [entry.name for place in places if place.is_dir() for entry in place.iterdir()]


@pytest.fixture
def driver(tmp_path: Path):  # type: ignore[no-untyped-def]
    started: list[Driver] = []

    def start(script: str) -> Driver:
        started.append(Driver(tmp_path, script))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_a_script_that_ends_leaves_nothing(driver) -> None:  # type: ignore[no-untyped-def]
    script = driver(
        """
        marline.init(num_cpus=2)
        sitter = Sitter.remote()
        say(marline.get(sitter.pid.remote()))
        say(os.getpid(), marline.get(nap.remote(0)))
        """
    )
    pids = [int(word) for word in (script.line() + " " + script.line()).split()]
    assert script.end()[0] == 0
    assert not any(lives(pid) for pid in pids)
    assert script.left() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_driver_leaves_nothing(driver, how: signal.Signals) -> None:  # type: ignore[no-untyped-def]
    script = driver(
        """
        marline.init(num_cpus=2)
        sitter = Sitter.remote()
        marline.get(sitter.pid.remote())
        ref = nap.remote(600)
        say("ready")
        marline.get(ref)
        """
    )
    assert script.line() == "ready"
    family = descendants(script.process.pid)
    assert len(family) >= 3
    script.process.send_signal(how)
    script.end()
    until("all are dead", lambda: not any(lives(pid) for pid in family))
    until("nothing is left", lambda: script.left() == [])


def test_ctrl_c_ends_a_wait(driver) -> None:  # type: ignore[no-untyped-def]
    script = driver(
        """
        marline.init(num_cpus=1)
        marline.get(nap.remote(0))
        for wait in (lambda: marline.get(nap.remote(600)), lambda: marline.wait([nap.remote(600)])):
            try:
                say("waiting")
                wait()
            except KeyboardInterrupt:
                say("interrupted")
        """
    )
    for _ in range(2):
        assert script.line() == "waiting"
        # It may not have begun to wait: the interrupt counts all the same.
        script.process.send_signal(signal.SIGINT)
        assert script.line() == "interrupted"
    code, _, err = script.end()
    assert (code, script.left()) == (0, []), err


def test_ctrl_c_at_a_terminal_reaches_the_driver_alone(driver) -> None:  # type: ignore[no-untyped-def]
    script = driver(
        """
        marline.init(num_cpus=1)
        ref = nap.remote(600)
        say("ready")
        marline.get(ref)
        """
    )
    assert script.line() == "ready"
    pid = script.process.pid
    until("all are there", lambda: len(descendants(pid)) >= 2)
    # A fork leaves the group of the process whose fork it is a moment later.
    until(
        "nobody shares its group",
        lambda: all(os.getpgid(child) != os.getpgid(pid) for child in descendants(pid)),
    )


def test_a_fork_leaves_its_parents_handles_alone_and_can_join_itself(driver) -> None:  # type: ignore[no-untyped-def]
    script = driver(
        """
        marline.init(num_cpus=1)
        ref = marline.put(1)
        sitter = Sitter.remote()
        marline.get(sitter.pid.remote())
        child = os.fork()
        if child == 0:
            try:
                sitter.pid.remote()
            except marline.MarlineError as error:
                say("inert:", error)
            del ref, sitter
            marline.shutdown()
            marline.init(num_cpus=1)
            say("joined:", marline.get(nap.remote(0)) != os.getpid())
            marline.shutdown()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say("status:", status)
        say("parent:", marline.get(ref))
        """
    )
    code, out, err = script.end()
    lines = out.splitlines()
    assert code == 0, err
    assert lines[0].startswith("inert: this belongs to the process that was forked")
    assert lines[1:] == ["joined: True", "status: 0", "parent: 1"]
    assert script.left() == []


def test_clusters_of_two_drivers_do_not_meet(driver) -> None:  # type: ignore[no-untyped-def]
    source = """
        marline.init(num_cpus=1)
        Sitter.options(name="sitter", lifetime="detached").remote()
        say("ready")
        sys.stdin.readline()
        """
    first, second = driver(source), driver(source)
    assert [first.line(), second.line()] == ["ready", "ready"]


def test_importing_starts_nothing(driver) -> None:  # type: ignore[no-untyped-def]
    script = driver(
        """
        import threading
        say(threading.active_count(), len(os.listdir("/proc/self/task")), marline.is_initialized())
        """
    )
    assert script.line() == "1 1 False"


def test_init_twice_says_what_to_do(driver) -> None:  # type: ignore[no-untyped-def]
    script = driver(
        """
        marline.init(num_cpus=1)
        try:
            marline.init()
        except RuntimeError as error:
            say(error)
        marline.init(ignore_reinit_error=True)
        marline.shutdown()
        marline.shutdown()
        say(marline.get(nap.remote(0)) > 0)  # Starts one by itself.
        """
    )
    assert "marline.shutdown() first" in script.line()
    assert script.line() == "True"
