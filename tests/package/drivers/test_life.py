"""The life of one driver with an embedded cluster: start, Ctrl-C, fork, kill and end.

However a driver ends, it leaves no process and no file. Several drivers on one cluster are tested
in `test_drivers.py`.
"""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.processes import descendants, is_alive
from harness.scripts import Script
from harness.waiting import wait_until


class Driver(Script):
    """A script whose cluster keeps its files in folders of its own."""

    def __init__(self, folder: Path, source: str) -> None:
        self.places = folder / "run", folder / "tmp"
        for place in self.places:
            place.mkdir(exist_ok=True)
        run, temporary = map(str, self.places)
        super().__init__(textwrap.dedent(source), XDG_RUNTIME_DIR=run, TMPDIR=temporary)

    def leftover_files(self) -> list[str]:
        """Returns the names of the files that the cluster left behind."""
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
        print_line(marline.get(sitter.pid.remote()))
        print_line(os.getpid(), marline.get(nap.remote(0)))
        """
    )
    pids = [int(word) for word in (script.line() + " " + script.line()).split()]
    assert script.end()[0] == 0
    assert not any(is_alive(pid) for pid in pids)
    assert script.leftover_files() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_driver_leaves_nothing(driver: Start, how: signal.Signals) -> None:
    script = driver(
        """
        marline.init(num_cpus=2)
        sitter = Counter.remote()
        marline.get(sitter.pid.remote())
        ref = nap.remote(600)
        print_line("ready")
        marline.get(ref)
        """
    )
    assert script.line() == "ready"
    family = descendants(script.process.pid)
    assert len(family) >= 3
    script.process.send_signal(how)
    script.end()
    wait_until("every process of the driver has ended", lambda: not any(is_alive(pid) for pid in family))
    wait_until("no file of the cluster is left", lambda: script.leftover_files() == [])


# The ways to wait for work, by name.
WAITS = {
    "get": "marline.get(nap.remote(600))",
    "wait": "marline.wait([nap.remote(600)])",
    "future": "nap.remote(600).future().result()",
    "await": "asyncio.run(awaited(nap.remote(600)))",
    "map": "list(marline.map(time.sleep, [600]))",
    "map, any order": "list(marline.map(time.sleep, [600], ordered=False))",
    "pool": "list(marline.ActorPool([Sleeper.remote()]).map(lambda one, n: one.nap.remote(n), [600]))",
    "executor": "executor.submit(time.sleep, 600).result()",
    "executor's end": "executor.submit(time.sleep, 600); executor.shutdown()",
    "executor's map": "list(executor.map(time.sleep, [600]))",
    "context": "context.run(time.sleep, 600).result()",
    "context's get": "context.get([context.run(time.sleep, 600)])",
    "context's wait": "context.wait([context.run(time.sleep, 600)])",
}


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_a_wait(driver: Start, name: str) -> None:
    source = """
        import asyncio

        @marline.remote
        class Sleeper:
            def nap(self, seconds):
                time.sleep(seconds)

        async def awaited(ref):
            return await ref

        marline.init(num_cpus=2)
        marline.get(nap.remote(0))
        executor, context = marline.Executor(), marline.default_context()
        try:
            print_line("waiting")
            WAIT
        except KeyboardInterrupt:
            print_line("interrupted")
        print_line(marline.get(nap.remote(0)) > 0)
        """
    script = driver(source.replace("WAIT", WAITS[name]))
    assert script.line() == "waiting"
    # The script may not have begun to wait yet: the interrupt must count all the same.
    script.process.send_signal(signal.SIGINT)
    assert script.line() == "interrupted"
    assert script.line() == "True"
    code, _, err = script.end()
    assert (code, script.leftover_files()) == (0, []), err


def test_ctrl_c_ends_the_wait_for_a_cluster_that_is_not_there(driver: Start) -> None:
    script = driver(
        """
        import socket
        deaf = socket.create_server(("127.0.0.1", 0))  # This server never answers.
        try:
            print_line("waiting")
            marline.init("127.0.0.1:%d" % deaf.getsockname()[1], token="any")
        except KeyboardInterrupt:
            print_line("interrupted", marline.is_initialized())
        with marline.init("local", num_cpus=1):
            print_line(marline.get(nap.remote(0)) > 0)
        """
    )
    assert script.line() == "waiting"
    script.process.send_signal(signal.SIGINT)
    assert script.line() == "interrupted False"
    assert script.line() == "True"
    code, _, err = script.end()
    assert (code, script.leftover_files()) == (0, []), err


# Python misses an interrupt that comes just before a sleep begins. So the sleeps are short.
@pytest.mark.parametrize(
    "wait", ["while True: time.sleep(0.1)", "marline.get(nap.remote(600))"], ids=["sleep", "get"]
)
def test_a_driver_that_does_not_catch_ctrl_c_ends_by_its_signal(driver: Start, wait: str) -> None:
    script = driver(
        f"""
        marline.init(num_cpus=1)
        print_line("waiting")
        {wait}
        """
    )
    assert script.line() == "waiting"
    script.process.send_signal(signal.SIGINT)
    code, _, err = script.end()
    assert (code, script.leftover_files()) == (-signal.SIGINT, []), err
    assert "KeyboardInterrupt" in err


def test_ctrl_c_at_a_terminal_reaches_the_driver_alone(driver: Start) -> None:
    script = driver(
        """
        marline.init(num_cpus=1)
        ref = nap.remote(600)
        print_line("ready")
        marline.get(ref)
        """
    )
    assert script.line() == "ready"
    pid = script.process.pid
    wait_until("the fork server and an executor run", lambda: len(descendants(pid)) >= 2)
    # An executor leaves the process group of its fork server a moment after the fork.
    wait_until(
        "no child is in the driver's process group",
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
                print_line("inert:", error)
            del ref, sitter
            marline.shutdown()
            marline.init(num_cpus=1)
            print_line("joined:", marline.get(nap.remote(0)) != os.getpid())
            marline.shutdown()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print_line("status:", status)
        print_line("parent:", marline.get(ref))
        """
    )
    code, out, err = script.end()
    lines = out.splitlines()
    assert code == 0, err
    assert lines[0].startswith("inert: this belongs to the process that was forked")
    assert lines[1:] == ["joined: True", "status: 0", "parent: 1"]
    assert script.leftover_files() == []


