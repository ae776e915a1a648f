"""When memory runs short, one executor is killed and its task says why. The others live on.

The kernel's limit is real: the driver runs in a control group of its own, which only root can make.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.waiting import wait_until

LIMIT = 400 << 20
SCRIPT = """
    import time
    import marline

    @marline.remote
    class Keeper:
        def __init__(self):
            self.kept = 0
        def keep(self):
            self.kept += 1
            return self.kept

    @marline.remote
    def small():
        time.sleep(0.01)
        return "small"

    @marline.remote(max_retries=0)
    def hog(step, pause):
        taken = []
        while True:
            taken.append(bytearray(b"x") * step)
            time.sleep(pause)

    with marline.init(num_cpus=2):
        keeper = Keeper.remote()
        assert marline.get(keeper.keep.remote()) == 1
        try:
            marline.get(hog.remote({step} << 20, {pause}), timeout=60)
        except marline.OutOfMemoryError as error:
            print("MESSAGE", error)
        assert marline.get(small.remote()) == "small"
        print("KEPT", marline.get(keeper.keep.remote()))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with a memory limit of `LIMIT` bytes."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (second, "memory.max")
    folder = root / f"marline-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(LIMIT))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"cannot make a control group here: {error}")
    yield folder

    def removed() -> bool:
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False  # Its processes have ended, but the kernel has not removed them yet.
        return True

    wait_until("the group is empty", removed)


def run_in(group: Path, threshold: str, step: int, pause: float) -> str:
    """Runs the script in a control group. Returns what it prints."""
    script = textwrap.dedent(SCRIPT).format(step=step, pause=pause)

    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(
        [sys.executable, "-c", script],
        preexec_fn=enter,
        env={**os.environ, "MARLINE_MEMORY_THRESHOLD": threshold},
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_worker_kills_the_largest_executor_before_the_kernel_does(group: Path) -> None:
    out = run_in(group, threshold="0.6", step=10, pause=0.05)
    assert "out of memory" in out and "of 400 MiB" in out and "hog" in out
    assert "its executor used" in out
    assert "KEPT 2" in out, "the actor beside it has its state"


def test_the_error_says_if_the_kernel_killed_the_executor(group: Path) -> None:
    out = run_in(group, threshold="1", step=50, pause=0)
    assert re.search(r"out of memory: the executor \(pid \d+\) .* was killed by the kernel", out)
    assert "KEPT 2" in out
