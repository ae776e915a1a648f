"""How many CPUs a cluster has if nobody says: those that its process may use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PATIENCE, until

PERIOD_US = 100_000
SCRIPT = """
import os, sys
# Before anything is imported: threads start with what their process may use.
if sys.argv[1]:
    with open(sys.argv[1], "w") as members:
        members.write(str(os.getpid()))
if sys.argv[2]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import marline
with marline.init():
    print(marline.cluster_resources()["CPU"])
"""


def cpus(members: str = "", pinned: bool = False) -> float:
    """What a driver in this cgroup finds."""
    command = [sys.executable, "-c", SCRIPT, members, "pinned" if pinned else ""]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def controllers() -> Iterator[tuple[Path, str]]:
    """Where cgroups may be made that limit CPUs, and which version they are of."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        mount, kind, options = Path(words[4]), words[words.index("-") + 1], words[-1]
        if kind == "cgroup" and "cpu" in options.split(","):
            yield mount, "v1"
        if kind == "cgroup2":
            with contextlib.suppress(OSError):
                if "cpu" in (mount / "cgroup.subtree_control").read_text().split():
                    yield mount, "v2"


@pytest.fixture
def quota() -> Iterator[Path]:
    """A cgroup whose members have one CPU and a half."""
    for mount, version in controllers():
        group = mount / f"marline-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if version == "v1":
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(PERIOD_US * 3 // 2))
            else:
                (group / "cpu.max").write_text(f"{PERIOD_US * 3 // 2} {PERIOD_US}")
            yield group
        finally:
            members = group / "cgroup.procs"
            until("it has no members", lambda members=members: not members.read_text())  # type: ignore[misc]
            group.rmdir()
        return
    pytest.skip("no cgroup with a CPU quota can be made here: that takes root, and the cpu controller")


def test_it_is_those_that_a_process_may_run_on() -> None:
    # This may be a container with a quota of its own.
    assert 1 <= cpus() <= len(os.sched_getaffinity(0))
    assert cpus(pinned=True) == 1


def test_a_quota_is_rounded_down(quota: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one CPU: a quota of one and a half is no limit")
    assert cpus(str(quota / "cgroup.procs")) == 1
