"""Fixtures of the tests of `marline.Context`: each engine, and a context on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import marline
import pytest
from harness.clusters import SeparateCluster
from harness.engines import CONTEXTS, CONTEXTS_ON_CLUSTERS
from harness.processes import descendants
from harness.waiting import wait_until


@pytest.fixture(params=CONTEXTS)
def engine(request: pytest.FixtureRequest) -> str:
    """The engine of a `marline.Context`."""
    return str(request.param)


@pytest.fixture
def ctx(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[marline.Context]:
    """A context on each engine, with two CPUs.

    When the test ends, every process that the context started must have ended. On engines without
    a cluster, every thread that the context started in this process must have ended, too.
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
