"""`marline.Context` behaves the same on every engine: tasks, waiting, actors, contexts.

Each test runs on all engines. docs/guides/testing.md lists what is skipped. Options, restarts, retries,
kills and cancelling are in `test_context_lives.py`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import pytest
from harness.engines import CONTEXTS_ON_CLUSTERS, skip
from harness.waiting import PATIENCE, wait_until
from marline._session import sessions

# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# An exception in a thread of Marline fails the test.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def _namespace() -> str:
    return marline.get_runtime_context().namespace


def add(a: int, b: int = 0) -> int:
    return a + b


def fail(*_: Any) -> None:
    raise KeyError("as asked", 7)


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def wait_for(file: Path) -> str:
    while not file.exists():
        time.sleep(0.002)
    return file.name


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.count = start
        self.seen: list[Any] = []

    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    def see(self, what: Any) -> list[Any]:
        self.seen.append(what)
        return list(self.seen)

    def wait_for(self, file: Path) -> str:
        return wait_for(file)

    def fail(self) -> None:
        raise KeyError("as asked", 7)

    def upto(self, n: int) -> Iterator[int]:
        yield from range(n)


class Broken:
    def __init__(self) -> None:
        raise OSError("no disk")

    def hello(self) -> None: ...


class Gate:
    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def wait(self) -> str:
        await self.open.wait()
        return "through"

    async def unlock(self) -> str:
        self.open.set()
        return "open"

    async def fail(self) -> None:
        raise KeyError("as asked", 7)


# Tasks.


def test_run_and_get(ctx: marline.Context) -> None:
    future = ctx.run(add, 1, b=2)
    assert ctx.get(future) == 3
    assert future.result(PATIENCE) == 3
    assert future.done()
    assert ctx.run(add, 1, name="an addition").result() == 1


def test_lambdas_builtins_and_methods_run(ctx: marline.Context) -> None:
    assert ctx.run(lambda x: 2 * x, 4).result() == 8
    assert ctx.run(max, [1, 5, 2]).result() == 5
    assert ctx.run("a-b".split, "-").result() == ["a", "b"]


def test_functions_mean_what_they_mean_at_the_call(ctx: marline.Context) -> None:
    factor = 2

    def scale(n: int) -> int:
        return n * factor

    assert ctx.run(scale, 3).result() == 6
    factor = 5
    assert ctx.run(scale, 3).result() == 15


def test_get_takes_futures_lists_and_anything_else(ctx: marline.Context) -> None:
    future = ctx.run(add, 1)
    assert ctx.get([future, ctx.put("x"), future]) == [1, "x", 1]
    assert ctx.get([future, 5]) == [1, 5]
    plain: Any
    for plain in (5, None, "text", [1, 2], (future,), {"a": 1}):
        assert ctx.get(plain) is plain


def test_futures_as_arguments_arrive_as_values(ctx: marline.Context) -> None:
    three = ctx.run(add, 1, 2)
    assert ctx.run(add, three, b=ctx.run(add, three, ctx.put(1))).result(PATIENCE) == 7


def test_results_of_calls_are_arguments_like_any_other(ctx: marline.Context) -> None:
    counter = ctx.create_actor(Counter)
    assert ctx.run(add, counter.add.remote(), counter.add.remote()).result(PATIENCE) == 3
    with pytest.raises(KeyError, match="as asked"):
        ctx.run(add, counter.fail.remote()).result(PATIENCE)


def test_a_task_fails_as_what_it_depends_on_did(ctx: marline.Context) -> None:
    with pytest.raises(KeyError) as caught:
        ctx.run(add, ctx.run(fail)).result(PATIENCE)
    assert caught.value.args == ("as asked", 7)


def test_exceptions_arrive_as_themselves(ctx: marline.Context) -> None:
    future = ctx.run(fail)
    for _ in range(2):
        with pytest.raises(KeyError) as caught:
            ctx.get([ctx.run(add, 1), future])
        assert caught.value.args == ("as asked", 7)
        assert isinstance(caught.value, marline.TaskError)
    assert future.done()


def test_an_exit_is_a_failure(ctx: marline.Context) -> None:
    with pytest.raises(marline.TaskError, match="SystemExit: 3"):
        ctx.run(sys.exit, 3).result(PATIENCE)


def test_put_values_are_used_by_many(ctx: marline.Context) -> None:
    values = ctx.put([1, 2, 3])
    assert ctx.get([ctx.run(sum, values) for _ in range(5)]) == [6] * 5
    assert values.done()
    with pytest.raises(TypeError, match="future"):
        ctx.put(values)


def test_coroutines_run(ctx: marline.Context) -> None:
    async def later(n: int) -> int:
        await asyncio.sleep(0)
        return n

    assert ctx.run(later, 5).result(PATIENCE) == 5


def test_generators_can_be_iterated(ctx: marline.Context) -> None:
    def upto(n: int) -> Iterator[int]:
        yield from range(n)

    assert list(ctx.run(upto, 3)) == [0, 1, 2]
    assert list(ctx.run(lambda: (n * n for n in range(3)))) == [0, 1, 4]
    assert ctx.run(sum, ctx.run(upto, 4)).result() == 6
    with pytest.raises(TypeError, match="generator"):
        iter(ctx.run(add, 1))


def test_a_generator_that_fails_raises_its_exception(ctx: marline.Context) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("as asked", 7)

    with pytest.raises(KeyError, match="as asked"):
        list(ctx.run(broken))


def test_tasks_nest_deeper_than_there_are_threads(ctx: marline.Context) -> None:
    def depth(n: int) -> int:
        inner = marline.default_context()
        return 0 if n == 0 else 1 + int(inner.get(inner.run(depth, n - 1)))

    deep = 50 if ctx.kind in ("sync", "threads") else 6
    assert ctx.run(depth, deep).result(PATIENCE) == deep


def test_a_result_that_takes_too_long(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")
    future = ctx.run(wait_for, tmp_path / "go")
    assert not future.done()
    for timeout in (0.01, 0, -1):
        with pytest.raises(marline.GetTimeoutError, match="0 of 1 came within"):
            future.result(timeout)
    with pytest.raises(marline.GetTimeoutError, match="0 of 1 came within"):
        ctx.get(future, timeout=0.01)
    came = ctx.run(add, 1)
    assert came.result(PATIENCE) == 1
    with pytest.raises(marline.GetTimeoutError, match="1 of 2 came within"):
        ctx.get([came, future], timeout=0.01)
    (tmp_path / "go").touch()
    assert future.result(PATIENCE) == "go"


def test_a_task_that_fails_for_want_of_time_is_not_taken_for_a_late_one(ctx: marline.Context) -> None:
    def give_up() -> None:
        raise TimeoutError("the task's own")

    with pytest.raises(TimeoutError, match="the task's own"):
        ctx.run(give_up).result(PATIENCE)


def test_tasks_overlap(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")
    first = ctx.run(wait_for, tmp_path / "go")
    ctx.run((tmp_path / "go").touch)
    assert first.result(PATIENCE) == "go"


# Waiting.


def test_wait_gives_exactly_as_many_as_asked_for(ctx: marline.Context) -> None:
    futures = [ctx.run(add, n) for n in range(5)]
    ctx.get(futures)
    ready, rest = ctx.wait(futures, num_returns=2)
    assert (len(ready), len(rest)) == (2, 3)
    assert {*ready, *rest} == {*futures}
    ready, rest = ctx.wait(futures, num_returns=5)
    assert (ready, rest) == (futures, [])
    ready, rest = ctx.wait([ctx.put(1), ctx.run(fail)], num_returns=2)
    assert len(ready) == 2


def test_wait_ends_when_the_time_is_over(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")
    slow, quick, put = ctx.run(wait_for, tmp_path / "go"), ctx.run(add, 1), ctx.put(2)
    assert ctx.wait([slow, quick], timeout=PATIENCE) == ([quick], [slow])
    assert ctx.wait([slow, quick, put], num_returns=3, timeout=0.01) == ([quick, put], [slow])
    assert ctx.wait([slow], timeout=0) == ([], [slow])
    (tmp_path / "go").touch()
    assert ctx.wait([slow, quick], num_returns=2) == ([slow, quick], [])


def test_wait_refuses_what_cannot_be(ctx: marline.Context) -> None:
    future = ctx.put(1)
    with pytest.raises(ValueError, match="num_returns"):
        ctx.wait([future], num_returns=2)
    with pytest.raises(ValueError, match="num_returns"):
        ctx.wait([])
    with pytest.raises(ValueError, match="twice"):
        ctx.wait([future, future])


# Actors.


def test_an_actor_keeps_its_state(ctx: marline.Context) -> None:
    counter = ctx.create_actor(Counter, start=10)
    assert ctx.get([counter.add.remote() for _ in range(100)]) == list(range(11, 111))
    with pytest.raises(KeyError, match="as asked"):
        counter.fail.remote().result(PATIENCE)
    assert counter.add.remote(n=5).result(PATIENCE) == 115
    with pytest.raises(AttributeError, match="'sub'"):
        _ = counter.sub
    with pytest.raises(TypeError, match="remote"):
        counter.add(1)


def test_calls_run_in_order_whatever_they_depend_on(ctx: marline.Context) -> None:
    counter = ctx.create_actor(Counter)
    futures = [counter.see.remote(ctx.run(nap, 0.05)), counter.see.remote("b")]
    futures += [counter.see.remote(what=ctx.put(n)) for n in range(3)]
    assert ctx.get(futures)[-1] == [0.05, "b", 0, 1, 2]


def test_a_call_fails_as_what_it_depends_on_did(ctx: marline.Context) -> None:
    counter = ctx.create_actor(Counter)
    future = counter.add.remote(ctx.run(fail))
    with pytest.raises(KeyError, match="as asked"):
        future.result(PATIENCE)
    assert counter.add.remote().result(PATIENCE) == 1


def test_an_actor_is_made_from_futures(ctx: marline.Context) -> None:
    counter = ctx.create_actor(Counter, ctx.run(add, 2, 3))
    assert counter.add.remote().result(PATIENCE) == 6


def test_a_class_that_fails_fails_its_calls(ctx: marline.Context) -> None:
    broken = ctx.create_actor(Broken, name="broken")
    with pytest.raises(OSError, match="no disk"):
        broken.hello.remote().result(PATIENCE)
    wait_until("the actor is dead", lambda: ctx.actor_status(broken).state == "dead")
    assert ctx.create_actor(Counter, name="broken").add.remote().result(PATIENCE) == 1


def test_generator_methods_can_be_iterated(ctx: marline.Context) -> None:
    counter = ctx.create_actor(Counter)
    assert list(counter.upto.remote(3)) == [0, 1, 2]


def test_names(ctx: marline.Context) -> None:
    counter = ctx.create_actor(Counter, 5, name="the one")
    with pytest.raises(ValueError, match="the one"):
        ctx.create_actor(Counter, name="the one")
    same = ctx.create_actor(Counter, name="the one", get_if_exists=True)
    assert same == counter
    assert same.add.remote().result(PATIENCE) == 6
    assert counter.add.remote().result(PATIENCE) == 7
    fresh = ctx.create_actor(Counter, name="another", get_if_exists=True)
    assert fresh != counter
    assert fresh.add.remote().result(PATIENCE) == 1


def test_a_deleted_actor_is_gone(ctx: marline.Context) -> None:
    def is_gone(counter: marline.ContextActor) -> bool:
        try:
            counter.add.remote().result(PATIENCE)
        except marline.ActorDiedError:
            return ctx.actor_status(counter).state == "dead"
        except marline.WorkerLostError:
            pass
        return False

    for by_name in (True, False):
        counter = ctx.create_actor(Counter, name="the one")
        assert counter.add.remote().result(PATIENCE) == 1
        ctx.delete_actor("the one" if by_name else counter)
        # A separate cluster learns of the deletion a moment later.
        wait_until("calls fail", functools.partial(is_gone, counter))
        assert ctx.actor_status("the one").state == "dead"
    with pytest.raises(ValueError, match="the one"):
        ctx.delete_actor("the one")


def test_calls_that_wait_fail_when_their_actor_is_deleted(
    ctx: marline.Context, engine: str, tmp_path: Path
) -> None:
    skip(engine, "sync", why="nothing overlaps")
    counter = ctx.create_actor(Counter)
    futures = [counter.wait_for.remote(tmp_path / "go"), counter.add.remote()]
    ctx.delete_actor(counter)
    for future in futures:
        with pytest.raises(marline.ActorDiedError):
            future.result(PATIENCE)
    (tmp_path / "go").touch()


def test_an_actor_ends_with_its_last_handle_unless_detached(ctx: marline.Context) -> None:
    short, long = (
        ctx.create_actor(Counter, name="short"),
        ctx.create_actor(Counter, name="long", lifetime="detached"),
    )
    assert ctx.get([short.add.remote(), long.add.remote()]) == [1, 1]
    del short, long
    wait_until("the actor is dead", lambda: ctx.actor_status("short").state == "dead")
    assert ctx.actor_status("long").state == "ready"
    assert ctx.create_actor(Counter, name="short").add.remote().result(PATIENCE) == 1
    ctx.delete_actor("long")
    with pytest.raises(ValueError, match="lifetime"):
        ctx.create_actor(Counter, lifetime="for ever")


def test_a_call_outlives_the_handle(ctx: marline.Context) -> None:
    assert ctx.create_actor(Counter, 5).add.remote().result(PATIENCE) == 6


def test_handles_are_arguments_like_any_other(ctx: marline.Context) -> None:
    def use(counter: marline.ContextActor) -> int:
        return int(counter.add.remote().result(PATIENCE))

    counter = ctx.create_actor(Counter)
    assert sorted(ctx.get([ctx.run(use, counter) for _ in range(3)])) == [1, 2, 3]


def test_futures_inside_arguments_stay_futures(ctx: marline.Context) -> None:
    def total(futures: list[marline.ContextFuture]) -> int:
        return sum(future.result() for future in futures)

    assert ctx.run(total, [ctx.put(1), ctx.run(add, 1, 1)]).result(PATIENCE) == 3


def test_coroutines_of_an_actor(ctx: marline.Context, engine: str) -> None:
    gate = ctx.create_actor(Gate)
    with pytest.raises(KeyError, match="as asked"):
        gate.fail.remote().result(PATIENCE)
    assert gate.unlock.remote().result(PATIENCE) == "open"
    assert gate.wait.remote().result(PATIENCE) == "through"
    skip(engine, "sync", why="nothing overlaps")
    shut = ctx.create_actor(Gate)
    waiting = [shut.wait.remote() for _ in range(5)]
    shut.unlock.remote()
    assert ctx.get(waiting, timeout=PATIENCE) == ["through"] * 5


def test_actors_use_the_context_that_runs_them(ctx: marline.Context) -> None:
    class Boss:
        def __init__(self) -> None:
            self.counter = marline.default_context().create_actor(Counter, 3)

        def work(self) -> int:
            inner = marline.default_context()
            return int(inner.get(inner.run(add, self.counter.add.remote(), 10)))

    assert ctx.create_actor(Boss).work.remote().result(PATIENCE) == 14


# Contexts.


def test_a_closed_context_says_so(ctx: marline.Context) -> None:
    future = ctx.run(add, 1)
    assert future.result() == 1
    counter = ctx.create_actor(Counter)
    assert counter.add.remote().result() == 1
    ctx.close()
    ctx.close()
    for use in (
        lambda: ctx.run(add, 1),
        lambda: ctx.put(1),
        lambda: ctx.create_actor(Counter),
        lambda: ctx.actor_status("x"),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    with pytest.raises(marline.MarlineError):
        counter.add.remote().result(PATIENCE)
    assert future.result() == 1


def test_tasks_that_have_not_begun_fail_when_their_context_is_closed(
    ctx: marline.Context, engine: str, tmp_path: Path
) -> None:
    skip(engine, "sync", why="nothing overlaps")
    skip(engine, "host:port", why="what was submitted goes on")
    first = ctx.run(wait_for, tmp_path / "go")
    rest = [ctx.run(add, first), *(ctx.run(wait_for, tmp_path / "go") for _ in range(50))]
    threading.Timer(0.2, (tmp_path / "go").touch).start()
    ctx.close()
    with pytest.raises(marline.WorkerLostError):
        rest[-1].result(PATIENCE)


def test_the_default_context_is_the_one_that_is_used(ctx: marline.Context) -> None:
    with marline.use_context(ctx) as same:
        assert same is ctx is marline.default_context()
        with marline.Context("sync") as inner, marline.use_context(inner):
            assert marline.default_context() is inner
        assert marline.default_context() is ctx
    assert (marline.default_context() is ctx) == (ctx.kind not in ("sync", "threads"))


@pytest.mark.parametrize("engine", CONTEXTS_ON_CLUSTERS)
def test_without_init_the_module_functions_use_the_session_of_the_context(
    ctx: marline.Context, engine: str
) -> None:
    assert marline.is_initialized()
    assert marline.get(marline.remote(add).remote(1, 2)) == 3
    marline.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        ctx.run(add, 1)
    assert not marline.is_initialized()


@pytest.mark.parametrize("engine", CONTEXTS_ON_CLUSTERS)
def test_contexts_on_clusters_live_side_by_side(ctx: marline.Context, engine: str) -> None:
    """On two clusters, or on one cluster, each with a session of its own."""
    address = ctx.kind if engine == "host:port" else "local"
    token = sessions.current().address_and_token()[1]
    with marline.Context(address, token=token) as other:
        assert marline.default_context() is ctx, "the oldest"
        first, second = ctx.run(add, 1), other.run(add, 10)
        # A future of another context arrives as its value, like any other.
        assert ctx.run(add, first, second).result(PATIENCE) == 11
        assert other.run(add, first, second).result(PATIENCE) == 11
        counter = ctx.create_actor(Counter, second, name="the one")
        assert counter.add.remote(second).result(PATIENCE) == 20
        is_shared = engine == "host:port"
        assert (other.actor_status("the one").state == "ready") == is_shared
        # References inside a value belong to the session that the value came through.
        [nested] = other.run(lambda future: [future], [second]).result(PATIENCE)
        assert nested[0].result(PATIENCE) == 10
        with pytest.raises(marline.InvalidError, match="belongs to another session"):
            ctx.run(len, [second]).result(PATIENCE)
        with pytest.raises(marline.InvalidError, match="belongs to another session"):
            ctx.put([second])
    assert first.result(PATIENCE) == 1
    assert ctx.run(add, 3).result(PATIENCE) == 3
    with pytest.raises(RuntimeError, match="closed"):
        other.run(add, 1)


def test_a_context_lives_beside_the_session_of_init() -> None:
    with marline.init(num_cpus=1, namespace="mine", runtime_env={"env_vars": {"OF_INIT": "1"}}):
        with marline.Context("local", num_cpus=1) as ctx:
            assert marline.default_context() is not ctx
            getenv = marline.remote(os.getenv)
            assert marline.get(getenv.remote("OF_INIT")) == "1"
            assert ctx.run(os.getenv, "OF_INIT").result(PATIENCE) is None
            assert ctx.run(_namespace).result(PATIENCE) == "default"
            assert marline.get(marline.remote(_namespace).remote()) == "mine"
        assert marline.get(getenv.remote("OF_INIT")) == "1"
    assert not marline.is_initialized()


def test_init_starts_a_session_of_its_own_beside_a_context() -> None:
    with marline.Context("local", num_cpus=1) as ctx:
        with marline.init(num_cpus=1):
            assert marline.default_context() is not ctx
            assert marline.get(marline.remote(add).remote(1, 2)) == 3
        assert marline.default_context() is ctx
        assert ctx.run(add, 1).result(PATIENCE) == 1


def test_the_session_of_init_is_the_default() -> None:
    with marline.init(num_cpus=1):
        assert marline.default_context().run(add, 1, 2).result() == 3
        marline.default_context().close()
        assert marline.is_initialized()
        assert marline.default_context().run(add, 1, 2).result() == 3


def test_contexts_of_one_process_live_side_by_side() -> None:
    with marline.Context("sync") as one, marline.Context("threads") as other:
        assert other.run(add, one.run(add, 1), one.put(2)).result() == 3
        assert one.run(add, other.run(add, 1)).result() == 1
        counter = one.create_actor(Counter, name="the one")
        assert other.actor_status("the one").state == "dead"
        assert counter.add.remote(other.run(add, 4)).result() == 4


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="'thread'"):
        marline.Context("thread")


def test_a_remote_function_means_the_plain_one(ctx: marline.Context) -> None:
    assert ctx.run(marline.remote(num_cpus=100)(add), 1, b=2).result(PATIENCE) == 3


def test_what_cannot_be_is_refused_with_words(ctx: marline.Context) -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: ctx.run(5), r"run\(\) takes a function, not int"),  # type: ignore[arg-type]
        (lambda: ctx.create_actor(5), r"create_actor\(\) takes a class, not int"),  # type: ignore[arg-type]
        (lambda: ctx.wait([5]), r"wait\(\) takes futures, not int"),  # type: ignore[list-item]
        (lambda: ctx.create_actor(Counter, lifetime="for ever"), "'detached' or 'non_detached'"),
        (lambda: list(ctx.run(abs, -1)), "only the future of a generator function"),
        (lambda: ctx.put(ctx.run(abs, -1)), "pass the future itself"),
    ]
    for work, words in wrong:
        with pytest.raises((TypeError, ValueError, AttributeError), match=words):
            work()
    counter = ctx.create_actor(Counter)
    with pytest.raises(AttributeError, match="has no method 'nothing'"):
        _ = counter.nothing
    with pytest.raises(AttributeError, match=r"'count' of actor Counter cannot be set from outside"):
        counter.count = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"\.remote\(\)"):
        counter.add()
