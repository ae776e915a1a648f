"""One very large value: how many copies of it are in memory, and which users can read it.

`MARLINE_LARGE_BYTES` is its size. Marline promises 2,000,000,000 bytes, which take 12 GB of memory
here.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import resource
import socket
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import numpy as np
import pytest
from harness import store
from harness.scripts import Script, script_beside
from harness.store import (
    MIB,
    descriptors,
    is_whole,
    memory_bytes,
    needs_root,
    one_worker_cluster,
    pattern,
)
from harness.waiting import PATIENCE

# Workers of a separate cluster cannot import these modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

BYTES = int(os.environ.get("MARLINE_LARGE_BYTES", 64_000_000)) // 4 * 4


def allow(more: float) -> None:
    """Limits how many more bytes of memory of its own this process gets.

    A larger copy then fails.
    """
    (now,) = re.findall(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    limit = int(now) * 1024 + int(more)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


@marline.remote
class Reader:
    def allow(self, more: float) -> None:
        allow(more)

    def reads(self, value: Any, seed: int) -> tuple[int, bool]:
        """Returns the length of a value, and whether all of it is the pattern of the seed."""
        return len(value), is_whole(np.frombuffer(value, dtype=np.uint8), seed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["array", "bytes"])
def test_a_large_argument_is_copied_at_most_once_in_each_process(
    kind: str, tmp_path: Path, scripts: list[Script]
) -> None:
    # An array is read in place and not copied at all. Bytes are copied once in each process.
    extra = BYTES / 4 if kind == "array" else BYTES * 1.25
    with one_worker_cluster(tmp_path / "run", 2 * BYTES + 64 * MIB) as running:
        reader = Reader.options(name="reader", namespace="large").remote()
        marline.get(reader.allow.remote(extra))
        script = script_beside(
            __file__,
            f"""
import numpy as np
import test_objects_large as test
marline.init({running.address!r}, token={running.token!r}, namespace="large")
reader = marline.get_actor("reader")
value = test.pattern({BYTES}, 7)
if {kind!r} == "bytes":
    value = value.tobytes()
test.allow({extra})
assert marline.get(reader.reads.remote(value, 7)) == ({BYTES}, True), "by value"
ref = marline.put(value)
assert marline.get(reader.reads.remote(ref, 7)) == ({BYTES}, True), "by reference"
same = marline.get(ref)
assert type(same) is type(value) and len(same) == len(value)
assert test.is_whole(np.frombuffer(same, dtype=np.uint8), 7)
print_line("all of it")
""",
        )
        scripts.append(script)
        code, out, err = script.end(600)
        assert (code, out) == (0, "all of it\n"), err
        assert memory_bytes(running.pid) < 2 * BYTES + 64 * MIB
        assert marline.get(reader.reads.remote(marline.put(pattern(MIB, 1)), 1)) == (MIB, True), (
            "the reader is alive"
        )
        assert marline.get(reader.reads.remote(pattern(MIB, 1), 2)) == (MIB, False), (
            "the reader notices a wrong seed"
        )


def test_values_of_many_sizes_take_no_more_memory_than_a_store_has(tmp_path: Path) -> None:
    memory = 64 * MIB
    with one_worker_cluster(tmp_path / "run", memory, patience=5) as running:
        kept = {seed: marline.put(pattern(MIB // 2, seed)) for seed in range(120)}
        for size in (MIB, 2 * MIB, 4 * MIB):
            # Every other value is released: no larger value fits between those that stay.
            for seed in list(kept)[::2]:
                del kept[seed]
            first, count = max(kept) + 1, memory // 2 // size - 3
            kept |= {seed: marline.put(pattern(size, seed)) for seed in range(first, first + count)}
            assert memory_bytes(running.pid) <= memory
            assert all(is_whole(marline.get(ref), seed) for seed, ref in kept.items())


def test_values_that_grow_take_no_more_descriptors_each_time(tmp_path: Path) -> None:
    size = 257 * MIB  # Larger than the pieces in which a store gets memory from the system.
    with one_worker_cluster(tmp_path / "run", 2 * size) as running:
        counts = []
        for turn in range(4):
            value = marline.get(marline.put(np.zeros(size + turn * 8192, dtype=np.uint8)))
            assert len(value) == size + turn * 8192
            del value
            counts.append(descriptors(running.pid))
        assert counts[-1] <= counts[1], counts


def asks_for_store(file: Path, token: str) -> bytes:
    """Asks a socket for access to the store, as a process that knows the token. Returns its answer.

    A store answers `+`, and refuses by closing the connection: the answer is then empty.
    """
    kind, nonce = b"\x03", os.urandom(32)
    with socket.socket(socket.AF_UNIX) as asking, contextlib.chdir(file.parent):
        asking.settimeout(PATIENCE)
        asking.connect(file.name)
        asking.sendall(b"MRLN\x02" + kind + nonce)
        reply = b""
        while len(reply) < 89:
            piece = asking.recv(89 - len(reply))
            if not piece:
                return b""
            reply += piece
        cluster_and_epoch, listener = reply[1:25], reply[25:57]
        proved = b"marline handshake 2\0\x01" + kind + cluster_and_epoch + nonce + listener
        try:
            asking.sendall(hmac.digest(token.encode(), proved, "sha256"))
            return asking.recv(1)
        except (BrokenPipeError, ConnectionResetError):
            return b""


@needs_root
def test_another_user_does_not_get_at_the_memory_of_a_store(tmp_path: Path, scripts: list[Script]) -> None:
    with one_worker_cluster(tmp_path / "run", 64 * MIB) as running:
        kept = marline.put(pattern(8 * MIB, 1))

        listening = [file for file in (tmp_path / "run").rglob("*") if file.is_socket()]
        (socket_file,) = (file for file in listening if asks_for_store(file, running.token) == b"+")
        # The store must not rely on file permissions: open the socket and its folders to every
        # user.
        for file in (socket_file, *socket_file.parents):
            if file.is_relative_to("/tmp/") or file.is_relative_to(tmp_path.parents[2]):
                file.chmod(file.stat().st_mode | 0o055 | (0o022 if file is socket_file else 0))
        assert asks_for_store(socket_file, "a guess") == b""
        source = f"""
import numpy as np
import test_objects_large as test
from pathlib import Path
import marline._concurrent.aio, marline._api.errors
os.setgroups([]); os.setgid(65534); os.setuid(65534)
token = {running.token!r}
print_line("answer", test.asks_for_store(Path({str(socket_file)!r}), token))
marline.init({running.address!r}, token=token)
value = marline.get(marline.remote(test.pattern).remote(8 << 20, 2))
print_line("whole", test.is_whole(value, 2))
put = marline.put(test.pattern(8 << 20, 3))
in_a_task = marline.get(marline.remote(test.is_whole).remote(put, 3))
print_line("whole", test.is_whole(marline.get(put), 3), in_a_task)
print_line("sees", "memfd:marline" in Path("/proc/self/maps").read_text())
"""
        script = script_beside(__file__, source)
        scripts.append(script)
        code, out, err = script.end()
        expected = "answer b''\nwhole True\nwhole True True\nsees False\n"
        assert (code, out) == (0, expected), err
        assert is_whole(marline.get(kept), 1)
