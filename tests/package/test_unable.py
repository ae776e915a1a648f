"""A worker whose Python stops working after it joined: work spends no retries there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marline
import pytest
from conftest import PATIENCE, Separate, descendants, until


class Fragile:
    """A cluster of one worker, whose Python is a script that can be broken."""

    def __init__(self, folder: Path) -> None:
        self.separate = Separate(folder, "controller", "--unknown-task-wait", "30s")
        self.python = folder / "python"
        self.mend()
        words = ("--python", str(self.python), "--cpus", "2")
        self.worker: int = self.separate.start("worker", "--quiet", *words)["pid"]

    def mend(self) -> None:
        self.replace(f'exec "{sys.executable}" "$@"')

    def replace(self, line: str) -> None:
        new = self.python.with_suffix(".new")
        new.write_text(f"#!/bin/sh\n{line}\n")
        new.chmod(0o755)
        new.rename(self.python)

    def break_down(self) -> None:
        """From now on no executor starts, and none is left."""
        self.replace("echo this Python is broken >&2; exit 3")
        for pid in descendants(self.worker):
            os.kill(pid, signal.SIGKILL)

    def status(self) -> dict[str, Any]:
        binary = os.environ.get("MARLINE_BINARY", "marline")
        environment = self.separate.environment
        said = subprocess.run([binary, "--json", "status"], capture_output=True, env=environment, check=True)
        answer: dict[str, Any] = json.loads(said.stdout)
        return answer


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Fragile]:
    before = descendants(os.getpid())
    fragile = Fragile(tmp_path)
    try:
        with marline.init(fragile.separate.address, token=fragile.separate.token):
            yield fragile
    finally:
        fragile.separate.end()
    until("nothing is left", lambda: not (descendants(os.getpid()) - before))


def test_work_waits_for_a_worker_that_is_mended_and_spends_no_retry(fragile: Fragile) -> None:
    # One attempt may be lost with an executor that was killed.
    twice = marline.remote(max_retries=1)(lambda: 1)
    assert marline.get(twice.remote(), timeout=PATIENCE) == 1
    fragile.break_down()
    refs = [twice.remote() for _ in range(5)]
    until("the worker says that it is unable", lambda: fragile.status()["unable"])
    status = fragile.status()
    assert 'cannot run "python"' in status["unable"][0]
    assert any("no worker can start an executor" in one["reason"] for one in status["waiting"])
    fragile.mend()
    assert marline.get(refs, timeout=PATIENCE) == [1] * 5
    until("the worker is able again", lambda: not fragile.status()["unable"])


def test_another_worker_takes_what_a_broken_one_cannot_run(fragile: Fragile) -> None:
    @marline.remote
    class Counter:
        def add(self) -> int:
            return 1

    twice = marline.remote(max_retries=1)(lambda: 1)
    assert marline.get(twice.remote(), timeout=PATIENCE) == 1
    fragile.break_down()
    fragile.separate.worker("--cpus", "1")
    assert marline.get([twice.remote() for _ in range(60)], timeout=PATIENCE) == [1] * 60
    assert marline.get(Counter.remote().add.remote(), timeout=PATIENCE) == 1
    assert fragile.status()["workers"] == {"healthy": 2}, "it is passed over for Python alone"
