"""Tasks: submitting, waiting, references, errors, retries, timeouts and cancelling.

Options are tested in `test_options.py`, generators in `test_generators.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.processes import is_alive
from harness.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.usefixtures("cluster")


@marline.remote
def add(a: int, b: int = 0) -> int:
    return a + b


@marline.remote
def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_a_task_runs_in_another_process() -> None:
    pid = marline.get(marline.remote(os.getpid).remote())
    assert pid != os.getpid()


def test_arguments_by_position_and_by_name() -> None:
    assert marline.get(add.remote(1, 2)) == 3
    assert marline.get(add.remote(1, b=5)) == 6


def test_closures_and_lambdas_travel() -> None:
    factor = 7
    assert marline.get(marline.remote(lambda x: x * factor).remote(6)) == 42


def test_many_results_come_in_order() -> None:
    refs = [add.remote(n, n) for n in range(1000)]
    assert marline.get(refs) == [2 * n for n in range(1000)]


def test_a_reference_as_an_argument_is_its_value() -> None:
    three = add.remote(1, 2)
    assert marline.get(add.remote(three, b=add.remote(three, 1))) == 7


def test_a_put_value_is_used_by_many() -> None:
    ref = marline.put([1, 2, 3])
    assert marline.get([marline.remote(sum).remote(ref) for _ in range(10)]) == [6] * 10
    assert marline.get(ref) == [1, 2, 3]


def test_references_inside_arguments_stay_references() -> None:
    @marline.remote
    def total(refs: list[marline.ObjectRef]) -> int:
        assert all(isinstance(ref, marline.ObjectRef) for ref in refs)
        return sum(marline.get(refs))

    assert marline.get(total.remote([marline.put(1), add.remote(1, 1)])) == 3


def test_a_reference_in_a_result_can_be_used() -> None:
    @marline.remote
    def wrapped() -> list[marline.ObjectRef]:
        return [marline.put("deep")]

    (inner,) = marline.get(wrapped.remote())
    assert marline.get(inner) == "deep"


def test_several_results() -> None:
    @marline.remote(num_returns=3)
    def three() -> tuple[int, int, int]:
        return 1, 2, 3

    assert marline.get(three.remote()) == [1, 2, 3]
    wrong = three.options(num_returns=2).remote()
    with pytest.raises(marline.MarlineError, match="returned 3 values, 2 were asked for"):
        marline.get(wrong[0])


def test_tasks_nest_deeper_than_there_are_cpus() -> None:
    @marline.remote
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + marline.get(depth.remote(n - 1))

    assert marline.get(depth.remote(8)) == 8


def test_wait_tells_which_have_come() -> None:
    quick, slow = add.remote(1), nap.remote(PATIENCE)
    ready, rest = marline.wait([slow, quick], num_returns=1)
    assert (ready, rest) == ([quick], [slow])
    ready, rest = marline.wait([slow], timeout=0)
    assert (ready, rest) == ([], [slow])
    with pytest.raises(ValueError, match="num_returns"):
        marline.wait([slow], num_returns=2)
    marline.cancel(slow)


def test_a_get_that_takes_too_long_says_so_and_can_be_repeated() -> None:
    slow = nap.remote(PATIENCE)
    with pytest.raises(TimeoutError, match="0 of 1"):
        marline.get(slow, timeout=0.01)
    marline.cancel(slow)
    with pytest.raises(marline.TaskCancelledError):
        marline.get(slow)


def test_get_refuses_a_value_that_is_no_reference() -> None:
    with pytest.raises(TypeError, match="get\\(\\) takes references, not int"):
        marline.get([1])  # type: ignore[list-item]


def test_exceptions_arrive_as_themselves_with_their_traceback() -> None:
    @marline.remote
    def fails() -> None:
        try:
            _ = {}["key"]
        except KeyError as cause:
            raise ValueError("no such thing", 7) from cause

    with pytest.raises(ValueError) as caught:
        marline.get(fails.remote())
    error = caught.value
    assert isinstance(error, marline.TaskError)
    assert error.args == ("no such thing", 7)
    assert repr(error.__cause__) == "KeyError('key')"
    assert "KeyError: 'key'" in error.remote_traceback
    assert "in fails" in error.remote_traceback


def test_an_exception_that_cannot_be_pickled_is_described() -> None:
    @marline.remote
    def fails() -> None:
        class Odd(Exception):
            def __reduce__(self) -> None:  # type: ignore[override]
                raise RuntimeError("never")

        raise Odd("but it says this")

    with pytest.raises(marline.TaskError, match="but it says this") as caught:
        marline.get(fails.remote())
    assert "Odd" in caught.value.class_name


def test_a_task_fails_as_what_it_depends_on_did() -> None:
    @marline.remote
    def fails() -> int:
        raise LookupError("first")

    with pytest.raises(LookupError, match="first"):
        marline.get(add.remote(fails.remote(), 1))


def test_exceptions_are_tried_again_only_if_asked(tmp_path: Path) -> None:
    @marline.remote
    def fails_twice(file: Path) -> int:
        with file.open("a") as tries:
            tries.write("x")
        times = len(file.read_text())
        if times < 3:
            raise ConnectionError(times)
        return times

    with pytest.raises(ConnectionError):
        marline.get(fails_twice.remote(tmp_path / "once"))
    every = fails_twice.options(retry_exceptions=True)
    assert marline.get(every.remote(tmp_path / "every")) == 3
    some = fails_twice.options(retry_exceptions=[ConnectionError])
    assert marline.get(some.remote(tmp_path / "some")) == 3
    others = fails_twice.options(retry_exceptions=[KeyError])
    with pytest.raises(ConnectionError):
        marline.get(others.remote(tmp_path / "others"))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_executor_says_how_it_died(how: signal.Signals) -> None:
    @marline.remote(max_retries=0)
    def dies() -> None:
        os.kill(os.getpid(), how)
        time.sleep(PATIENCE)

    with pytest.raises(marline.WorkerLostError, match=how.name) as caught:
        marline.get(dies.remote())
    assert caught.value.may_have_run


def test_an_executor_that_exits_says_with_what() -> None:
    with pytest.raises(marline.WorkerLostError, match="exited with status 3"):
        marline.get(marline.remote(os._exit).options(max_retries=0).remote(3))


def test_the_error_of_a_lost_executor_names_its_task(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    @marline.remote(max_retries=0)
    def split() -> None:
        pid.write_text(str(os.getpid()))
        print("the last that was heard of it", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(marline.WorkerLostError) as caught:
        marline.get(split.remote())
    expected = f"the executor (pid {pid.read_text()}) that ran `split` was killed by signal 9 (SIGKILL)"
    assert str(caught.value).startswith(expected)
    assert "its last words: the last that was heard of it" in str(caught.value)


def test_a_lost_task_runs_again(tmp_path: Path) -> None:
    @marline.remote
    def dies_once(file: Path) -> str:
        if not file.exists():
            file.touch()
            os._exit(1)
        return "alive"

    assert marline.get(dies_once.remote(tmp_path / "died")) == "alive"


def test_cancel_ends_tasks_that_wait_sleep_or_are_busy() -> None:
    @marline.remote
    def busy() -> None:
        while True:
            pass

    running = [nap.remote(PATIENCE), busy.remote()]
    queued = [nap.remote(PATIENCE) for _ in range(4)]
    for ref in queued + running:
        marline.cancel(ref)
    for ref in queued + running:
        with pytest.raises(marline.TaskCancelledError):
            marline.get(ref, timeout=PATIENCE)
    assert marline.get(add.remote(1, 1)) == 2


def test_cancel_by_force_kills_a_task_that_ignores_cancel(tmp_path: Path) -> None:
    @marline.remote
    def deaf(file: Path) -> None:
        file.with_suffix(".new").write_text(str(os.getpid()))
        file.with_suffix(".new").rename(file)
        while True:
            with contextlib.suppress(marline.TaskCancelledError):
                time.sleep(PATIENCE)

    ref = deaf.remote(tmp_path / "pid")
    wait_until("the task runs", (tmp_path / "pid").exists)
    marline.cancel(ref, force=True)
    with pytest.raises(marline.TaskCancelledError):
        marline.get(ref)
    pid = int((tmp_path / "pid").read_text())
    wait_until("the executor is dead", lambda: not is_alive(pid))


def test_a_task_has_a_time_limit() -> None:
    with pytest.raises(TimeoutError, match="took longer than its timeout"):
        marline.get(nap.options(timeout=0.05).remote(PATIENCE))


def test_forks_draw_different_numbers(tmp_path: Path) -> None:
    import random

    @marline.remote
    def draw() -> float:
        (tmp_path / str(os.getpid())).touch()
        while len(os.listdir(tmp_path)) < 2:  # Until another executor runs this task, too.
            time.sleep(0.002)
        return random.random()

    first, second = marline.get([draw.remote(), draw.remote()], timeout=PATIENCE)
    assert first != second


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="a task has no option 'num_cpu'"):
        marline.remote(num_cpu=1)(len)


def test_calling_it_directly_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"add\.remote\(\)"):
        add(1, 2)


def test_code_that_cannot_be_read_says_why_each_time() -> None:
    class Unreadable:
        def __call__(self) -> None: ...

        def __reduce__(self) -> tuple[object, tuple[str]]:
            return __import__, ("no_such_module",)

    unreadable = marline.remote(Unreadable())
    for _ in range(3):
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            marline.get(unreadable.remote())


def test_what_cannot_be_pickled_is_named() -> None:
    class Holder:
        def __init__(self) -> None:
            self.inner = {"lock": threading.Lock()}

    with pytest.raises(TypeError, match=r"argument 0: \.inner\['lock'\] cannot be pickled: it is a _thread"):
        add.remote(Holder())
    with pytest.raises(TypeError, match=r"the value\[1\] cannot be pickled"):
        marline.put([1, threading.Lock()])
    lock = threading.Lock()

    def uses_lock() -> bool:
        return lock.locked()

    with pytest.raises(TypeError, match="uses_lock, variable lock cannot be pickled"):
        marline.remote(uses_lock).remote()


def test_errors_of_the_system_keep_what_they_know_and_can_be_pickled() -> None:
    @marline.remote
    def opens() -> None:
        Path("/no/such/file").read_text()

    with pytest.raises(FileNotFoundError) as caught:
        marline.get(opens.remote())
    assert (caught.value.filename, caught.value.errno) == ("/no/such/file", 2)
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, FileNotFoundError) and isinstance(again, marline.TaskError)


def test_a_stop_iteration_arrives_as_a_task_error() -> None:
    @marline.remote
    def ends() -> None:
        raise StopIteration(7)

    async def waits() -> None:
        await ends.remote()

    for wait in (lambda: marline.get(ends.remote()), lambda: asyncio.run(waits())):
        with pytest.raises(marline.TaskError, match="StopIteration"):
            wait()


@pytest.mark.parametrize("timeout", [-1, -0.001, float("-inf"), float("nan")])
def test_a_timeout_that_makes_no_sense_is_refused(timeout: float) -> None:
    @marline.remote
    class Actor:
        def nap(self) -> None: ...

        def save_checkpoint(self) -> None: ...

        def load_checkpoint(self, state: None) -> None: ...

    slow, here = nap.remote(PATIENCE), marline.put(1)
    for ref in (slow, here):
        with pytest.raises(ValueError, match=r"timeout must be .* 0 or more"):
            marline.get(ref, timeout=timeout)
        with pytest.raises(ValueError, match=r"timeout must be .* 0 or more"):
            marline.wait([ref], timeout=timeout)
    with pytest.raises(ValueError, match="timeout must be"):
        nap.options(timeout=timeout)
    with pytest.raises(ValueError, match="timeout must be"):
        marline.remote(timeout=timeout)(len)
    with pytest.raises(ValueError, match="timeout must be"):
        Actor.remote().nap.options(timeout=timeout)
    for option in ("idle_ttl", "checkpoint_interval"):
        with pytest.raises(ValueError, match=f"{option} must be"):
            Actor.options(**{option: timeout})
    marline.cancel(slow)


def test_a_timeout_may_be_nothing_or_without_end() -> None:
    here = marline.put(1)
    for timeout in (0, None, float("inf")):
        assert marline.get(here, timeout=timeout) == 1
        assert marline.wait([here], timeout=timeout) == ([here], [])
    assert marline.get(nap.options(timeout=float("inf")).remote(0)) == 0
    slow = nap.remote(PATIENCE)
    with pytest.raises(marline.GetTimeoutError):
        marline.get(slow, timeout=0)
    marline.cancel(slow)


def test_after_shutdown_nothing_is_started_by_looking() -> None:
    ref = nap.remote(PATIENCE)
    marline.shutdown()
    with pytest.raises(marline.MarlineError):
        marline.get(ref)
    marline.cancel(ref)
    assert not marline.is_initialized()


def test_wait_and_get_refuse_wrong_arguments() -> None:
    ref = add.remote(1)
    assert marline.get([ref, ref]) == [1, 1]
    assert marline.get([]) == []
    assert marline.wait([]) == ([], [])
    for wrong in (None, 1, [[ref]], "a"):
        with pytest.raises(TypeError, match=r"get\(\) takes references, not (NoneType|int|list|str)$"):
            marline.get(wrong)  # type: ignore[call-overload]
    for wrong in ((one for one in [ref]), {ref}, {"a": ref}, {"a": ref}.values()):
        with pytest.raises(TypeError, match=r"get\(\) takes a reference or a list .*: make it a list"):
            marline.get(wrong)  # type: ignore[call-overload]
    for wrong in (add, [add]):
        with pytest.raises(TypeError, match=r"not RemoteFunction: is add\.remote\(\) meant\?"):
            marline.get(wrong)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"not Future: its result\(\)"):
        marline.get(ref.future())  # type: ignore[call-overload]
    for wait in (
        lambda: marline.get(ref, timeout="x"),  # type: ignore[call-overload]
        lambda: marline.get([ref], timeout="x"),  # type: ignore[call-overload]
        lambda: marline.wait([ref], timeout="x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="timeout must be a number of seconds, not 'x'"):
            wait()
    with pytest.raises(TypeError, match=r"wait\(\) takes a list of references: \[ref\]"):
        marline.wait(ref)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"wait\(\) takes references, not int"):
        marline.wait([1])  # type: ignore[list-item]
    for number in (0, -1, 2, 10**30):
        with pytest.raises(ValueError, match="num_returns is"):
            marline.wait([ref], num_returns=number)
    for odd in (1.5, "x"):
        with pytest.raises(TypeError, match=r"num_returns must be a whole number"):
            marline.wait([ref], num_returns=odd)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="twice"):
        marline.wait([ref, ref])
    with pytest.raises(TypeError, match="pass the reference itself"):
        marline.put(ref)
    with pytest.raises(TypeError, match=r"cancel\(\) takes one reference, not list"):
        marline.cancel([ref])  # type: ignore[arg-type]


def test_wait_gives_no_more_than_was_asked_for() -> None:
    refs = [add.remote(n) for n in range(5)]
    marline.get(refs)
    assert marline.wait(refs, num_returns=2) == (refs[:2], refs[2:])


def test_a_task_may_return_nothing_or_too_little() -> None:
    three = marline.remote(num_returns=3)
    assert marline.remote(num_returns=0)(os.getpid).remote() is None
    for returned, words in [
        ((1, 2), "returned 2 values, 3 were asked for"),
        (7, "a value of class int was returned"),
    ]:
        with pytest.raises((marline.InvalidError, TypeError), match=words):
            marline.get(three(lambda value=returned: value).remote()[0])
    assert marline.get(three(lambda: (n for n in range(3))).remote()) == [0, 1, 2]


def test_a_remote_function_or_class_cannot_be_made_remote_again() -> None:
    @marline.remote
    class Sitter: ...

    for remote in (add, Sitter):
        with pytest.raises(TypeError, match=r"is remote already: .*\.options\(\)"):
            marline.remote(remote)  # type: ignore[call-overload]
    for wrong in (lambda: marline.remote(3), lambda: marline.remote(num_cpus=1)(3)):  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"@marline\.remote"):
            wrong()


def test_cancelling_twice_or_too_late_changes_nothing() -> None:
    came, put = add.remote(1), marline.put(2)
    marline.get(came)
    for ref in (came, put):
        marline.cancel(ref)
    assert marline.get([came, put]) == [1, 2]
    slow = nap.remote(PATIENCE)
    marline.cancel(slow)
    marline.cancel(slow, force=True)
    with pytest.raises(marline.TaskCancelledError):
        marline.get(slow)


def test_everything_works_in_a_task_on_a_thread_and_in_a_coroutine() -> None:
    @marline.remote
    class Counter:
        def add(self, n: int) -> int:
            return n

    def everything() -> list[object]:
        assert marline.is_initialized()
        ready, _ = marline.wait([add.remote(1)])
        with marline.scope(), marline.Executor() as executor:
            called = executor.submit(abs, -3).result()
        pool = marline.ActorPool([Counter.remote()])
        return [
            marline.get(ready[0]),
            marline.get(marline.put(2)),
            called,
            next(marline.map(abs, [-4])),
            next(pool.map(lambda actor, n: actor.add.remote(n), [5])),
            marline.default_context().run(abs, -6).result(),
            sum(marline.cluster_resources().values()),
            len(marline.nodes()),
        ]

    async def in_a_coroutine() -> list[object]:
        assert await add.remote(1) == 1
        return everything()

    def on_a_thread() -> list[object]:
        results: list[list[object]] = []
        thread = threading.Thread(target=lambda: results.append(everything()))
        thread.start()
        thread.join(PATIENCE)
        return results[0]

    expected = [1, 2, 3, 4, 5, 6, 2.0, 1]
    for work in (everything, in_a_coroutine, on_a_thread):
        assert marline.get(marline.remote(work).remote(), timeout=PATIENCE) == expected
    assert everything() == on_a_thread() == asyncio.run(in_a_coroutine()) == expected


def test_functions_classes_and_methods_are_arguments_like_any_other() -> None:
    @marline.remote
    class Counter:
        def add(self, n: int) -> int:
            return n + 1

    @marline.remote
    def use(function: object, cls: object, method: object) -> list[int]:
        refs = [function.remote(1), cls.remote().add.remote(1), method.remote(2)]  # type: ignore[attr-defined]
        values: list[int] = marline.get(refs)
        return values

    assert marline.get(use.remote(add, Counter, Counter.remote().add)) == [1, 2, 3]


def test_functions_and_classes_use_references_and_handles_that_they_close_over() -> None:
    @marline.remote
    class Counter:
        def __init__(self) -> None:
            self.value = 0

        def add(self, amount: int) -> int:
            self.value += amount
            return self.value

    counter, ten, pending = Counter.remote(), marline.put(10), Counter.remote().add.remote(5)

    @marline.remote
    def bump() -> int:
        return int(marline.get(counter.add.remote(marline.get(ten) + marline.get(pending))))

    @marline.remote
    class Bumper:
        def bump(self) -> int:
            return int(marline.get(counter.add.remote(1)))

    @marline.remote
    def nested() -> int:
        return int(marline.get(bump.remote()))

    assert marline.get(bump.remote()) == 15
    assert marline.get(bump.options(name="again").remote()) == 30
    assert marline.get(Bumper.remote().bump.remote()) == 31
    assert marline.get(nested.remote()) == 46
    assert list(marline.map(lambda x: x * marline.get(ten), [1, 2])) == [10, 20]


def test_values_that_a_function_refers_to_live_as_long_as_its_tasks() -> None:
    def submitted() -> Any:
        kept = marline.put("kept")

        @marline.remote
        def tell(delay: float) -> str:
            time.sleep(delay)
            return str(marline.get(kept))

        return [tell.remote(0.1) for _ in range(4)]

    assert marline.get(submitted()) == ["kept"] * 4, "the driver has dropped the function and the reference"


def test_what_cannot_be_pickled_beside_a_reference_is_named() -> None:
    one, lock = marline.put(1), threading.Lock()

    @marline.remote
    def uses() -> Any:
        return one, lock

    with pytest.raises(TypeError, match="variable lock cannot be pickled"):
        uses.remote()


def test_a_generator_that_nobody_asked_to_stream_says_how() -> None:
    def count() -> Iterator[int]:
        yield 1

    async def count_later() -> AsyncIterator[int]:
        yield 1

    for task, instead in ((count, r"list\(…\)"), (count_later, r"\[item async for")):
        with pytest.raises(TypeError, match=f'"streaming" to stream its items, or return {instead}'):
            marline.get(marline.remote(task).remote())
    with pytest.raises(TypeError, match=r"argument items: \[1\] .*cannot travel: pass list\(…\)"):
        add.remote(1, items=[0, count()])


def test_remote_functions_classes_and_methods_have_a_repr() -> None:
    @marline.remote
    class Counter:
        def add(self) -> None: ...

    def square() -> None: ...

    counter = Counter.remote()
    name = f"{__name__}.test_remote_functions_classes_and_methods_have_a_repr.<locals>"
    assert repr(marline.remote(square)) == f"<remote function {name}.square>"
    assert repr(Counter) == f"<actor class {name}.Counter>"
    assert repr(counter.add) == f"<method add of actor {counter._actor.id}>"
