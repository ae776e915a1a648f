"""The command line reaches an embedded cluster by its address, without a token."""

import os
import subprocess
import threading
from typing import Any

import marline
import pytest
from harness.waiting import wait_until


def run(*args: str) -> str:
    binary = os.environ.get("MARLINE_BINARY", "marline")
    done = subprocess.run([binary, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@marline.remote
def greet(name: str) -> None:
    print(f"hello {name}")


@marline.remote
class Sleeper:
    def ready(self) -> bool:
        return True

    def sleep(self) -> None:
        threading.Event().wait()


def test_logs_of_an_embedded_cluster_are_read_by_its_address() -> None:
    with marline.init(num_cpus=1) as running:
        ref = greet.remote("you")
        marline.get(ref)

        def logs() -> str:
            return run("logs", ref.task_id(), "--address", running.address)

        wait_until(lambda: f"the log has the line: {logs()!r}", lambda: logs() == "hello you\n")


def test_an_actor_of_an_embedded_cluster_is_killed_while_it_runs_a_call() -> None:
    with marline.init(num_cpus=1) as running:
        sleeper: Any = Sleeper.options(name="sleeper").remote()
        assert marline.get(sleeper.ready.remote())
        call = sleeper.sleep.remote()
        run("kill", "sleeper", "--address", running.address)
        with pytest.raises(marline.ActorDiedError, match="was deleted"):
            marline.get(call, timeout=60)
