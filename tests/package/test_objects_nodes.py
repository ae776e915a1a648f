"""Large values between hosts, which are network namespaces here, over a wire that breaks meanwhile."""

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
import store
from conftest import PATIENCE, Separate, until
from store import MIB, Array, cannot_be_run, driven, is_whole, needs_root, pattern

# Workers elsewhere cannot import them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

SIZE = 160 * MIB
# So much of it has come when the wire is cut: if it began anew, far more would be carried.
CUT_AT = SIZE // 4 * 3
# Slow enough to be cut in the middle.
RATE = "300mbit"
# How long the wire stays cut; as long as it takes to try what takes longer.
CUT_SECONDS = float(os.environ.get("MARLINE_CUT_SECONDS", "0.5"))


@marline.remote(max_retries=-1)
def make(size: int, seed: int) -> Array:
    return pattern(size, seed)


@marline.remote(max_retries=-1)
def checks(value: Array, seed: int) -> bool:
    return is_whole(value, seed)


def run(words: str) -> None:
    done = subprocess.run(words.split(), capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{words}: {done.stderr.strip()}")


class Host:
    """A host with one wire to this one."""

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
        """How many bytes went to it, and came from it."""
        statistics = Path(f"/sys/class/net/{self.name}/statistics")
        return sum(int((statistics / f"{way}_bytes").read_text()) for way in ("tx", "rx"))

    def remove(self) -> None:
        for words in (f"ip link del {self.name}", f"ip netns del {self.name}"):
            with contextlib.suppress(OSError):
                run(words)

    @contextlib.contextmanager
    def cut(self, how: str) -> Iterator[None]:
        """While this lasts, nothing goes through; or whatever is connected is not any more, for a moment."""
        if how == "routes":
            run(f"ip route add blackhole {self.there}/32")
            run(f"ip -n {self.name} route add blackhole {self.here}/32")
            yield
            run(f"ip route del blackhole {self.there}/32")
            run(f"ip -n {self.name} route del blackhole {self.here}/32")
        elif how == "wire":
            run(f"ip link set {self.name} down")
            yield
            run(f"ip link set {self.name} up")
        else:
            run(f"ip netns exec {self.name} ss -K dst {self.here}")
            yield


class Hosts(Separate):
    """A worker here, one there, and the controller here."""

    def __init__(self, folder: Path, host: Host, *words: str) -> None:
        super().__init__(folder, "controller", *words, listen=host.here)
        for name in ("here", "there"):
            self.within = ["ip", "netns", "exec", host.name] if name == "there" else []
            at = f"{getattr(host, name)}:0"
            self.worker("--cpus", "2", "--resource", f"{name}=9", "--address", self.address, "--listen", at)


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    try:
        try:
            made.wire()
        except OSError as error:
            cannot_be_run(f"no network namespaces can be made here: {error}")
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def hosts(folder: Path, host: Host, *words: str) -> Iterator[Hosts]:
    with driven(lambda: Hosts(folder, host, *words)) as started:
        yield started


def at(name: str) -> dict[str, Any]:
    return {"resources": {name: 1.0}}


def brought(host: Host, how: str, source: str, target: str) -> marline.ObjectRef:
    """A value that is made at one of them and read at the other, with the network broken in between."""
    made = make.options(**at(source)).remote(SIZE, len(source))
    marline.wait([made], fetch_local=False)
    began = host.carried()
    read = checks.options(**at(target)).remote(made, len(source))

    # What has come cannot be seen in memory: there is room for all of it before anything comes.
    until("most of it has come", lambda: host.carried() - began > CUT_AT)
    with host.cut(how):
        came, _ = marline.wait([read], timeout=CUT_SECONDS)
        in_the_middle = not came and host.carried() - began < SIZE
        assert how == "connections" or in_the_middle, "it was cut in the middle"
    assert marline.get(read, timeout=PATIENCE)
    assert host.carried() - began < 1.4 * SIZE, "what had come was not sent again"
    assert marline.get(checks.options(**at(source)).remote(made, len(source)))
    return made


@needs_root
@pytest.mark.parametrize("how", ["routes", "wire", "connections"])
def test_what_is_on_its_way_when_the_network_breaks_goes_on_and_arrives_whole(
    how: str, host: Host, tmp_path: Path
) -> None:
    # However long it is cut, nobody is taken for dead, which would have all of it made and brought anew.
    with hosts(tmp_path / "run", host, "--lease", "300s"):
        kept = [brought(host, how, "here", "there"), brought(host, how, "there", "here")]
        # What this process puts is at one of them, and read at both.
        put = marline.put(pattern(4 * MIB, 7))
        assert all(marline.get([checks.options(**at(name)).remote(put, 7) for name in ("here", "there")]))
        del kept


@needs_root
def test_many_who_read_one_value_at_another_node_have_it_carried_once(host: Host, tmp_path: Path) -> None:
    with hosts(tmp_path / "run", host):
        made = make.options(**at("there")).remote(SIZE, 1)
        marline.wait([made], fetch_local=False)
        began = host.carried()
        readers = [checks.options(num_cpus=0.1, resources={"here": 0.1}).remote(made, 1) for _ in range(20)]
        assert all(marline.get(readers, timeout=PATIENCE))
        assert host.carried() - began < 1.3 * SIZE, "it was carried more than once"


@needs_root
def test_a_cut_that_outlasts_the_lease_loses_what_was_there_and_it_is_made_anew(
    host: Host, tmp_path: Path
) -> None:
    with hosts(tmp_path / "run", host, "--lease", "1s"):
        made = make.options(**at("there")).remote(SIZE, 1)
        marline.wait([made], fetch_local=False)
        began = host.carried()
        read = checks.options(**at("here")).remote(made, 1)
        until("some of it has come", lambda: host.carried() - began > SIZE // 4)
        with host.cut("routes"):
            until("it is lost", lambda: len([one for one in marline.nodes() if one["Alive"]]) == 1)
        assert marline.get(read, timeout=PATIENCE)
        assert is_whole(marline.get(made, timeout=PATIENCE), 1)
