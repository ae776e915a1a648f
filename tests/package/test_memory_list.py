"""What `marline memory` lists of large values: which node has what, and what of it is on the disk."""

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
import store
from conftest import Separate, descendants, until
from store import MIB, Array, cannot_be_run, is_whole, listed, memory, needs_root, node, pattern

# Workers elsewhere cannot import them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

SIDES = "left", "right"


@marline.remote
def make(size: int, seed: int) -> Array:
    return pattern(size, seed)


@marline.remote
def checks(value: Array, seed: int) -> bool:
    return is_whole(value, seed)


def rows(cluster: Separate) -> dict[str, list[str]]:
    """The lines of the table of values, by what they begin with."""
    _, values = memory(cluster).split("\n\n")
    cells = [re.split(r"\s{2,}", line.strip()) for line in values.splitlines()]
    return {first: rest for first, *rest in cells}


def test_what_is_on_the_disk_is_listed_so_until_it_comes_back(tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    host = socket.gethostname()
    with node(tmp_path / "run", 10 * MIB, spill) as running:
        refs = [marline.put(pattern(4 * MIB, seed)) for seed in range(4)]

        def on_disk() -> list[bool]:
            found = {one["id"]: one["copies"] for one in listed(running)}
            assert all(len(copies) == 1 for copies in found.values())
            return [found[ref.hex()][0]["on_disk"] for ref in refs]

        # Two fit; what was not read for longest went.
        assert on_disk() == [True, True, False, False]
        wheres = {name: cells[2] for name, cells in rows(running).items()}
        assert wheres["VALUE"] == "WHERE"
        assert [wheres[ref.hex()] for ref in refs] == [f"{host} (disk)"] * 2 + [host] * 2
        (figures,) = json.loads(memory(running, "--json"))["stores"]
        assert [figures[name] // MIB for name in ("limit", "used", "spilled", "written")] == [10, 8, 8, 8]
        view = marline.get(refs[0])
        assert on_disk() == [False, True, True, False], "it came back, and another went"
        assert rows(running)[refs[0].hex()][2:4] == [host, "1"], "and is read"
        assert is_whole(view, 0)


class Two(Separate):
    """Two workers, each on a host of its own name, which is a resource of it, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name in SIDES:
            self.within = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]
            self.worker("--cpus", "2", "--resource", f"{name}=9")
        self.within = []


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    named = subprocess.run(["unshare", "--uts", "hostname", "left"], capture_output=True, text=True)
    if named.returncode:
        cannot_be_run(f"no host can be given a name here: {named.stderr.strip()}")
    before = descendants(os.getpid())
    started = Two(tmp_path / "run")
    try:
        with marline.init(started.address, token=started.token):
            yield started
    finally:
        started.end()
    until("nothing is left", lambda: not (descendants(os.getpid()) - before))


@needs_root
def test_each_node_is_listed_with_what_it_has(two: Two) -> None:
    def where(ref: marline.ObjectRef) -> tuple[list[str], list[str]]:
        """On which hosts a value is, by its copies and by the workers that are said to have it."""
        everything = json.loads(memory(two, "--json"))
        hosts = {one["worker_id"]: one["hostname"] for one in everything["stores"]}
        (found,) = [one for one in everything["objects"] if one["id"] == ref.hex()]
        assert found["state"] == "stored"
        copies = sorted(copy["hostname"] for copy in found["copies"])
        # Of a worker that is lost meanwhile there is no name.
        return copies, sorted(hosts.get(worker, "?") for worker in found["workers"])

    made = [make.options(resources={side: 1.0}).remote(2 * MIB, seed) for seed, side in enumerate(SIDES)]
    marline.wait(made, num_returns=2, fetch_local=False)
    assert [where(ref) for ref in made] == [(["left"], ["left"]), (["right"], ["right"])]
    assert [rows(two)[ref.hex()][2] for ref in made] == ["left", "right"]
    assert marline.get(checks.options(resources={"right": 1.0}).remote(made[0], 0))
    assert where(made[0]) == (["left", "right"], ["left", "right"]), "it was brought there"
    assert sorted(rows(two)[made[0].hex()][2].split(", ")) == ["left", "right"]
    assert where(made[1]) == (["right"], ["right"])
    used = {one["hostname"]: one["used"] // MIB for one in json.loads(memory(two, "--json"))["stores"]}
    assert used == {"left": 2, "right": 4}
    left = two.processes.pop(1)
    left.kill()
    left.wait()
    until("its copy is gone", lambda: where(made[0]) == (["right"], ["right"]))
    assert rows(two)[made[0].hex()][2] == "right"
