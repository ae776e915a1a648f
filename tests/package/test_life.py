"""Drivers: how they begin, end, are interrupted, killed and forked; what is left is nothing."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Script, descendants, lives, until


class Driver(Script):
    """A script with a folder for what runs."""

    def __init__(self, folder: Path, source: str) -> None:
        self.places = folder / "run", folder / "tmp"
        for place in self.places:
            place.mkdir(exist_ok=True)
        run, temporary = map(str, self.places)
        super().__init__(textwrap.dedent(source), XDG_RUNTIME_DIR=run, TMPDIR=temporary)

    def left(self) -> list[str]:
        """The files that are left."""
        run, temporary = self.places
        places = run / "marline", temporary
        return [entry.name for place in places if place.is_dir() for entry in place.iterdir()]


Start = Callable[[str], Driver]


@pytest.fixture
def driver(tmp_path: Path, scripts: list[Script]) -> Start:
    def start(source: str) -> Driver:
        started = Driver(tmp_path, source)
        scripts.append(started)
        return started

    return start


def test_a_script_that_ends_leaves_nothing(driver: Start) -> None:
    script = driver(
        """
        marline.init(num_cpus=2)
        sitter = Counter.remote()
        say(marline.get(sitter.pid.remote()))
        say(os.getpid(), marline.get(nap.remote(0)))
        """
    )
    pids = [int(word) for word in (script.line() + " " + script.line()).split()]
    assert script.end()[0] == 0
    assert not any(lives(pid) for pid in pids)
    assert script.left() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_driver_leaves_nothing(driver: Start, how: signal.Signals) -> None:
    script = driver(
        """
        marline.init(num_cpus=2)
        sitter = Counter.remote()
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


def test_ctrl_c_ends_a_wait(driver: Start) -> None:
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


def test_ctrl_c_at_a_terminal_reaches_the_driver_alone(driver: Start) -> None:
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


def test_a_fork_leaves_its_parents_handles_alone_and_can_join_itself(driver: Start) -> None:
    script = driver(
        """
        marline.init(num_cpus=1)
        ref = marline.put(1)
        sitter = Counter.remote()
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


def test_clusters_of_two_drivers_do_not_meet(driver: Start) -> None:
    source = """
        marline.init(num_cpus=1)
        Counter.options(name="sitter", lifetime="detached").remote()
        say("ready")
        sys.stdin.readline()
        """
    first, second = driver(source), driver(source)
    assert [first.line(), second.line()] == ["ready", "ready"]


def test_importing_starts_nothing(driver: Start) -> None:
    script = driver(
        """
        import threading
        say(threading.active_count(), len(os.listdir("/proc/self/task")), marline.is_initialized())
        """
    )
    assert script.line() == "1 1 False"


def test_init_twice_says_what_to_do(driver: Start) -> None:
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
