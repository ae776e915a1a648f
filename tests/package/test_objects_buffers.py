"""Which large values are read where they are, and which are made anew in each process; from which size on."""

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
import store
from conftest import until
from store import MIB, Array, is_whole, pattern

# Workers elsewhere cannot import them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)

# What is larger goes to a store.
STORED_BYTES = 102_400


def is_in_store(buffer: Any) -> bool:
    """Whether all of a buffer is memory of a store, which this process cannot write to."""
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
    """How many bytes there are in the stores."""
    return sum(figures["used"] for figures in marline.object_stores())


def table(rows: int) -> pa.Table:
    """Numbers, some of which are missing, and texts."""
    numbers = pa.array(np.arange(rows), mask=np.arange(rows) % 3 == 0)
    return pa.table({"number": numbers, "text": pa.array(np.arange(rows)).cast(pa.string())})


def arrow_buffers(value: pa.Table) -> list[Any]:
    """Those that are large."""
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
    """Whether what it has in it is whole, and where it is."""
    data = np.frombuffer(value.data, dtype=np.uint8)
    return is_whole(data, seed), is_in_store(data)


@marline.remote
def kind_of(value: Any, expected: Any) -> tuple[str, bool, bool]:
    return type(value).__name__, bytes(value) == bytes(expected), is_in_store(value)


class Frame:
    """Gives its data beside itself, as protocol 5 has it."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: Any) -> Any:
        assert protocol >= 5
        return Frame, (pickle.PickleBuffer(self.data),)


def local_classes() -> tuple[Any, Any]:
    """Classes that nobody can import, as are those of a script: they travel as code, with what is in them."""

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
        assert len(arrow_buffers(original)) == 4, "numbers, which are missing, texts, and where each begins"
        put, made = marline.put(original), makes_table.remote(ROWS)
        for ref in (put, made):
            came = marline.get(ref)
            assert came.equals(original)
            assert [is_in_store(buffer) for buffer in arrow_buffers(came)] == [True] * 4, "in this process"
            assert marline.get(looks_at_table.remote(ref)) == (True, [True] * 4), "in a task"
            assert came.slice(500_000, 10).equals(original.slice(500_000, 10))
        assert marline.get(looks_at_table.remote(original)) == (True, [True] * 4), "given by value"
        assert not any(is_in_store(buffer) for buffer in arrow_buffers(original))

    def test_what_is_inside_of_classes_that_travel_as_code_is_read_in_place(self) -> None:
        framed, batch = local_classes()
        before = used()
        for seed, value in enumerate((framed(pattern(2 * MIB, 0)), batch(pattern(2 * MIB, 1)))):
            ref = marline.put(value)
            assert 2 * MIB <= used() - before < 2 * MIB + STORED_BYTES, "it is there once"
            came = marline.get(ref)
            assert is_whole(np.frombuffer(came.data, dtype=np.uint8), seed)
            assert memoryview(came.data).readonly and is_in_store(came.data), "in this process"
            assert marline.get(looks_at_data.remote(ref, seed)) == (True, True), "in a task"
            assert marline.get(looks_at_data.remote(value, seed)) == (True, True), "given by value"
            assert marline.get(looks_at_data.remote(came, seed)) == (True, True), "given on"
            del ref, came
            until("it is free", lambda: used() == before)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, array.array])
    def test_what_python_itself_has_is_made_anew_in_each_process_from_one_copy(self, kind: Any) -> None:
        data = pattern(2 * MIB, 3).tobytes()
        value = array.array("B", data) if kind is array.array else kind(data)
        before = used()
        ref = marline.put(value)
        assert 2 * MIB <= used() - before < 2 * MIB + STORED_BYTES, "it is there once"
        came, again = marline.get(ref), marline.get(ref)
        # What a view is of stays behind.
        arrived = bytes if kind is memoryview else kind
        assert type(came) is arrived and bytes(came) == data and not is_in_store(came)
        if kind in (bytearray, array.array):
            came[0] ^= 1
            assert bytes(again) == data and bytes(marline.get(ref)) == data, "each is its own"
        for given in (ref, value):
            assert marline.get(kind_of.remote(given, data)) == (arrived.__name__, True, False)

    def test_what_is_above_100_kib_when_it_is_pickled_goes_to_a_store(self) -> None:
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
            until("it is free", lambda: used() == before)

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


def test_a_class_that_gives_its_buffer_apart_is_read_in_place() -> None:
    with marline.init(num_cpus=2):
        ref = marline.put(Frame(pattern(2 * MIB, 2)))
        came = marline.get(ref)
        assert type(came) is Frame and is_in_store(came.data)
        assert marline.get(looks_at_data.remote(ref, 2)) == (True, True)
        assert marline.get(looks_at_data.remote(came, 2)) == (True, True), "given on"
