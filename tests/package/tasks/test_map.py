"""`marline.map`: the order of results, chunks, how far it reads ahead, failures, and closing."""

from __future__ import annotations

import functools
import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import marline
import pytest
from harness.waiting import PATIENCE, wait_until
from marline._api.map import MAX_ITEMS, TASKS, ChunkResult, Chunks

pytestmark = pytest.mark.usefixtures("cluster")
# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def square(n: int) -> int:
    return n * n


def fail_at(bad: int, n: int) -> int:
    if n == bad:
        raise KeyError(n)
    return n


class Counted:
    """Numbers from 0 on. `read` is how many of them were read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for n in range(self.count):
            self.read = n + 1
            yield n


def test_results_come_in_order() -> None:
    assert list(marline.map(square, range(1000))) == [n * n for n in range(1000)]
    assert list(marline.map(square, Counted(1000))) == [n * n for n in range(1000)]
    assert list(marline.map(square, [])) == []


def test_several_inputs_end_with_the_shortest() -> None:
    assert list(marline.map(pow, [1, 2, 3], iter([2, 2]), chunksize=1)) == [1, 4]


def test_results_come_as_they_are_ready() -> None:
    def slow_first(n: int) -> int:
        time.sleep(PATIENCE if n == 0 else 0)
        return n

    results = marline.map(slow_first, range(4), chunksize=1, ordered=False)
    assert sorted(next(results) for _ in range(3)) == [1, 2, 3]
    results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("chunksize", [1, 4, 100, None])
def test_a_failure_is_raised_in_its_place(chunksize: int | None) -> None:
    results = marline.map(functools.partial(fail_at, 6), range(10), chunksize=chunksize)
    assert [next(results) for _ in range(6)] == list(range(6))
    with pytest.raises(KeyError) as caught:
        next(results)
    assert caught.value.args == (6,)
    assert isinstance(caught.value, marline.TaskError)
    assert "fail_at" in caught.value.remote_traceback
    assert list(results) == []


def test_a_failure_that_cannot_be_pickled_has_its_place_too() -> None:
    def odd(n: int) -> int:
        if n == 2:

            class Odd(Exception):
                def __reduce__(self) -> None:  # type: ignore[override]
                    raise RuntimeError("never")

            raise Odd("but it says this")
        return n

    results = marline.map(odd, range(4), chunksize=4)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(marline.TaskError, match="but it says this"):
        next(results)


@pytest.mark.parametrize("how", ["failure", "close"])
def test_what_is_in_flight_is_cancelled(tmp_path: Path, how: str) -> None:
    def work(n: int) -> int:
        if n == 0:
            return n
        if n == 1 and how == "failure":
            while not (tmp_path / "began").exists():
                time.sleep(0.002)
            raise LookupError(n)
        try:
            (tmp_path / "began").touch()
            time.sleep(PATIENCE)
        except marline.TaskCancelledError:
            (tmp_path / "cancelled").touch()
            raise
        return n

    results = marline.map(work, range(4), chunksize=1)
    assert next(results) == 0
    if how == "failure":
        with pytest.raises(LookupError):
            next(results)
    else:
        wait_until("an item is being worked on", (tmp_path / "began").exists)
        results.close()  # type: ignore[attr-defined]
    wait_until("the work on the item is cancelled", (tmp_path / "cancelled").exists)


def test_the_input_is_read_as_results_are_taken() -> None:
    numbers = Counted(1000)
    results = marline.map(square, numbers, chunksize=2, max_in_flight=3)
    assert numbers.read == 0
    assert next(results) == 0
    assert numbers.read == 6
    assert [next(results), next(results)] == [1, 4]
    assert numbers.read == 8


def test_the_input_may_be_endless() -> None:
    import itertools

    results = marline.map(square, itertools.count(), max_in_flight=4)
    assert list(itertools.islice(results, 100)) == [n * n for n in range(100)]
    results.close()  # type: ignore[attr-defined]


def test_an_input_that_fails_raises_its_exception() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(marline.map(square, broken()))


def test_chunk_sizes_follow_from_the_number_of_items_or_grow() -> None:
    assert len(Chunks((range(100),), None).take()) == 1
    assert len(Chunks((range(TASKS * 10),), None).take()) == 10
    assert len(Chunks((range(10**9),), None).take()) == MAX_ITEMS
    assert len(Chunks((range(10**9),), 7).take()) == 7
    growing = Chunks((Counted(10**9),), None)
    sizes = []
    for _ in range(12):
        sizes.append(len(growing.take()))
        growing.came(ChunkResult([None] * sizes[-1], seconds=0.0))
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]
    slow = Chunks((Counted(10**9),), None)
    slow.came(ChunkResult([None], seconds=1.0))
    assert len(slow.take()) == 1


def test_options_are_those_of_tasks(tmp_path: Path) -> None:
    def fails_once(n: int) -> int:
        if not (tmp_path / str(n)).exists():
            (tmp_path / str(n)).touch()
            raise ConnectionError(n)
        return n

    results = marline.map(fails_once, range(3), chunksize=1, retry_exceptions=[ConnectionError])
    assert list(results) == [0, 1, 2]
    with pytest.raises(TypeError, match="no option 'cpus'"):
        marline.map(square, [1], cpus=1)
    with pytest.raises(TypeError, match="num_returns"):
        marline.map(square, [1], num_returns=2)
    with pytest.raises(TypeError, match=r"map\(\) takes a function, not int"):
        marline.map(5, [1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunksize"):
        marline.map(square, [1], chunksize=0)
    with pytest.raises(ValueError, match="max_in_flight"):
        marline.map(square, [1], max_in_flight=0)


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, words in [(Terminal(), ["10 of 10 (100%)", "\n"]), (io.StringIO(), [])]:
        monkeypatch.setattr(sys, "stderr", stream)
        assert list(marline.map(square, range(10), progress=True)) == [n * n for n in range(10)]
        text = stream.getvalue()
        assert all(word in text for word in words)
        assert bool(text) == bool(words)


def test_references_among_the_items_are_their_values() -> None:
    @marline.remote
    def fails() -> int:
        raise LookupError("lost")

    items = [marline.put(2), 3, marline.remote(abs).remote(-4)]
    assert list(marline.map(square, items, chunksize=3)) == [4, 9, 16]
    assert list(marline.map(pow, items, [2, marline.put(2), 2])) == [4, 9, 16]
    with marline.Executor() as executor:
        assert list(executor.map(pow, items, [2, 2, 2])) == [4, 9, 16]
    results = marline.map(square, [1, fails.remote(), 2], chunksize=3)
    assert next(results) == 1
    with pytest.raises(LookupError, match="lost"):
        next(results)


def test_a_remote_function_means_the_plain_one() -> None:
    @marline.remote(num_cpus=100)
    def square(n: int) -> int:
        return n * n

    assert list(marline.map(square, [1, 2, 3])) == [1, 4, 9]
