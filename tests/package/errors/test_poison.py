"""Harmful values, exceptions and tasks hurt only the work that they belong to."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.processes import is_alive
from harness.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.usefixtures("cluster")

# Bytes: far more than an error may have.
HUGE = 100_000_000
# The most characters in the text of an error of user code: two texts that were cut, and the words
# between them.
LONGEST_TEXT = 50_000


def on_loads(action: Callable[..., Any], *args: Any) -> Any:
    """Returns a value that calls a function when it is unpickled."""

    class Poison:
        def __reduce__(self) -> tuple[Any, ...]:
            return action, args

    return Poison()


@marline.remote
def take(_: Any) -> str:
    return "taken"


def executors(count: int = 8) -> set[int]:
    """Runs tasks, and returns the processes that ran them."""

    @marline.remote
    def pid() -> int:
        time.sleep(0.01)
        return os.getpid()

    return set(marline.get([pid.remote() for _ in range(count)]))


def raising(words: str) -> Callable[[], None]:
    def raises() -> None:
        raise LookupError(words)

    return raises


# Values that cannot be pickled.


def test_a_reduce_that_raises_is_seen_where_it_was_called() -> None:
    class Shy:
        def __reduce__(self) -> tuple[Any, ...]:
            raise RuntimeError("not me")

    with pytest.raises(TypeError, match=r"^argument 0 cannot be pickled: .*Shy \(not me\)"):
        take.remote(Shy())
    with pytest.raises(TypeError, match=r"the value\['deep'\] cannot be pickled: .*Shy \(not me\)"):
        marline.put({"deep": Shy()})
    assert marline.get(take.remote(1)) == "taken"


def test_an_attribute_that_raises_does_not_hide_what_cannot_be_pickled() -> None:
    class Moody:
        __slots__ = ("first", "lock")

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __getattribute__(self, name: str) -> Any:
            if name == "first":
                raise OSError("not today")
            return object.__getattribute__(self, name)

    with pytest.raises(TypeError, match="cannot be pickled"):
        marline.put(Moody())


def test_a_result_that_cannot_be_pickled_is_named() -> None:
    def makes(shape: str) -> Any:
        class Holder:
            def __init__(self) -> None:
                self.inner = {"lock": threading.Lock()}

        return (Holder(),) if shape == "tuple" else ((Holder(),), {"x": 1}) if shape == "pair" else Holder()

    makes_remote = marline.remote(makes)
    for shape, path in (("plain", ""), ("tuple", r"\[0\]"), ("pair", r"\[0\]\[0\]")):
        with pytest.raises(
            TypeError, match=rf"^the result{path}\.inner\['lock'\] cannot be pickled: it is a _thread.lock"
        ) as caught:
            marline.get(makes_remote.remote(shape))
        assert isinstance(caught.value, marline.TaskError)
    assert len(executors()) <= 2


def test_one_of_several_results_that_cannot_be_pickled_is_named() -> None:
    @marline.remote(num_returns=2)
    def makes() -> Any:
        return 1, [threading.Lock()]

    first, second = makes.remote()
    for ref in (first, second):
        with pytest.raises(TypeError, match=r"^the result\[1\]\[0\] cannot be pickled"):
            marline.get(ref)


def test_a_result_of_an_actor_that_cannot_be_pickled_leaves_it_alive() -> None:
    @marline.remote
    class Plain:
        def bad(self) -> Any:
            return threading.Lock()

        def pid(self) -> int:
            return os.getpid()

    @marline.remote
    class Async:
        async def bad(self) -> Any:
            return threading.Lock()

        async def pid(self) -> int:
            return os.getpid()

    for cls in (Plain, Async):
        actor = cls.remote()
        pid = marline.get(actor.pid.remote())
        with pytest.raises(TypeError, match="the result cannot be pickled"):
            marline.get(actor.bad.remote())
        assert marline.get(actor.pid.remote()) == pid


# Values that do harm when they are unpickled.


def test_an_argument_that_cannot_be_unpickled_fails_its_task_and_costs_no_executor() -> None:
    before = executors()
    poisoned = marline.put(on_loads(raising("bad bytes")))
    for argument in (on_loads(raising("bad bytes")), poisoned):
        with pytest.raises(LookupError, match="bad bytes") as caught:
            marline.get(take.remote(argument))
        assert isinstance(caught.value, marline.TaskError)
    assert executors() <= before, "no executor died"


def test_an_argument_that_cannot_be_unpickled_fails_its_call_and_leaves_the_actor_alive() -> None:
    @marline.remote
    class Taker:
        def take(self, _: Any) -> int:
            return os.getpid()

    actor = Taker.remote()
    pid = marline.get(actor.take.remote(1))
    with pytest.raises(LookupError, match="bad bytes"):
        marline.get(actor.take.remote(on_loads(raising("bad bytes"))))
    assert marline.get(actor.take.remote(2)) == pid


def test_a_result_that_cannot_be_unpickled_fails_where_it_is_read() -> None:
    here = os.getpid()

    def only_there() -> str:
        if os.getpid() == here:
            raise LookupError("not here")
        return "read"

    @marline.remote
    def makes() -> Any:
        class Picky:
            def __reduce__(self) -> tuple[Any, ...]:
                return only_there, ()

        return Picky()

    @marline.remote
    def nested() -> Any:
        return marline.get(makes.remote())

    ref = makes.remote()
    for _ in range(2):
        with pytest.raises(LookupError, match="not here"):
            marline.get(ref)
    assert marline.get(nested.remote()) == "read"


@pytest.mark.parametrize(
    ("action", "args", "words"),
    [
        (os._exit, (5,), "exited with status 5"),
        (ctypes.string_at, (0,), "SIGSEGV"),
        (os.abort, (), "SIGABRT"),
    ],
    ids=["exit", "segfault", "abort"],
)
def test_a_value_that_kills_its_reader_costs_one_executor(
    action: Callable[..., Any], args: tuple[Any, ...], words: str
) -> None:
    taking = take.options(max_retries=0)
    with pytest.raises(marline.WorkerLostError, match=words) as caught:
        marline.get(taking.remote(on_loads(action, *args)))
    assert caught.value.may_have_run
    wait_until("two executors run", lambda: len(executors()) == 2)


def test_a_value_that_kills_its_reader_is_tried_as_often_as_allowed(tmp_path: Path) -> None:
    def dies(file: str) -> None:
        with open(file, "a") as tries:
            tries.write("x")
        os._exit(1)

    with pytest.raises(marline.WorkerLostError, match="exited with status 1"):
        marline.get(take.options(max_retries=2).remote(on_loads(dies, str(tmp_path / "tries"))))
    assert (tmp_path / "tries").read_text() == "xxx"


def test_a_value_that_kills_its_reader_kills_the_actor_it_is_given_to() -> None:
    @marline.remote
    class Taker:
        def __init__(self, _: Any = None) -> None: ...

        def take(self, _: Any = None) -> str:
            return "taken"

    other = Taker.remote()
    with pytest.raises(marline.MarlineError, match="exited with status 5"):
        marline.get(Taker.remote(on_loads(os._exit, 5)).take.remote())
    actor = Taker.remote()
    assert marline.get(actor.take.remote()) == "taken"
    with pytest.raises(marline.MarlineError, match="exited with status 5"):
        marline.get(actor.take.remote(on_loads(os._exit, 5)))
    with pytest.raises(marline.ActorDiedError):
        marline.get(actor.take.remote())
    assert marline.get(other.take.remote()) == "taken"


def never_ends(file: str, in_python: bool) -> Any:
    """Returns a value whose unpickling writes the id of its process to a file, and never ends."""

    def reads() -> None:
        path = Path(file)
        path.with_suffix(".new").write_text(str(os.getpid()))
        path.with_suffix(".new").rename(path)
        while in_python:
            pass
        sum(itertools.repeat(1))  # A loop in C: it handles no signal and runs no bytecode.

    return on_loads(reads)


def test_a_value_whose_reading_never_ends_stops_when_its_task_is_cancelled(tmp_path: Path) -> None:
    ref = take.remote(never_ends(str(tmp_path / "pid"), in_python=True))
    wait_until("the value is being read", (tmp_path / "pid").exists)
    marline.cancel(ref)
    with pytest.raises(marline.TaskCancelledError):
        marline.get(ref, timeout=PATIENCE)
    wait_until("two executors run", lambda: len(executors()) == 2)


@pytest.mark.parametrize("how", ["force", "timeout"])
def test_a_value_whose_reading_cannot_be_stopped_costs_one_executor(how: str, tmp_path: Path) -> None:
    taking = take.options(timeout=0.3 if how == "timeout" else None)
    ref = taking.remote(never_ends(str(tmp_path / "pid"), in_python=False))
    wait_until("the value is being read", (tmp_path / "pid").exists)
    if how == "force":
        marline.cancel(ref, force=True)
    expected = TimeoutError if how == "timeout" else marline.TaskCancelledError
    with pytest.raises(expected):
        marline.get(ref, timeout=PATIENCE)
    pid = int((tmp_path / "pid").read_text())
    wait_until("the reader is dead", lambda: not is_alive(pid))
    wait_until("two executors run", lambda: len(executors()) == 2)


def test_an_actor_whose_constructor_never_ends_can_be_killed(tmp_path: Path) -> None:
    @marline.remote
    class Stuck:
        def __init__(self, file: str) -> None:
            Path(file).with_suffix(".new").write_text(str(os.getpid()))
            Path(file).with_suffix(".new").rename(file)
            while True:
                pass

        def hello(self) -> None: ...

    actor = Stuck.remote(str(tmp_path / "pid"))
    ref = actor.hello.remote()
    wait_until("the constructor runs", (tmp_path / "pid").exists)
    marline.kill(actor)
    with pytest.raises(marline.ActorDiedError):
        marline.get(ref, timeout=PATIENCE)
    pid = int((tmp_path / "pid").read_text())
    wait_until("the actor's process is dead", lambda: not is_alive(pid))
    wait_until("two executors run", lambda: len(executors()) == 2)


def test_a_module_that_executors_lack_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("class Thing: ...\ndef double(x): return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    monkeypatch.setitem(sys.modules, "only_here", only_here)
    for work in (
        lambda: take.remote(only_here.Thing()),
        lambda: marline.remote(only_here.double).remote(1),
        lambda: take.remote(marline.put(only_here.Thing())),
    ):
        with pytest.raises(ModuleNotFoundError, match="only_here") as caught:
            marline.get(work())
        assert isinstance(caught.value, marline.TaskError)
    wait_until("two executors run", lambda: len(executors()) == 2)


def test_a_module_that_the_driver_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text(
        "class Thing: ...\nclass Trouble(Exception):\n    def __init__(self, code): self.code = code\n"
    )

    def there(folder: str, fail: bool) -> Any:
        sys.path.insert(0, folder)
        import only_there  # type: ignore[import-not-found]

        if fail:
            raise only_there.Trouble(7)
        return only_there.Thing()

    with pytest.raises(ModuleNotFoundError, match="only_there"):
        marline.get(marline.remote(there).remote(str(tmp_path), False))
    with pytest.raises(marline.TaskError, match="7") as caught:
        marline.get(marline.remote(there).remote(str(tmp_path), True))
    assert caught.value.class_name == "only_there.Trouble"


# Exceptions.


def test_an_exception_whose_str_and_repr_raise_is_described() -> None:
    @marline.remote
    def fails(what: str) -> None:
        class Speechless(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

            def __repr__(self) -> str:
                raise SystemExit(3)

        class Worse(Speechless):
            def __str__(self) -> str:
                raise SystemExit(3)

        raise Speechless("x") if what == "str" else Worse("x")

    for what, name in (("str", "Speechless"), ("exit", "Worse")):
        with pytest.raises(marline.TaskError) as caught:
            marline.get(fails.remote(what))
        assert caught.value.class_name.endswith(name)
        assert "in fails" in str(caught.value)
        assert "its text could not be made" in str(caught.value)
    assert len(executors()) <= 2


@pytest.mark.parametrize("where", ["message", "attribute", "cause", "not pickled"])
def test_a_huge_exception_arrives_cut(where: str) -> None:
    @marline.remote
    def fails() -> None:
        class Stubborn(ValueError):
            def __reduce__(self) -> Any:
                raise RuntimeError("never")

        if where == "message":
            raise ValueError("begin" + "x" * HUGE + "end")
        if where == "not pickled":
            raise Stubborn("begin" + "x" * HUGE + "end")
        if where == "cause":
            raise ValueError("begin end") from OSError("x" * HUGE)
        error = ValueError("begin end")
        error.baggage = b"x" * HUGE  # type: ignore[attr-defined]
        raise error

    before = executors()
    with pytest.raises(marline.TaskError, match="begin") as caught:
        marline.get(fails.remote())
    assert len(str(caught.value)) < LONGEST_TEXT
    assert "end" in str(caught.value)
    assert caught.value.class_name.endswith("Stubborn" if where == "not pickled" else "ValueError")
    assert executors() <= before, "no executor died"


def test_a_huge_exception_of_an_actor_arrives_cut() -> None:
    @marline.remote
    class Loud:
        def __init__(self, loud: bool) -> None:
            if loud:
                raise ValueError("begin" + "x" * HUGE)

        def fail(self) -> None:
            raise ValueError("begin" + "x" * HUGE)

        def hello(self) -> str:
            return "hello"

    actor = Loud.remote(False)
    for ref in (actor.fail.remote(), Loud.remote(True).hello.remote()):
        with pytest.raises(marline.TaskError, match="begin") as caught:
            marline.get(ref)
        assert len(str(caught.value)) < LONGEST_TEXT
    assert marline.get(actor.hello.remote()) == "hello"


def test_an_exception_that_kills_its_reader_does_not_reach_the_driver() -> None:
    here = os.getpid()

    @marline.remote(max_retries=0)
    def fails() -> None:
        class Deadly(Exception):
            def __reduce__(self) -> Any:
                return os._exit, (9,)

        raise Deadly

    with pytest.raises(marline.WorkerLostError, match="exited with status 9"):
        marline.get(fails.remote())
    assert os.getpid() == here


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_exception_that_would_end_a_program_only_fails_its_task(error: type[BaseException]) -> None:
    @marline.remote
    def leaves() -> None:
        raise error(3)

    @marline.remote
    class Leaver:
        def leave(self) -> None:
            raise error(3)

        async def awaits(self) -> None:
            raise error(3)

        def hello(self) -> None: ...

    actor = Leaver.remote()
    marline.get(actor.hello.remote())  # From now on the actor's executor runs no tasks.
    before = executors()
    for ref in (leaves.remote(), actor.leave.remote(), actor.awaits.remote()):
        with pytest.raises(marline.TaskError, match="3") as caught:
            marline.get(ref, timeout=PATIENCE)
        assert caught.value.class_name == error.__name__
    assert executors() <= before, "no executor died"


def test_a_recursion_without_end_is_an_error_like_any_other() -> None:
    @marline.remote
    def deeper() -> Any:
        return deeper._function()

    @marline.remote
    def deep() -> Any:
        value: list[Any] = []
        for _ in range(100_000):
            value = [value]
        return value

    with pytest.raises(RecursionError):
        marline.get(deeper.remote())
    with pytest.raises(TypeError, match=r"the result.* cannot be pickled: .*recursion"):
        marline.get(deep.remote())
    assert len(executors()) <= 2


# Tasks.


def test_a_task_that_dies_leaves_others_alone() -> None:
    @marline.remote
    def steady(n: int) -> int:
        time.sleep(0.05)
        return n

    @marline.remote(max_retries=0)
    def dies(how: int) -> None:
        if how == 0:
            os._exit(1)
        elif how == 1:
            ctypes.string_at(0)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    good, bad = [], []
    for n in range(12):
        good.append(steady.options(max_retries=0).remote(n))
        bad.append(dies.remote(n % 3))
    assert marline.get(good) == list(range(12)), "no other task was lost or ran twice"
    for ref in bad:
        with pytest.raises(marline.WorkerLostError):
            marline.get(ref)


@pytest.mark.parametrize("end", ["exit", "cancel"])
def test_a_fork_bomb_goes_with_its_task(end: str, tmp_path: Path) -> None:
    @marline.remote(max_retries=0)
    def bomb(file: str, end: str) -> None:
        first = os.getpid()
        for _ in range(6):
            os.fork()
        with open(file, "a") as born:
            born.write(f"{os.getpid()}\n")
        if os.getpid() == first and end == "exit":
            while len(Path(file).read_text().split()) < 64:
                time.sleep(0.01)
            os._exit(4)
        time.sleep(600)

    born = tmp_path / "born"
    ref = bomb.remote(str(born), end)
    if end == "cancel":
        wait_until("all forks run", lambda: born.exists() and len(born.read_text().split()) == 64)
        marline.cancel(ref, force=True)
    expected = marline.TaskCancelledError if end == "cancel" else marline.WorkerLostError
    with pytest.raises(expected):
        marline.get(ref, timeout=PATIENCE)
    pids = [int(pid) for pid in born.read_text().split()]
    assert len(pids) == 64
    wait_until("all forks are dead", lambda: not any(is_alive(pid) for pid in pids))
    wait_until("two executors run", lambda: len(executors()) == 2)


def test_a_fork_that_forgets_to_end_is_not_an_executor(tmp_path: Path) -> None:
    def forks(file: str) -> str:
        if os.fork() == 0:
            Path(file).with_suffix(".new").write_text(str(os.getpid()))
            Path(file).with_suffix(".new").rename(file)
            return "the child"
        while not Path(file).exists():
            time.sleep(0.002)
        return "the parent"

    @marline.remote
    class Forker:
        def fork(self, file: str) -> str:
            return forks(file)

        def fail(self, file: str) -> str:
            words = forks(file)
            if words == "the child":
                raise RuntimeError(words)
            return words

    forker = Forker.remote()
    calls = [marline.remote(forks).remote, forker.fork.remote, forker.fail.remote]
    for number, call in enumerate(calls):
        file = tmp_path / str(number)
        assert marline.get(call(str(file)), timeout=PATIENCE) == "the parent"
        child = int(file.read_text())
        wait_until("the child has ended", lambda child=child: not is_alive(child))  # type: ignore[misc]
    assert len(executors(40)) == 2


def test_a_task_that_closes_every_descriptor_costs_one_executor() -> None:
    @marline.remote(max_retries=0)
    def closes() -> None:
        os.closerange(0, 256)

    with pytest.raises(marline.WorkerLostError):
        marline.get(closes.remote(), timeout=PATIENCE)
    wait_until("two executors run", lambda: len(executors()) == 2)
