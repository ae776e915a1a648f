"""Large values are pulled between hosts over a network that breaks, and arrive whole.

The hosts are network namespaces of this machine.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import pytest
from harness import store
from harness.clusters import SeparateCluster
from harness.store import MIB, Array, cannot_be_run, is_whole, joined_cluster, needs_root, pattern
from harness.waiting import PATIENCE, wait_until

# Workers of a separate cluster cannot import these modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

SIZE = 160 * MIB
# The network breaks when this many bytes have arrived. If the transfer began again, it would carry
# far more than SIZE.
CUT_AT = SIZE // 4 * 3
# The speed of the wire: slow enough to break the network in the middle of a transfer.
RATE = "300mbit"
# How many seconds the network stays broken. `MARLINE_CUT_SECONDS` tries longer cuts.
CUT_SECONDS = float(os.environ.get("MARLINE_CUT_SECONDS", "0.5"))


@marline.remote(max_retries=-1)
def make(size: int, seed: int) -> Array:
    return pattern(size, seed)


@marline.remote(max_retries=-1)
def check_pattern(value: Array, seed: int) -> bool:
    return is_whole(value, seed)


def run(words: str) -> None:
    done = subprocess.run(words.split(), capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{words}: {done.stderr.strip()}")


class Host:
    """A network namespace that one wire connects with this host."""

    def __init__(self) -> None:
        pid = os.getpid()
        self.name = f"mrlo{pid}"
        net = f"10.{200 + pid % 50}.{pid // 50 % 250}"
        self.here, self.there = f"{net}.1", f"{net}.2"

    def wire(self) -> None:
        run(f"ip netns add {self.name}")
        run(f"ip link add {self.name} type veth peer name eth0 netns {self.name}")
        run(f"ip addr add {self.here}/24 dev {self.name}")
        run(f"ip link set {self.name} up")
        run(f"ip -n {self.name} addr add {self.there}/24 dev eth0")
        run(f"ip -n {self.name} link set lo up")
        run(f"ip -n {self.name} link set eth0 up")
        slow = f"root tbf rate {RATE} burst 256kb latency 50ms"
        run(f"tc qdisc add dev {self.name} {slow}")
        run(f"tc -n {self.name} qdisc add dev eth0 {slow}")

    def carried(self) -> int:
        """Returns how many bytes the wire has carried in both directions."""
        statistics = Path(f"/sys/class/net/{self.name}/statistics")
        return sum(int((statistics / f"{way}_bytes").read_text()) for way in ("tx", "rx"))

    def remove(self) -> None:
        for words in (f"ip link del {self.name}", f"ip netns del {self.name}"):
            with contextlib.suppress(OSError):
                run(words)

    @contextlib.contextmanager
    def cut(self, how: str) -> Iterator[None]:
        """Breaks the network during the block. `connections` breaks all connections, only once."""
        if how == "routes":
            run(f"ip route add blackhole {self.there}/32")
            run(f"ip -n {self.name} route add blackhole {self.here}/32")
            try:
                yield
            finally:
                run(f"ip route del blackhole {self.there}/32")
                run(f"ip -n {self.name} route del blackhole {self.here}/32")
        elif how == "wire":
            run(f"ip link set {self.name} down")
            try:
                yield
            finally:
                run(f"ip link set {self.name} up")
        else:
            run(f"ip netns exec {self.name} ss -K dst {self.here}")
            yield


class Hosts(SeparateCluster):
    """A controller and a worker on this host, and a worker on the other one."""

    def __init__(self, folder: Path, host: Host, *words: str) -> None:
        super().__init__(folder, "controller", *words, listen=host.here)
        for name in ("here", "there"):
            self.command_prefix = ["ip", "netns", "exec", host.name] if name == "there" else []
            at = f"{getattr(host, name)}:0"
            self.worker("--cpus", "2", "--resource", f"{name}=9", "--address", self.address, "--listen", at)


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    try:
        try:
            made.wire()
        except OSError as error:
            cannot_be_run(f"cannot make network namespaces here: {error}")
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def hosts(folder: Path, host: Host, *words: str) -> Iterator[Hosts]:
    with joined_cluster(lambda: Hosts(folder, host, *words)) as started:
        yield started


def at(name: str) -> dict[str, Any]:
    return {"resources": {name: 1.0}}


def pull_over_broken_network(host: Host, how: str, source: str, target: str) -> marline.ObjectRef:
    """Makes a value on one host and reads it on the other, while the network breaks.

    Returns a reference to the value.
    """
    made = make.options(**at(source)).remote(SIZE, len(source))
    marline.wait([made], fetch_local=False)
    began = host.carried()
    read = check_pattern.options(**at(target)).remote(made, len(source))

    # Progress is seen in the bytes that the wire carries. The store cannot show it: it has
    # allocated memory for the whole value before the first byte arrives.
    wait_until("most of the value has arrived", lambda: host.carried() - began > CUT_AT)
    with host.cut(how):
        came, _ = marline.wait([read], timeout=CUT_SECONDS)
        in_the_middle = not came and host.carried() - began < SIZE
        assert how == "connections" or in_the_middle, "the network broke in the middle of the transfer"
    assert marline.get(read, timeout=PATIENCE)
    assert host.carried() - began < 1.4 * SIZE, "bytes that had arrived were not sent again"
    assert marline.get(check_pattern.options(**at(source)).remote(made, len(source)))
    return made


@needs_root
@pytest.mark.parametrize("how", ["routes", "wire", "connections"])
def test_a_transfer_goes_on_after_the_network_broke_and_arrives_whole(
    how: str, host: Host, tmp_path: Path
) -> None:
    # With a long lease no worker is taken for dead. Otherwise the value would be made and pulled
    # again.
    with hosts(tmp_path / "run", host, "--lease", "300s"):
        kept = [
            pull_over_broken_network(host, how, "here", "there"),
            pull_over_broken_network(host, how, "there", "here"),
        ]
        # A value that this process puts is stored on one host, and read on both.
        put = marline.put(pattern(4 * MIB, 7))
        assert all(
            marline.get([check_pattern.options(**at(name)).remote(put, 7) for name in ("here", "there")])
        )
        del kept


@needs_root
def test_many_readers_of_a_value_on_another_node_cause_one_transfer(host: Host, tmp_path: Path) -> None:
    with hosts(tmp_path / "run", host):
        made = make.options(**at("there")).remote(SIZE, 1)
        marline.wait([made], fetch_local=False)
        began = host.carried()
        readers = [
            check_pattern.options(num_cpus=0.1, resources={"here": 0.1}).remote(made, 1) for _ in range(20)
        ]
        assert all(marline.get(readers, timeout=PATIENCE))
        assert host.carried() - began < 1.3 * SIZE, "the value was carried more than once"


@needs_root
def test_a_cut_longer_than_the_lease_loses_the_value_and_it_is_made_again(host: Host, tmp_path: Path) -> None:
    with hosts(tmp_path / "run", host, "--lease", "1s"):
        made = make.options(**at("there")).remote(SIZE, 1)
        marline.wait([made], fetch_local=False)
        began = host.carried()
        read = check_pattern.options(**at("here")).remote(made, 1)
        wait_until("some of the value has arrived", lambda: host.carried() - began > SIZE // 4)
        with host.cut("routes"):
            wait_until(
                "the worker there is lost", lambda: len([one for one in marline.nodes() if one["Alive"]]) == 1
            )
        assert marline.get(read, timeout=PATIENCE)
        assert is_whole(marline.get(made, timeout=PATIENCE), 1)
