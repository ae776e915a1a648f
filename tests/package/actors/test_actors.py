"""Actors keep their state, run calls in order, have names, die and restart as their options say.

Checkpoints are tested in `test_checkpoints.py`, namespaces in `test_namespaces.py`.
"""

from __future__ import annotations

import asyncio
import copy
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import pytest
from harness.processes import is_alive
from harness.waiting import PATIENCE, wait_until
from marline._session import sessions

# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.usefixtures("cluster")


@marline.remote
class Counter:
    def __init__(self, start: int = 0) -> None:
        self.count = start

    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        raise RuntimeError("as asked")

    def die(self) -> None:
        os._exit(7)


def test_state_stays_and_calls_run_in_order() -> None:
    counter = Counter.remote(10)
    assert marline.get([counter.add.remote() for _ in range(100)]) == list(range(11, 111))


def test_each_actor_has_a_process_of_its_own() -> None:
    actors = [Counter.remote() for _ in range(4)]
    pids = marline.get([actor.pid.remote() for actor in actors])
    assert len({os.getpid(), *pids}) == 5


def test_an_exception_in_a_method_leaves_the_actor_alive() -> None:
    counter = Counter.remote()
    with pytest.raises(RuntimeError, match="as asked"):
        marline.get(counter.fail.remote())
    assert marline.get(counter.add.remote()) == 1


def test_a_constructor_that_fails_fails_its_calls() -> None:
    @marline.remote
    class Broken:
        def __init__(self) -> None:
            raise OSError("no disk")

        def hello(self) -> None: ...

    with pytest.raises(OSError, match="no disk"):
        marline.get(Broken.remote().hello.remote())


def test_a_handle_is_an_argument_like_any_other() -> None:
    @marline.remote
    def use(counter: marline.ActorHandle) -> int:
        return marline.get(counter.add.remote())

    counter = Counter.remote()
    assert sorted(marline.get([use.remote(counter) for _ in range(3)])) == [1, 2, 3]


def test_references_are_resolved_before_a_call() -> None:
    counter = Counter.remote()
    assert marline.get(counter.add.remote(marline.put(5))) == 5


def test_named_actors_are_found() -> None:
    counter = Counter.options(name="the one").remote(5)
    assert marline.get(marline.get_actor("the one").add.remote()) == 6
    with pytest.raises(ValueError, match="the one"):
        Counter.options(name="the one").remote()
    same = Counter.options(name="the one", get_if_exists=True).remote()
    assert marline.get(same.add.remote()) == 7
    with pytest.raises(ValueError):
        marline.get_actor("nobody")
    marline.kill(counter)


def test_a_killed_actor_is_gone() -> None:
    counter = Counter.remote()
    pid = marline.get(counter.pid.remote())
    marline.kill(counter)
    with pytest.raises(marline.ActorDiedError):
        marline.get(counter.add.remote())
    wait_until("the actor's process has ended", lambda: not is_alive(pid))


@pytest.mark.parametrize("name", [None, "clerk"])
def test_the_executor_of_an_actor_says_whose_it_was(name: str | None) -> None:
    counter = Counter.options(name=name).remote()
    pid = marline.get(counter.pid.remote())
    with pytest.raises(marline.MarlineError) as caught:
        marline.get(counter.die.remote())
    whose = f"`{name}` (Counter)" if name else "`Counter`"
    assert f"the executor (pid {pid}) of the actor {whose} " in str(caught.value)


def test_an_actor_that_dies_comes_back_if_it_may() -> None:
    counter = Counter.options(max_restarts=1).remote(100)
    before = marline.get(counter.pid.remote())
    with pytest.raises(marline.WorkerLostError):
        marline.get(counter.die.remote())

    def answers() -> bool:
        try:
            return bool(marline.get(counter.pid.remote()) != before)
        except marline.WorkerLostError:
            return False

    wait_until("the actor is back", answers)
    assert marline.get(counter.add.remote()) == 101


def test_a_call_waits_through_a_restart_if_it_may_be_repeated() -> None:
    counter = Counter.options(max_restarts=-1, max_task_retries=-1).remote()
    pid = marline.get(counter.pid.remote())
    os.kill(pid, 9)
    assert marline.get(counter.add.remote()) == 1


