"""Which large values are read in place or copied in each process, and from which size on."""

from __future__ import annotations

import array
import dataclasses
import pickle
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import numpy as np
import pyarrow as pa
import pytest
from harness import store
from harness.store import MIB, Array, is_whole, pattern
from harness.waiting import wait_until

# Workers of a separate cluster cannot import these modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

# A larger pickle goes to a store. A larger buffer in it is read in place.
STORED_BYTES = 102_400


def is_in_store(buffer: Any) -> bool:
    """Returns whether a buffer lies in memory of a store that this process cannot write to."""
    seen = np.frombuffer(buffer, dtype=np.uint8)
    start, end = seen.ctypes.data, seen.ctypes.data + seen.nbytes
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:marline" in line:
            where, rights = line.split()[:2]
            low, high = (int(side, 16) for side in where.split("-"))
            if low <= start and end <= high:
                return "w" not in rights
    return False


def used() -> int:
    """Returns how many bytes the stores hold."""
    return sum(figures["used"] for figures in marline.object_stores())


def table(rows: int) -> pa.Table:
    """Returns a table of numbers, a third of which is missing, and texts."""
    numbers = pa.array(np.arange(rows), mask=np.arange(rows) % 3 == 0)
    return pa.table({"number": numbers, "text": pa.array(np.arange(rows)).cast(pa.string())})


def arrow_buffers(value: pa.Table) -> list[Any]:
    """Returns the buffers of a table that are large enough to be read in place."""
    chunks = [chunk for column in value.columns for chunk in column.chunks]
    buffers = [buffer for chunk in chunks for buffer in chunk.buffers() if buffer is not None]
    return [buffer for buffer in buffers if buffer.size > STORED_BYTES]


ROWS = 1_000_000


@marline.remote
def looks_at_table(value: pa.Table) -> tuple[bool, list[bool]]:
    return value.equals(table(value.num_rows)), [is_in_store(buffer) for buffer in arrow_buffers(value)]


@marline.remote
def makes_table(rows: int) -> pa.Table:
    return table(rows)


@marline.remote
def looks_at_data(value: Any, seed: int) -> tuple[bool, bool]:
    """Returns whether the data of a value is whole, and whether it is in a store."""
    data = np.frombuffer(value.data, dtype=np.uint8)
    return is_whole(data, seed), is_in_store(data)


@marline.remote
def kind_of(value: Any, expected: Any) -> tuple[str, bool, bool]:
    return type(value).__name__, bytes(value) == bytes(expected), is_in_store(value)


