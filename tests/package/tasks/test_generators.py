"""Generators: a streaming task gives out each item as a reference while it runs."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import pickle
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.scripts import Script
from harness.waiting import wait_until
from marline._session import sessions

pytestmark = pytest.mark.usefixtures("cluster")


@marline.remote(num_returns="streaming")
def count(n: int) -> Iterator[int]:
    yield from range(n)


@marline.remote(num_returns="streaming")
async def count_later(n: int) -> AsyncIterator[int]:
    for i in range(n):
        await asyncio.sleep(0)
        yield i


@marline.remote
class Counter:
    @marline.method(num_returns="streaming")
    def count(self, n: int) -> Iterator[int]:
        yield from range(n)

    @marline.method(num_returns="streaming", max_unconsumed=2)
    def tell(self, file: str) -> Iterator[int]:
        try:
            for i in itertools.count():
                Path(file).write_text(str(i))
                yield i
        finally:
            Path(file).write_text("closed")

    def one(self) -> int:
        return 1


@marline.remote
class AsyncCounter:
    @marline.method(num_returns="streaming")
    async def count(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            await asyncio.sleep(0)
            yield i

    @marline.method(num_returns="streaming")
    def plain(self, n: int) -> Iterator[int]:
        yield from range(n)

    @marline.method(num_returns="streaming", max_unconsumed=2)
    async def tell(self, file: str) -> AsyncIterator[int]:
        try:
            for i in itertools.count():
                Path(file).write_text(str(i))
                yield i
        finally:
            Path(file).write_text("closed")


@marline.remote(num_returns="streaming", max_unconsumed=2)
def tells(file: str) -> Iterator[int]:
    """Counts, writes each number to the file, and "closed" when it is closed.

    So do the methods `tell`.
    """
    try:
        for i in itertools.count():
            Path(file).write_text(str(i))
            yield i
    finally:
        Path(file).write_text("closed")


def values(generator: marline.ObjectRefGenerator) -> list[Any]:
    return [marline.get(ref) for ref in generator]


KINDS: dict[str, Callable[[int], marline.ObjectRefGenerator]] = {
    "function": lambda n: count.remote(n),
    "async function": lambda n: count_later.remote(n),
    "method": lambda n: Counter.remote().count.remote(n),
    "threads": lambda n: Counter.options(max_concurrency=3).remote().count.remote(n),
    "coroutine": lambda n: AsyncCounter.remote().count.remote(n),
    "generator among coroutines": lambda n: AsyncCounter.remote().plain.remote(n),
}


@pytest.mark.parametrize("kind", KINDS)
def test_items_come_in_order_and_then_the_end(kind: str) -> None:
    make = KINDS[kind]
    generator = make(200)
    assert isinstance(generator, marline.ObjectRefGenerator)
    assert iter(generator) is generator
    assert values(generator) == list(range(200))
    with pytest.raises(StopIteration):
        next(generator)
    assert values(make(0)) == []

    async def later() -> list[int]:
        return [await ref async for ref in make(200)]

    assert asyncio.run(later()) == list(range(200))


def test_a_value_has_arrived_when_its_reference_is_given_out() -> None:
    @marline.remote(num_returns="streaming")
    def slow(gate: str) -> Iterator[str]:
        yield "first"
        while not os.path.exists(gate):
            time.sleep(0.002)
        yield "second"

    generator = slow.remote("/nowhere")
    first = next(generator)
    assert first.done() and marline.get(first, timeout=0) == "first"
    assert first.task_id() == generator.task_id()


def test_a_streaming_task_may_return_anything_that_can_be_iterated() -> None:
    stream = marline.remote(num_returns="streaming")
    assert values(stream(lambda: [1, 2]).remote()) == [1, 2]
    assert values(stream(lambda: "ab").remote()) == ["a", "b"]

    async def later() -> list[int]:
        return [1, 2]

    assert values(stream(later).remote()) == [1, 2]


def test_an_exception_is_raised_after_the_items_before_it_and_ends_the_stream() -> None:
    def fail(n: int) -> Iterator[int]:
        yield from range(n)
        raise LookupError("no more")

    class Fails:
        def fail(self) -> Iterator[int]:
            yield from fail(100)

        async def fail_later(self) -> AsyncIterator[int]:
            for i in fail(100):
                yield i

    actor = marline.remote(Fails).remote()
    calls = (
        marline.remote(fail).options(num_returns="streaming", max_unconsumed=1).remote(100),
        marline.remote(fail).options(num_returns="streaming").remote(100),
        actor.fail.options(num_returns="streaming").remote(),
        actor.fail_later.options(num_returns="streaming").remote(),
    )
    for generator in calls:
        refs = [next(generator) for _ in range(100)]
        with pytest.raises(LookupError, match="no more") as raised:
            next(generator)
        assert isinstance(raised.value, marline.TaskError)
        assert "no more" in str(raised.value)
        with pytest.raises(StopIteration):
            next(generator)
        assert marline.get(refs) == list(range(100)), "earlier items stay available"


TELLERS: dict[str, Callable[[str], marline.ObjectRefGenerator]] = {
    "function": lambda file: tells.remote(file),
    "method": lambda file: Counter.remote().tell.remote(file),
    "threads": lambda file: Counter.options(max_concurrency=2).remote().tell.remote(file),
    "coroutine": lambda file: AsyncCounter.remote().tell.remote(file),
}


def progress(file: Path) -> str:
    """Returns what the generator wrote last."""
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize("kind", TELLERS)
def test_a_slow_consumer_holds_up_the_producer_and_leaving_ends_it(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "progress"
    generator = TELLERS[kind](str(file))
    wait_until("two items are made", lambda: progress(file) == "1")
    ref = next(generator)
    wait_until("a third item is made", lambda: progress(file) == "2")
    last = [next(generator) for _ in range(10)][-1]
    wait_until("ten more items are made", lambda: progress(file) == "12")
    del generator
    gc.collect()
    wait_until("the generator is closed", lambda: progress(file) == "closed")
    assert marline.get([ref, last]) == [0, 10], "items that were taken stay"


def test_closing_cancels_the_task_and_releases_items_that_were_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    before = sessions.current().status().kept()
    generator = tells.remote(str(file))
    ref = next(generator)
    wait_until("some items are made", lambda: progress(file) not in ("", "0"))
    generator.close()
    generator.close()
    assert list(generator) == []
    wait_until("the generator is closed", lambda: progress(file) == "closed")
    assert marline.get(ref) == 0
    del ref, generator
    # The session holds the code of a function as long as the function exists.
    wait_until(
        "no value is held except the function's code",
        lambda: sessions.current().status().kept()[0] <= before[0] + 1,
    )


def test_a_stream_that_is_cancelled_raises_after_what_came() -> None:
    generator = count.options(max_unconsumed=2).remote(1000)
    next(generator)
    marline.cancel(generator)
    with pytest.raises(marline.TaskCancelledError):
        list(generator)
    assert list(generator) == []


def test_an_actor_goes_on_after_a_stream_was_left(tmp_path: Path) -> None:
    actor = Counter.remote()
    generator = actor.tell.remote(str(tmp_path / "progress"))
    next(generator)
    del generator
    assert marline.get(actor.one.remote()) == 1
    assert values(actor.count.remote(3)) == [0, 1, 2]


def test_a_producer_that_waits_keeps_no_cpu_from_others() -> None:
    @marline.remote
    def square(n: int) -> int:
        return n * n

    generators = [count.options(max_unconsumed=1).remote(10) for _ in range(2)]
    firsts = [next(generator) for generator in generators]
    # Both producers wait for a consumer: they have given back their CPUs.
    assert marline.get([square.remote(n) for n in range(20)]) == [n * n for n in range(20)]
    assert marline.get(firsts) == [0, 0]
    assert [values(generator) for generator in generators] == [list(range(1, 10))] * 2


def test_a_task_takes_the_items_of_another() -> None:
    @marline.remote
    def total(n: int) -> int:
        return sum(marline.get(ref) for ref in count.options(max_unconsumed=1).remote(n))

    assert marline.get([total.remote(n) for n in (10, 20, 30)]) == [45, 190, 435]


def test_items_may_be_large_and_may_have_references_in_them() -> None:
    @marline.remote(num_returns="streaming", max_unconsumed=2)
    def make() -> Iterator[Any]:
        for n in range(5):
            yield {"ref": marline.put(n), "bytes": bytes([n]) * 1_000_000}

    generator = make.remote()
    del generator  # No item of it is taken.
    refs = list(make.remote())
    items = marline.get(refs)
    del refs
    assert [marline.get(item["ref"]) for item in items] == list(range(5))
    assert [item["bytes"] for item in items] == [bytes([n]) * 1_000_000 for n in range(5)]


def test_references_to_items_are_passed_on_like_any_others() -> None:
    add = marline.remote(lambda x, y: x + y)
    assert marline.get([add.remote(ref, 100) for ref in count.remote(5)]) == [100, 101, 102, 103, 104]
    nested = marline.remote(lambda refs: marline.get(refs))
    assert marline.get(nested.remote(list(Counter.remote().count.remote(5)))) == list(range(5))


def test_a_stream_whose_executor_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    def risky(folder: str, n: int) -> Iterator[tuple[int, int, bytes]]:
        Path(folder, str(os.getpid())).touch()
        for i in range(n):
            if i == n // 2 and len(os.listdir(folder)) < 3:
                os.kill(os.getpid(), signal.SIGKILL)
            yield i, os.getpid(), bytes([i]) * (200_000 if i % 3 == 0 else 2)

    class Risky:
        def run(self, folder: str, n: int) -> Iterator[tuple[int, int, bytes]]:
            yield from risky(folder, n)

    for name in ("function", "method"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "function":
            task = marline.remote(risky).options(num_returns="streaming", max_unconsumed=7)
            generator = task.remote(str(folder), 100)
        else:
            actor = marline.remote(Risky).options(max_restarts=-1, max_task_retries=-1).remote()
            method = actor.run.options(num_returns="streaming", max_unconsumed=7)
            generator = method.remote(str(folder), 100)
        refs = list(
            generator
        )  # All are held to the end: the second attempt must not replace items of the first.
        items = marline.get(refs)
        assert [i for i, _, _ in items] == list(range(100))
        assert all(set(data) == {i} for i, _, data in items)
        assert len({pid for _, pid, _ in items}) >= 2 and len(os.listdir(folder)) == 3


def test_a_stream_without_retries_ends_with_the_loss_of_its_executor() -> None:
    def die(n: int) -> Iterator[int]:
        yield from range(n)
        time.sleep(0.05)  # Lets the items leave the process.
        os.kill(os.getpid(), signal.SIGKILL)

    generator = marline.remote(die).options(num_returns="streaming", max_retries=0).remote(3)
    refs = [next(generator) for _ in range(3)]
    with pytest.raises(marline.WorkerLostError, match="signal 9"):
        next(generator)
    assert list(generator) == []
    assert marline.get(refs) == [0, 1, 2]


def test_exceptions_that_are_tried_again_do_not_repeat_items(tmp_path: Path) -> None:
    @marline.remote(num_returns="streaming", retry_exceptions=True)
    def flaky(file: str) -> Iterator[int]:
        yield 1
        yield 2
        if not os.path.exists(file):
            Path(file).touch()
            raise ConnectionError
        yield 3

    assert values(flaky.remote(str(tmp_path / "tried"))) == [1, 2, 3]


def test_dynamic_gives_references_to_all_items_at_the_end() -> None:
    def some(n: int) -> Iterator[bytes]:
        for i in range(n):
            yield bytes([i])

    class Some:
        def some(self, n: int) -> Iterator[bytes]:
            yield from some(n)

        async def later(self, n: int) -> AsyncIterator[bytes]:
            for item in some(n):
                yield item

    plain = type("Plain", (), {"some": Some.some})
    calls = (
        marline.remote(num_returns="dynamic")(some).remote(5),
        marline.remote(plain).remote().some.options(num_returns="dynamic").remote(5),
        marline.remote(Some).remote().some.options(num_returns="dynamic").remote(5),
        marline.remote(Some).remote().later.options(num_returns="dynamic").remote(5),
    )
    for ref in calls:
        assert isinstance(ref, marline.ObjectRef)
        refs = marline.get(ref)
        del ref
        assert isinstance(refs, marline.DynamicObjectRefGenerator)
        assert len(refs) == 5 and marline.get(list(refs)) == [bytes([i]) for i in range(5)]
    lengths = marline.remote(lambda refs: [len(marline.get(ref)) for ref in refs])
    assert marline.get(lengths.remote(marline.remote(num_returns="dynamic")(some).remote(3))) == [1, 1, 1]


def test_a_streaming_task_that_returns_no_iterable_fails() -> None:
    for returns in ("streaming", "dynamic"):
        task = marline.remote(lambda: 7).options(num_returns=returns)
        with pytest.raises(TypeError, match="one int was returned, which cannot be iterated: yield them"):
            marline.get(list(task.remote()) if returns == "streaming" else task.remote())


def test_an_item_that_cannot_be_pickled_is_named() -> None:
    @marline.remote(num_returns="streaming")
    def locks() -> Iterator[Any]:
        import threading

        yield 1
        yield [threading.Lock()]

    generator = locks.remote()
    assert marline.get(next(generator)) == 1
    with pytest.raises(TypeError, match=r"item 1\[0\] cannot be pickled"):
        next(generator)


def test_misuse_of_generators_is_refused() -> None:
    generator = count.remote(1)
    with pytest.raises(TypeError, match="only the process that made the call takes its items"):
        pickle.dumps(generator)
    with pytest.raises(TypeError, match=r"argument 0 cannot be pickled.*only the process that made the call"):
        count.remote(generator)
    with pytest.raises(TypeError, match="make it a list"):
        marline.get(generator)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="max_unconsumed is for a stream of items"):
        marline.remote(max_unconsumed=3)(lambda: [1]).remote()
    with pytest.raises(TypeError, match="max_unconsumed is for a stream of items"):
        Counter.remote().one.options(max_unconsumed=3)
    with pytest.raises(TypeError, match="max_unconsumed is for a stream of items"):
        marline.method(max_unconsumed=3)
    with pytest.raises(ValueError, match="'streaming' or 'dynamic'"):
        count.options(num_returns="stream")
    for wrong in (0, -1, 2**20):
        with pytest.raises(ValueError, match=r"max_unconsumed must be a whole number"):
            count.options(max_unconsumed=wrong)
    with pytest.raises(TypeError, match="num_returns is for your own functions and classes"):
        marline.function("python:math.hypot", num_returns="streaming")


def test_a_timeout_ends_a_stream(tmp_path: Path) -> None:
    generator = tells.options(timeout=0.2, max_retries=0).remote(str(tmp_path / "progress"))
    with pytest.raises(marline.GetTimeoutError, match="timeout"):
        values(generator)
    assert list(generator) == []


def test_when_the_consumer_dies_the_producer_ends(tmp_path: Path, scripts: list[Script]) -> None:
    address, token = sessions.current().address_and_token()
    file = tmp_path / "progress"
    source = f"""
import itertools
@marline.remote(num_returns="streaming", max_unconsumed=2)
def tells(file):
    for i in itertools.count():
        with open(file, "w") as progress:
            progress.write(f"{{i}} {{os.getpid()}}")
        yield i

marline.init({address!r}, token={token!r})
generator = tells.remote({str(file)!r})
print_line(marline.get(next(generator)))
wait_for_resume()
"""
    script = Script(source)
    scripts.append(script)
    assert script.line() == "0"
    wait_until("three items are made", lambda: progress(file).startswith("2 "))
    script.process.kill()
    pid = int(progress(file).split()[1])
    free = lambda: marline.available_resources() == marline.cluster_resources()  # noqa: E731
    wait_until("the producer has ended", free)
    assert progress(file) == f"2 {pid}"