def test_an_unknown_method_is_seen_at_once() -> None:
    with pytest.raises(AttributeError, match="'sub'"):
        _ = Counter.remote().sub


def test_attributes_of_an_actor_are_inside_of_it() -> None:
    counter = Counter.remote(1)
    marline.get(counter.add.remote(1))  # A handle caches the methods that were used, here `add`.
    with pytest.raises(AttributeError, match=r"'count' of actor Counter cannot be set.*write a method"):
        counter.count = 3  # type: ignore[misc]
    with pytest.raises(
        AttributeError, match=r"no method 'count': attributes cannot be read .*write a method"
    ):
        _ = counter.count
    with pytest.raises(AttributeError, match=r"no method 'ad' \(is 'add' meant\?\)"):
        _ = counter.ad
    for same in (marline.get(marline.put(counter)), copy.copy(counter), copy.deepcopy([counter])[0]):
        assert same == counter
        assert marline.get(same.add.remote(0)) == 2


def test_an_actor_ends_with_its_last_handle() -> None:
    counter = Counter.remote()
    pid = marline.get(counter.pid.remote())
    del counter
    wait_until("the actor's process has ended", lambda: not is_alive(pid))


def test_coroutines_of_an_actor_run_side_by_side() -> None:
    @marline.remote
    class Gate:
        def __init__(self) -> None:
            self.open = asyncio.Event()

        async def wait(self) -> str:
            await self.open.wait()
            return "through"

        async def unlock(self) -> None:
            self.open.set()

    gate = Gate.remote()
    waiting = [gate.wait.remote() for _ in range(50)]
    assert marline.wait(waiting, timeout=0.05)[0] == []
    marline.get(gate.unlock.remote())
    assert marline.get(waiting) == ["through"] * 50


def test_a_coroutine_that_runs_is_cancelled() -> None:
    @marline.remote
    class Sleeper:
        async def sleep(self) -> None:
            await asyncio.sleep(PATIENCE)

        async def ready(self) -> bool:
            return True

    sleeper = Sleeper.remote()
    ref = sleeper.sleep.remote()
    assert marline.get(sleeper.ready.remote())
    marline.cancel(ref)
    with pytest.raises(marline.TaskCancelledError):
        marline.get(ref, timeout=PATIENCE)


def test_threads_of_an_actor_run_side_by_side() -> None:
    @marline.remote(max_concurrency=3)
    class Barrier:
        def __init__(self) -> None:
            import threading

            self.barrier = threading.Barrier(3)

        def meet(self) -> bool:
            self.barrier.wait(PATIENCE)
            return True

    barrier = Barrier.remote()
    assert all(marline.get([barrier.meet.remote() for _ in range(3)]))


def test_references_are_awaited_and_are_futures() -> None:
    counter = Counter.remote()

    async def main() -> list[int]:
        first = await counter.add.remote()
        rest = await asyncio.gather(*(counter.add.remote() for _ in range(3)))
        with pytest.raises(RuntimeError, match="as asked"):
            await counter.fail.remote()
        return [first, *rest]

    assert asyncio.run(main()) == [1, 2, 3, 4]
    assert counter.add.remote().future().result(PATIENCE) == 5
    with pytest.raises(RuntimeError, match="as asked"):
        counter.fail.remote().future().result(PATIENCE)


def test_an_actor_needs_no_cpu_to_live() -> None:
    actors = [Counter.remote() for _ in range(5)]
    assert marline.get([actor.add.remote() for actor in actors]) == [1] * 5
    assert marline.get(marline.remote(time.time).remote()) > 0


def test_methods_may_return_several_values() -> None:
    @marline.remote
    class Pair:
        @marline.method(num_returns=2)
        def both(self) -> tuple[int, int]:
            return 1, 2

    first, second = Pair.remote().both.remote()
    assert marline.get([first, second]) == [1, 2]


def test_what_an_actor_returns_by_reference_lives_as_long_as_it_is_used() -> None:
    @marline.remote
    class Keeper:
        def fresh(self) -> list[marline.ObjectRef]:
            return [marline.put("a" * 1000)]

    keeper = Keeper.remote()
    (inner,) = marline.get(keeper.fresh.remote())
    assert marline.get(inner) == "a" * 1000
    for _ in range(20):
        marline.get(keeper.fresh.remote())
    del inner
    # The session still holds one value: the code of the class.
    wait_until("the other values are released", lambda: sessions.current().status().kept()[0] == 1)