class Frame:
    """A class that pickles its data out of band, with pickle protocol 5."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: Any) -> Any:
        assert protocol >= 5
        return Frame, (pickle.PickleBuffer(self.data),)


def local_classes() -> tuple[Any, Any]:
    """Returns two classes that travel as code: like those of a script, they cannot be imported."""

    class Framed:
        def __init__(self, data: Any) -> None:
            self.data = data

        def __reduce_ex__(self, protocol: Any) -> Any:
            return Framed, (pickle.PickleBuffer(self.data),)

    @dataclasses.dataclass
    class Batch:
        data: Array
        name: str = "__main__"

    return Framed, Batch


@pytest.mark.usefixtures("cluster")
class TestEverywhere:
    def test_arrow_tables_are_read_in_place_by_drivers_and_tasks(self) -> None:
        original = table(ROWS)
        assert len(arrow_buffers(original)) == 4, "numbers, their validity, texts, offsets of the texts"
        put, made = marline.put(original), makes_table.remote(ROWS)
        for ref in (put, made):
            came = marline.get(ref)
            assert came.equals(original)
            assert [is_in_store(buffer) for buffer in arrow_buffers(came)] == [True] * 4, "in this process"
            assert marline.get(looks_at_table.remote(ref)) == (True, [True] * 4), "in a task"
            assert came.slice(500_000, 10).equals(original.slice(500_000, 10))
        assert marline.get(looks_at_table.remote(original)) == (True, [True] * 4), "given by value"
        assert not any(is_in_store(buffer) for buffer in arrow_buffers(original))

    def test_the_data_of_classes_that_travel_as_code_is_read_in_place(self) -> None:
        framed, batch = local_classes()
        before = used()
        for seed, value in enumerate((framed(pattern(2 * MIB, 0)), batch(pattern(2 * MIB, 1)))):
            ref = marline.put(value)
            assert 2 * MIB <= used() - before < 2 * MIB + STORED_BYTES, "the store holds one copy"
            came = marline.get(ref)
            assert is_whole(np.frombuffer(came.data, dtype=np.uint8), seed)
            assert memoryview(came.data).readonly and is_in_store(came.data), "in this process"
            assert marline.get(looks_at_data.remote(ref, seed)) == (True, True), "in a task"
            assert marline.get(looks_at_data.remote(value, seed)) == (True, True), "given by value"
            assert marline.get(looks_at_data.remote(came, seed)) == (True, True), "passed on"
            del ref, came
            wait_until("the value is freed", lambda: used() == before)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, array.array])
    def test_builtin_types_are_copied_in_each_process_from_one_stored_copy(self, kind: Any) -> None:
        data = pattern(2 * MIB, 3).tobytes()
        value = array.array("B", data) if kind is array.array else kind(data)
        before = used()
        ref = marline.put(value)
        assert 2 * MIB <= used() - before < 2 * MIB + STORED_BYTES, "the store holds one copy"
        came, again = marline.get(ref), marline.get(ref)
        # A memoryview arrives as bytes: its object stays behind.
        arrived = bytes if kind is memoryview else kind
        assert type(came) is arrived and bytes(came) == data and not is_in_store(came)
        if kind in (bytearray, array.array):
            came[0] ^= 1
            assert bytes(again) == data and bytes(marline.get(ref)) == data, "each get has its own copy"
        for given in (ref, value):
            assert marline.get(kind_of.remote(given, data)) == (arrived.__name__, True, False)

    def test_a_pickle_above_100_kib_goes_to_a_store(self) -> None:
        @marline.remote
        def zeros(size: int) -> bytes:
            return bytes(size)

        around = len(pickle.dumps(bytes(STORED_BYTES), protocol=5)) - STORED_BYTES
        before = used()
        border = STORED_BYTES - around
        for size, goes in ((border, 0), (border + 1, 1), (STORED_BYTES, 1), (STORED_BYTES + 1, 1)):
            put, made = marline.put(bytes(size)), zeros.remote(size)
            assert marline.get([put, made]) == [bytes(size)] * 2
            taken = used() - before
            assert taken == 0 if not goes else 2 * size < taken < 2 * size + 4096, f"{size}: {taken}"
            del put, made
            wait_until("the values are freed", lambda: used() == before)

    def test_buffers_above_100_kib_are_read_in_place_and_others_are_copied(self) -> None:
        @marline.remote
        def in_place(value: Array) -> tuple[bool, bool]:
            return is_in_store(value), value.flags.writeable

        for size, place in ((STORED_BYTES, False), (STORED_BYTES + 1, True)):
            value = np.resize(pattern(size + 4, 1), size)
            ref = marline.put(value)
            came = marline.get(ref)
            assert (came == value).all()
            assert (is_in_store(came), came.flags.writeable) == (place, not place), size
            assert marline.get(in_place.remote(ref)) == (place, not place), size
            assert marline.get(in_place.remote(value)) == (place, not place), size


def test_a_class_with_an_out_of_band_buffer_is_read_in_place() -> None:
    with marline.init(num_cpus=2):
        ref = marline.put(Frame(pattern(2 * MIB, 2)))
        came = marline.get(ref)
        assert type(came) is Frame and is_in_store(came.data)
        assert marline.get(looks_at_data.remote(ref, 2)) == (True, True)
        assert marline.get(looks_at_data.remote(came, 2)) == (True, True), "passed on"
