"""`marline memory` lists the nodes of each large value, and which copies are on disk."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import marline
import pytest
from harness import store
from harness.clusters import SeparateCluster
from harness.processes import descendants
from harness.store import (
    MIB,
    Array,
    cannot_be_run,
    is_whole,
    listed_objects,
    marline_memory,
    needs_root,
    one_worker_cluster,
    pattern,
)
from harness.waiting import wait_until

# Workers of a separate cluster cannot import these modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

SIDES = "left", "right"


@marline.remote
def make(size: int, seed: int) -> Array:
    return pattern(size, seed)


@marline.remote
def check_pattern(value: Array, seed: int) -> bool:
    return is_whole(value, seed)


def rows(cluster: SeparateCluster) -> dict[str, list[str]]:
    """Returns the rows of the table of values: the cells after the first, by the first."""
    _, values = marline_memory(cluster).split("\n\n")
    cells = [re.split(r"\s{2,}", line.strip()) for line in values.splitlines()]
    return {first: rest for first, *rest in cells}


def test_what_is_on_the_disk_is_listed_so_until_it_comes_back(tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    host = socket.gethostname()
    with one_worker_cluster(tmp_path / "run", 10 * MIB, spill) as running:
        refs = [marline.put(pattern(4 * MIB, seed)) for seed in range(4)]

        def on_disk() -> list[bool]:
            found = {one["id"]: one["copies"] for one in listed_objects(running)}
            assert all(len(copies) == 1 for copies in found.values())
            return [found[ref.hex()][0]["on_disk"] for ref in refs]

        # Memory holds two values. Those that were not read for longest were spilled.
        assert on_disk() == [True, True, False, False]
        wheres = {name: cells[2] for name, cells in rows(running).items()}
        assert wheres["VALUE"] == "WHERE"
        assert [wheres[ref.hex()] for ref in refs] == [f"{host} (disk)"] * 2 + [host] * 2
        (figures,) = json.loads(marline_memory(running, "--json"))["stores"]
        assert [figures[name] // MIB for name in ("limit", "used", "spilled", "written")] == [10, 8, 8, 8]
        view = marline.get(refs[0])
        assert on_disk() == [False, True, True, False], "the value is in memory, and another one was spilled"
        assert rows(running)[refs[0].hex()][2:4] == [host, "1"], "the value has one reader"
        assert is_whole(view, 0)


class TwoHostCluster(SeparateCluster):
    """Two workers, each in a UTS namespace with a host name of its own.

    The name is also a resource.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name in SIDES:
            self.command_prefix = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]
            self.worker("--cpus", "2", "--resource", f"{name}=9")
        self.command_prefix = []


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[TwoHostCluster]:
    named = subprocess.run(["unshare", "--uts", "hostname", "left"], capture_output=True, text=True)
    if named.returncode:
        cannot_be_run(f"cannot set a host name here: {named.stderr.strip()}")
    before = descendants(os.getpid())
    started = TwoHostCluster(tmp_path / "run")
    try:
        with marline.init(started.address, token=started.token):
            yield started
    finally:
        started.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


@needs_root
def test_each_node_is_listed_with_what_it_has(two_hosts: TwoHostCluster) -> None:
    def where(ref: marline.ObjectRef) -> tuple[list[str], list[str]]:
        """Returns the hosts of a value's copies, and those of the workers listed with it."""
        everything = json.loads(marline_memory(two_hosts, "--json"))
        hosts = {one["worker_id"]: one["hostname"] for one in everything["stores"]}
        (found,) = [one for one in everything["objects"] if one["id"] == ref.hex()]
        assert found["state"] == "stored"
        copies = sorted(copy["hostname"] for copy in found["copies"])
        # A worker that was just lost has no host name any more.
        return copies, sorted(hosts.get(worker, "?") for worker in found["workers"])

    made = [make.options(resources={side: 1.0}).remote(2 * MIB, seed) for seed, side in enumerate(SIDES)]
    marline.wait(made, num_returns=2, fetch_local=False)
    assert [where(ref) for ref in made] == [(["left"], ["left"]), (["right"], ["right"])]
    assert [rows(two_hosts)[ref.hex()][2] for ref in made] == ["left", "right"]
    assert marline.get(check_pattern.options(resources={"right": 1.0}).remote(made[0], 0))
    assert where(made[0]) == (["left", "right"], ["left", "right"]), "the reader's host has a copy, too"
    assert sorted(rows(two_hosts)[made[0].hex()][2].split(", ")) == ["left", "right"]
    assert where(made[1]) == (["right"], ["right"])
    used = {
        one["hostname"]: one["used"] // MIB
        for one in json.loads(marline_memory(two_hosts, "--json"))["stores"]
    }
    assert used == {"left": 2, "right": 4}
    left = two_hosts.processes.pop(1)
    left.kill()
    left.wait()
    wait_until("the copy on the lost host is not listed", lambda: where(made[0]) == (["right"], ["right"]))
    assert rows(two_hosts)[made[0].hex()][2] == "right"