def test_results_of_calls_are_arguments_like_any_other() -> None:
    @marline.remote
    class Source:
        @marline.method(num_returns=2)
        def pair(self) -> tuple[int, int]:
            return 3, 4

    @marline.remote
    def total(plain: int, nested: list[marline.ObjectRef]) -> int:
        return plain + sum(marline.get(nested))

    source, counter = Source.remote(), Counter.remote()
    first, second = source.pair.remote()
    assert marline.get(total.remote(second, [first, second])) == 11
    assert marline.get(counter.add.remote(second)) == 4


def test_handles_of_one_actor_are_equal() -> None:
    counter = Counter.options(name="same").remote()
    assert {counter, marline.get_actor("same")} == {counter}
    assert counter != Counter.remote()


def test_a_call_may_need_what_has_not_come(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @marline.remote
    def late() -> str:
        while not gate.exists():
            time.sleep(0.01)
        return "late"

    @marline.remote
    class Log:
        def __init__(self) -> None:
            self.said: list[str] = []

        def say(self, word: str) -> list[str]:
            self.said.append(word)
            return self.said

    log = Log.remote()
    calls = [log.say.remote("early"), log.say.remote(late.remote()), log.say.remote("after")]
    assert marline.get(calls[0]) == ["early"]
    gate.touch()
    assert marline.get(calls[2]) == ["early", "late", "after"], "calls of one process run in their order"


def test_a_call_that_needs_what_failed_fails_as_it_did() -> None:
    @marline.remote
    def fails() -> None:
        raise KeyError("lost")

    @marline.remote
    class Log:
        def say(self, word: str) -> str:
            return word

    log = Log.remote()
    call, after = log.say.remote(fails.remote()), log.say.remote("after")
    with pytest.raises(KeyError, match="lost"):
        marline.get(call)
    assert marline.get(after) == "after"


def test_a_kill_is_for_actors_and_may_be_repeated() -> None:
    counter = Counter.options(name="short").remote()
    marline.get(counter.pid.remote())
    for wrong in (counter.add.remote(), None, "short"):
        with pytest.raises(TypeError, match=r"kill\(\) takes the handle of an actor"):
            marline.kill(wrong)  # type: ignore[arg-type]
    marline.kill(counter)
    marline.kill(counter)
    marline.kill(counter, no_restart=False)
    with pytest.raises(marline.ActorDiedError, match="was deleted"):
        marline.get(counter.add.remote())
    with pytest.raises(marline.NotFoundError, match="short"):
        marline.get_actor("short")
    assert "short" not in marline.list_named_actors()
    assert marline.get(Counter.options(name="short").remote().add.remote()) == 1, "the name is free"
    unborn = Counter.remote()
    marline.kill(unborn)
    with pytest.raises(marline.ActorDiedError):
        marline.get(unborn.add.remote())


def test_an_actor_is_found_in_its_namespace_only() -> None:
    counter = Counter.options(name="far", namespace="elsewhere").remote(5)
    with pytest.raises(marline.NotFoundError, match="far"):
        marline.get_actor("far")
    assert marline.get(marline.get_actor("far", namespace="elsewhere").add.remote()) == 6
    assert marline.list_named_actors() == []
    del counter


def test_a_call_that_waits_or_runs_is_cancelled_and_the_actor_goes_on(tmp_path: Path) -> None:
    @marline.remote
    class Sleeper:
        def __init__(self) -> None:
            self.calls = 0

        def sleep(self, began: Path) -> None:
            began.touch()
            time.sleep(PATIENCE)

        def count(self) -> int:
            self.calls += 1
            return self.calls

    for concurrency in (1, 2):
        sleeper = Sleeper.options(max_concurrency=concurrency).remote()
        began = tmp_path / str(concurrency)
        runs = sleeper.sleep.remote(began)
        wait_until("the call runs", began.exists)
        if concurrency == 1:
            waits = sleeper.count.remote()
            marline.cancel(waits)
            with pytest.raises(marline.TaskCancelledError):
                marline.get(waits, timeout=PATIENCE)
        marline.cancel(runs)
        with pytest.raises(marline.TaskCancelledError):
            marline.get(runs, timeout=PATIENCE)
        assert marline.get(sleeper.count.remote(), timeout=PATIENCE) == 1, "the cancelled call never ran"


def test_methods_of_all_kinds_are_called() -> None:
    class Base:
        def inherited(self) -> str:
            return "inherited"

    @marline.remote
    class Several(Base):
        async def coroutine(self) -> str:
            return "coroutine"

        def plain(self, **named: int) -> str:
            return f"plain {sorted(named)}"

        @staticmethod
        def static() -> str:
            return "static"

        @classmethod
        def of_class(cls) -> str:
            return cls.__name__

        def remote(self) -> str:
            return "remote"

    several = Several.remote()
    calls = [
        several.inherited.remote(),
        several.coroutine.remote(),
        several.plain.remote(method=1, args=2, name=3, timeout=4),
        several.static.remote(),
        several.of_class.remote(),
        several.remote.remote(),
    ]
    named = "plain ['args', 'method', 'name', 'timeout']"
    assert marline.get(calls) == ["inherited", "coroutine", named, "static", "Several", "remote"]


def test_an_actor_class_says_how_it_is_used() -> None:
    with pytest.raises(TypeError, match=r"create one with Counter\.remote\(\)"):
        Counter()
    with pytest.raises(TypeError, match=r"add\.remote\(\)"):
        Counter.remote().add()
    with pytest.raises(TypeError, match="inherit from a plain class"):

        class More(Counter):  # type: ignore[misc, valid-type]
            pass

    for returns in (-1, "2", None):
        with pytest.raises((TypeError, ValueError), match="num_returns"):
            marline.method(num_returns=returns)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'tiemout'"):
        Counter.remote().add.options(tiemout=1)


class Returns:
    """An actor whose methods return references to calls without waiting for them."""

    def own(self, me: Any, words: str) -> list[Any]:
        return [me.echo.remote(words)]

    def own_at_once(self, me: Any, words: str) -> Any:
        return me.echo.remote(words)

    def other_s(self, me: Any, other: Any) -> list[Any]:
        return [other.asks.remote(me)]

    def asks(self, other: Any) -> Any:
        return marline.get(other.echo.remote("asked"))

    def echo(self, words: str) -> str:
        return words


class ReturnsAsync(Returns):
    async def own(self, me: Any, words: str) -> list[Any]:
        return [me.echo.remote(words)]


@pytest.mark.parametrize(("cls", "concurrency"), [(Returns, 1), (Returns, 2), (ReturnsAsync, 1)])
def test_a_method_returns_a_reference_to_a_call_that_its_own_actor_has_yet_to_run(
    cls: type, concurrency: int
) -> None:
    actor = marline.remote(max_concurrency=concurrency)(cls).remote()
    [inner] = marline.get(actor.own.remote(actor, "hello"), timeout=PATIENCE)
    assert marline.get(inner, timeout=PATIENCE) == "hello"
    inner = marline.get(actor.own_at_once.remote(actor, "hello"), timeout=PATIENCE)
    assert marline.get(inner, timeout=PATIENCE) == "hello"


def test_a_method_returns_a_reference_to_a_call_that_waits_for_its_actor() -> None:
    first, second = marline.remote(Returns).remote(), marline.remote(Returns).remote()
    [inner] = marline.get(first.other_s.remote(first, second), timeout=PATIENCE)
    assert marline.get(inner, timeout=PATIENCE) == "asked"


@marline.remote
class Several:
    @marline.method(num_returns=2)
    def pair(self) -> tuple[int, int]:
        return 1, 2

    @marline.method(num_returns="streaming")
    def items(self) -> Iterator[int]:
        yield from range(3)


def test_an_actor_found_by_name_has_the_methods_of_its_class_and_their_options() -> None:
    actor = Several.options(name="several").remote()

    @marline.remote
    def finds() -> tuple[list[int], list[int], str]:
        found = marline.get_actor("several")
        with pytest.raises(AttributeError) as error:
            found.pear  # noqa: B018
        items = [marline.get(ref) for ref in found.items.remote()]
        return marline.get(found.pair.remote()), items, f"{found!r}: {error.value}"

    pair, items, words = marline.get(finds.remote())
    assert (pair, items) == ([1, 2], [0, 1, 2])
    assert words.startswith("<actor Several ") and "pair" in words
    assert marline.get(marline.get_actor("several").pair.remote()) == [1, 2]
    del actor
