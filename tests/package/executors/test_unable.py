"""Work waits or goes elsewhere, without a retry, when the Python of a worker stops working."""

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
from harness.clusters import SeparateCluster
from harness.processes import descendants
from harness.waiting import PATIENCE, wait_until


class BreakableCluster:
    """A cluster of one worker. The worker's Python is a script that tests can break and mend."""

    def __init__(self, folder: Path) -> None:
        self.separate = SeparateCluster(folder, "controller", "--unknown-task-wait", "30s")
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
        """Breaks the Python of the worker, and kills its executors and fork server."""
        self.replace("echo this Python is broken >&2; exit 3")
        for pid in descendants(self.worker):
            os.kill(pid, signal.SIGKILL)

    def status(self) -> dict[str, Any]:
        binary = os.environ.get("MARLINE_BINARY", "marline")
        environment = self.separate.environment
        done = subprocess.run([binary, "--json", "status"], capture_output=True, env=environment, check=True)
        status: dict[str, Any] = json.loads(done.stdout)
        return status


@pytest.fixture
def breakable_cluster(tmp_path: Path) -> Iterator[BreakableCluster]:
    before = descendants(os.getpid())
    breakable_cluster = BreakableCluster(tmp_path)
    try:
        with marline.init(breakable_cluster.separate.address, token=breakable_cluster.separate.token):
            yield breakable_cluster
    finally:
        breakable_cluster.separate.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


def test_work_waits_for_a_worker_that_is_mended_and_spends_no_retry(
    breakable_cluster: BreakableCluster,
) -> None:
    # One retry: an attempt may be lost with an executor that is killed.
    twice = marline.remote(max_retries=1)(lambda: 1)
    assert marline.get(twice.remote(), timeout=PATIENCE) == 1
    breakable_cluster.break_down()
    refs = [twice.remote() for _ in range(5)]
    wait_until("the worker says that it is unable", lambda: breakable_cluster.status()["unable"])
    status = breakable_cluster.status()
    assert 'cannot run "python"' in status["unable"][0]
    assert any("no worker can start an executor" in one["reason"] for one in status["waiting"])
    breakable_cluster.mend()
    assert marline.get(refs, timeout=PATIENCE) == [1] * 5
    wait_until("the worker is able again", lambda: not breakable_cluster.status()["unable"])


def test_another_worker_takes_what_a_broken_one_cannot_run(breakable_cluster: BreakableCluster) -> None:
    @marline.remote
    class Counter:
        def add(self) -> int:
            return 1

    twice = marline.remote(max_retries=1)(lambda: 1)
    assert marline.get(twice.remote(), timeout=PATIENCE) == 1
    breakable_cluster.break_down()
    breakable_cluster.separate.worker("--cpus", "1")
    assert marline.get([twice.remote() for _ in range(60)], timeout=PATIENCE) == [1] * 60
    assert marline.get(Counter.remote().add.remote(), timeout=PATIENCE) == 1
    assert breakable_cluster.status()["workers"] == {"healthy": 2}, (
        "the broken worker stays healthy: only Python work passes it over"
    )
