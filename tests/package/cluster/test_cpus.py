"""Without `num_cpus`, a cluster has the CPUs that affinity and cgroup quota allow its process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.waiting import PATIENCE, wait_until

PERIOD_US = 100_000
SCRIPT = """
import os, sys
# The limits come before the import: threads inherit the affinity of their process when they start.
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
    """Returns how many CPUs the cluster of a driver has, in a cgroup or pinned to one CPU."""
    command = [sys.executable, "-c", SCRIPT, members, "pinned" if pinned else ""]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def controllers() -> Iterator[tuple[Path, str]]:
    """Returns the mounts under which cgroups can limit CPUs, each with its cgroup version."""
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
    """A cgroup whose members together may use one and a half CPUs."""
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
            wait_until("the cgroup has no members", lambda members=members: not members.read_text())  # type: ignore[misc]
            group.rmdir()
        return
    pytest.skip("cannot make a cgroup with a CPU quota here: that needs root and the cpu controller")


def test_a_cluster_has_the_cpus_that_its_process_may_run_on() -> None:
    # In a container with a quota there may be fewer.
    assert 1 <= cpus() <= len(os.sched_getaffinity(0))
    assert cpus(pinned=True) == 1


def test_a_quota_is_rounded_down(quota: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one CPU: a quota of one and a half is no limit")
    assert cpus(str(quota / "cgroup.procs")) == 1