def test_clusters_of_two_drivers_do_not_meet(driver: Start) -> None:
    source = """
        marline.init(num_cpus=1)
        Counter.options(name="sitter", lifetime="detached").remote()
        print_line("ready")
        sys.stdin.readline()
        """
    first, second = driver(source), driver(source)
    assert [first.line(), second.line()] == ["ready", "ready"]


def test_a_folder_too_long_for_a_socket_is_not_used(tmp_path: Path, scripts: list[Script]) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    source = "with marline.init(num_cpus=1) as running:\n"
    source += "    print_line(marline.get(nap.remote(0)), running.address)"
    scripts.append(Script(source, TMPDIR=str(folder), XDG_RUNTIME_DIR=str(tmp_path)))
    code, out, err = scripts[-1].end()
    assert (code, err) == (0, "")
    assert out.split()[-1].startswith("unix:/tmp/marline-")
    assert not Path(out.split()[-1].removeprefix("unix:")).parent.exists()
    assert not list(folder.iterdir())


def test_importing_starts_nothing(driver: Start) -> None:
    script = driver(
        """
        import threading
        print_line(threading.active_count(), len(os.listdir("/proc/self/task")), marline.is_initialized())
        print_line({"numpy", "multiprocessing", "opentelemetry", "IPython"} & set(sys.modules))
        """
    )
    assert script.line() == "1 1 False"
    assert script.line() == "set()"


def test_init_twice_says_what_to_do(driver: Start) -> None:
    script = driver(
        """
        marline.init(num_cpus=1)
        try:
            marline.init()
        except RuntimeError as error:
            print_line(error)
        marline.init(ignore_reinit_error=True)
        marline.shutdown()
        marline.shutdown()
        print_line(marline.get(nap.remote(0)) > 0)  # Without `init`, this starts a cluster.
        """
    )
    assert "marline.shutdown() first" in script.line()
    assert script.line() == "True"


def test_a_block_that_fails_ends_its_session(driver: Start) -> None:
    script = driver(
        """
        try:
            with marline.init(num_cpus=1):
                ref = nap.remote(600)
                raise ValueError("as asked")
        except ValueError as error:
            print_line(error, marline.is_initialized())
        """
    )
    code, out, err = script.end()
    assert (code, out, script.leftover_files()) == (0, "as asked False\n", []), err


def test_before_init_and_after_shutdown_nothing_is_started_by_looking(driver: Start) -> None:
    script = driver(
        """
        def tried(work):
            try:
                return work()
            except marline.MarlineError as error:
                return type(error).__name__

        marline.shutdown()
        print_line(marline.get([]), marline.wait([]), marline.get_runtime_context().task_id)
        print_line(marline.is_initialized())
        value, slow, counter = marline.put(1), nap.remote(600), Counter.remote()
        marline.shutdown()
        print_line(marline.get(value), tried(lambda: marline.get(slow)), tried(lambda: counter.add.remote()))
        print_line(tried(lambda: marline.kill(counter)), marline.cancel(slow), marline.is_initialized())
        """
    )
    code, out, err = script.end()
    lines = ["[] ([], []) None", "False", "1 WorkerLostError WorkerLostError", "WorkerLostError None False"]
    assert (code, out.splitlines()) == (0, lines), err
