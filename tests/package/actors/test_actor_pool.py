"""`marline.ActorPool` spreads work over actors, and gives results in order or as they come."""

from __future__ import annotations

import os
import time
from pathlib import Path

import marline
import pytest
from harness.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("cluster")


@marline.remote
class Worker:
    def double(self, n: int) -> int:
        return 2 * n

    def nap(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def wait_for(self, file: Path) -> str:
        while not file.exists():
            time.sleep(0.002)
        return file.name

    def touch(self, file: Path) -> str:
        file.touch()
        return file.name

    def fail(self, n: int) -> int:
        raise ValueError("as asked", n)

    def die(self, code: int) -> None:
        os._exit(code)

    def pair(self, n: int) -> tuple[int, int]:
        return n, n + 1


def double(actor: marline.ActorHandle, n: int) -> marline.ObjectRef:
    return actor.double.remote(n)


def pool_of(count: int) -> marline.ActorPool:
    return marline.ActorPool([Worker.remote() for _ in range(count)])


def test_map_keeps_the_order() -> None:
    pool = pool_of(2)
    assert list(pool.map(double, range(20))) == [2 * n for n in range(20)]
    assert list(pool.map(double, [])) == []
    assert not pool.has_next()


def test_map_unordered_gives_what_comes_first(tmp_path: Path) -> None:
    def call(actor: marline.ActorHandle, work: tuple[str, Path]) -> marline.ObjectRef:
        return getattr(actor, work[0]).remote(work[1])

    work = [("wait_for", tmp_path / "b"), ("touch", tmp_path / "a")]
    results = pool_of(2).map_unordered(call, work)
    assert next(results) == "a"
    (tmp_path / "b").touch()
    assert list(results) == ["b"]


def test_others_go_on_while_the_oldest_is_waited_for(tmp_path: Path) -> None:
    pool = pool_of(2)
    pool.submit(lambda actor, file: actor.wait_for.remote(file), tmp_path / "last")
    for name in ["one", "two", "last"]:
        pool.submit(lambda actor, file: actor.touch.remote(file), tmp_path / name)
    assert [pool.get_next(PATIENCE) for _ in range(4)] == ["last", "one", "two", "last"]


def test_submit_and_get_next() -> None:
    pool = pool_of(2)
    for n in range(5):
        pool.submit(double, n)
    assert not pool.has_free()
    assert pool.pop_idle() is None
    assert [pool.get_next(PATIENCE) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert not pool.has_next()
    with pytest.raises(StopIteration):
        pool.get_next()
    with pytest.raises(StopIteration):
        pool.get_next_unordered()


def test_the_oldest_that_is_left_is_next() -> None:
    pool = pool_of(2)
    pool.submit(lambda actor, n: actor.nap.remote(n), 0.2)
    pool.submit(double, 1)
    pool.submit(double, 2)
    assert pool.get_next_unordered(PATIENCE) == 2
    assert pool.get_next(PATIENCE) == 0.2
    assert pool.get_next(PATIENCE) == 4


def test_a_result_that_takes_too_long_can_be_waited_for_again_or_dropped() -> None:
    pool = pool_of(1)
    pool.submit(lambda actor, n: actor.nap.remote(n), 0.5)
    pool.submit(double, 1)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0.01)
    with pytest.raises(TimeoutError):
        pool.get_next_unordered(timeout=0.01)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0, ignore_if_timedout=True)
    assert pool.get_next(PATIENCE) == 2
    assert not pool.has_next()


def test_a_failure_leaves_the_actor_in_the_pool() -> None:
    pool = pool_of(1)
    pool.submit(lambda actor, n: actor.fail.remote(n), 3)
    pool.submit(double, 4)
    with pytest.raises(ValueError, match="as asked") as caught:
        pool.get_next()
    assert caught.value.args == ("as asked", 3)
    assert pool.get_next() == 8
    assert pool.has_free()


def test_actors_come_and_go() -> None:
    pool = pool_of(1)
    actor = pool.pop_idle()
    assert actor is not None
    assert pool.pop_idle() is None
    pool.submit(double, 4)
    with pytest.raises(RuntimeError, match="push"):
        pool.get_next()
    pool.push(actor)
    with pytest.raises(ValueError, match="already"):
        pool.push(actor)
    assert pool.get_next(PATIENCE) == 8
    with pytest.raises(ValueError, match="already"):
        pool.push(actor)


def test_map_drops_what_was_submitted_before() -> None:
    pool = pool_of(1)
    pool.submit(double, 100)
    pool.submit(double, 200)
    assert list(pool.map(double, [1, 2])) == [2, 4]


def test_calls_with_several_results() -> None:
    def pair(actor: marline.ActorHandle, n: int) -> list[marline.ObjectRef]:
        refs: list[marline.ObjectRef] = actor.pair.options(num_returns=2).remote(n)
        return refs

    assert list(pool_of(2).map(pair, [1, 5])) == [[1, 2], [5, 6]]


def test_submit_rejects_a_value_that_is_no_reference_and_the_actor_stays_free() -> None:
    pool = pool_of(1)
    with pytest.raises(TypeError, match="not int"):
        pool.submit(lambda actor, n: n, 1)
    assert pool.has_free()
    assert list(pool.map(double, [3])) == [6]


def test_the_work_of_an_actor_that_died_fails_and_the_rest_comes() -> None:
    pool = pool_of(2)
    pool.submit(lambda actor, code: actor.die.remote(code), 1)
    for n in range(4):
        pool.submit(double, n)
    with pytest.raises(marline.WorkerLostError, match="exited with status 1"):
        pool.get_next(PATIENCE)
    came: list[object] = []
    while pool.has_next():
        try:
            came.append(pool.get_next(PATIENCE))
        except marline.ActorDiedError:
            came.append(None)  # The pool gave this call to the dead actor.
    assert len(came) == 4
    assert [n for n in came if n is not None] == [2 * n for n, one in enumerate(came) if one is not None]
    assert came[0] == 0, "the other actor goes on"
