"""Fixtures of all tests of the package.

Each test starts its own cluster. When the test ends, the fixture waits until every process of the
cluster has ended. Helpers are in `harness`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import marline
import pytest
from harness.captured_output import CapturedOutput
from harness.clusters import RestartableCluster, SeparateCluster
from harness.processes import descendants
from harness.scripts import Script
from harness.waiting import wait_until

# A shell starts background jobs with SIGINT ignored. The scripts of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
            # Some tests leave tasks that run: they are not waited for at the end.
            separate.worker("--cpus", "2", "--grace", "1s")
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


@pytest.fixture
def captured_output(capfd: pytest.CaptureFixture[str]) -> CapturedOutput:
    return CapturedOutput()
