"""`marline.Context` on every engine: options, restarts, retries, kills, cancelling and statuses.

Each test runs on all engines. docs/guides/testing.md lists what is skipped. Plain tasks and actors are in
`test_context.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import pytest
from harness.clusters import SeparateCluster, marline_up
from harness.engines import CONTEXTS_ON_CLUSTERS, skip
from harness.processes import descendants
from harness.scripts import Script
from harness.waiting import PATIENCE, wait_until

# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# An exception in a thread of Marline fails the test.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

CLUSTERS = pytest.mark.parametrize("engine", CONTEXTS_ON_CLUSTERS)


def wait_for(file: Path) -> str:
    while not file.exists():
        time.sleep(0.002)
    return file.name


def exists(*files: Path) -> Callable[[], bool]:
    return lambda: all(file.exists() for file in files)


class Worker:
    """An actor that counts. Each of its calls of `wait_for` makes a file when it begins."""

    def __init__(self, start: int = 0, **others: Any) -> None:
        self.count = start
        self.others = others

    def add(self) -> int:
        self.count += 1
        return self.count

    def given(self) -> dict[str, Any]:
        return self.others

    def pid(self) -> int:
        return os.getpid()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def wait_for(self, folder: Path) -> str:
        """Makes a file `begun-N` in the folder, and waits for the file `go`."""
        number = len(list(folder.glob("begun-*")))
        (folder / f"begun-{number}").touch()
        return wait_for(folder / "go")

    def leave(self) -> None:
        marline.exit_actor()


class Saver:
    def __init__(self) -> None:
        self.count = self.saves = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def how_often_saved(self) -> int:
        return self.saves

    def save_checkpoint(self) -> int:
        self.saves += 1
        return self.count

    def load_checkpoint(self, state: int) -> None:
        self.count = state

    def __sizeof__(self) -> int:
        raise RuntimeError("the runtime must not ask for the size of an actor")


class AsyncSaver:
    def __init__(self) -> None:
        self.count = 0

    async def add(self) -> int:
        self.count += 1
        return self.count

    async def save_checkpoint(self) -> int:
        return self.count

    async def load_checkpoint(self, state: int) -> None:
        self.count = state


def fail_until(folder: Path, attempts: int, error: type[Exception] = OSError) -> int:
    """Fails until it was tried `attempts` times. Returns the number of tries."""
    (folder / f"attempt-{len(list(folder.glob('attempt-*')))}").touch()
    tried = len(list(folder.glob("attempt-*")))
    if tried < attempts:
        raise error(f"attempt {tried}")
    return tried


def answers(actor: marline.ContextActor, method: str = "add") -> Any:
    """Repeats a call while the actor restarts, and returns the result."""
    result: list[Any] = []

    def is_back() -> bool:
        try:
            result.append(getattr(actor, method).remote().result(PATIENCE))
        except marline.WorkerLostError:
            return False
        return True

    wait_until("the actor answers", is_back)
    return result[0]


# Options.


def test_an_unknown_option_is_an_error_that_says_what_may_be_meant(ctx: marline.Context) -> None:
    with pytest.raises(TypeError, match=r"no option 'max_restart' \(is 'max_restarts' meant\?\)"):
        ctx.options(max_restart=3)
    with pytest.raises(TypeError, match="no option 'num_returns'"):
        ctx.options(num_returns=2)
    with pytest.raises(TypeError, match="max_restarts must be a whole number"):
        ctx.options(max_restarts="often")
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        ctx.options(timeout=-1)


def test_an_option_of_the_other_kind_is_an_error_where_it_is_used(ctx: marline.Context) -> None:
    with pytest.raises(TypeError, match=r"'max_restarts' is for create_actor\(\)"):
        ctx.options(max_restarts=1).run(abs, -1)
    with pytest.raises(TypeError, match=r"'max_retries' is for run\(\)"):
        ctx.options(max_retries=1).create_actor(Worker)


def test_keywords_are_those_of_the_function_or_class(ctx: marline.Context) -> None:
    def given(**keywords: Any) -> dict[str, Any]:
        return keywords

    keywords = {"timeout": 5, "max_retries": 1, "resources": {"none": 9}}
    assert ctx.run(given, **keywords).result(PATIENCE) == keywords
    worker = ctx.create_actor(Worker, max_restarts=1, max_concurrency=4)
    assert worker.given.remote().result(PATIENCE) == {"max_restarts": 1, "max_concurrency": 4}


def test_an_option_given_as_a_keyword_is_refused_with_the_right_way(ctx: marline.Context) -> None:
    class Plain:
        pass

    with pytest.raises(TypeError, match=r"context\.options\(max_restarts=\.\.\.\)\.create_actor"):
        ctx.create_actor(Plain, max_restarts=1)
    with pytest.raises(TypeError, match=r"context\.options\(max_retries=\.\.\.\)\.run"):
        ctx.run(wait_for, max_retries=1)


def test_options_add_up_and_leave_the_context_as_it_was(ctx: marline.Context, tmp_path: Path) -> None:
    patient = ctx.options(retry_exceptions=True).options(max_retries=2)
    assert patient.run(fail_until, tmp_path, 3).result(PATIENCE) == 3
    with pytest.raises(OSError, match="attempt 4"):
        ctx.run(fail_until, tmp_path, 5).result(PATIENCE)
    named = ctx.options(name="the one", lifetime="detached", get_if_exists=True)
    assert named.create_actor(Worker, 4) == named.create_actor(Worker)
    assert named.create_actor(Worker, name="another") != named.create_actor(Worker)
    assert patient.kind == ctx.kind


def test_a_context_with_options_is_closed_with_the_context(ctx: marline.Context) -> None:
    view = ctx.options(num_cpus=1)
    assert view.run(abs, -1).result(PATIENCE) == 1
    ctx.close()
    with pytest.raises(RuntimeError, match="closed"):
        view.run(abs, -1)


def test_resources_are_what_an_actor_and_a_task_ask_for(ctx: marline.Context, engine: str) -> None:
    asking = ctx.options(resources={"nobody has this": 1})
    if engine not in CONTEXTS_ON_CLUSTERS:
        # Engines without a cluster ignore resources.
        assert asking.run(abs, -1).result(PATIENCE) == 1
        return
    task, actor = asking.run(abs, -1), asking.create_actor(Worker)
    assert ctx.get(ctx.run(abs, -2), timeout=PATIENCE) == 2
    assert not task.done()
    assert ctx.actor_status(actor).state == "creating"
    task.cancel()


def test_an_actor_class_means_the_plain_class(ctx: marline.Context) -> None:
    worker = ctx.create_actor(marline.remote(num_cpus=100)(Worker), 1)  # type: ignore[arg-type]
    assert worker.add.remote().result(PATIENCE) == 2


# Retries.


def test_a_task_is_repeated_for_the_exceptions_it_names(ctx: marline.Context, tmp_path: Path) -> None:
    retrying = ctx.options(retry_exceptions=[OSError], max_retries=2)
    assert retrying.run(fail_until, tmp_path, 3, FileNotFoundError).result(PATIENCE) == 3
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(KeyError, match="attempt 1"):
        retrying.run(fail_until, other, 3, KeyError).result(PATIENCE)


def test_retries_are_counted(ctx: marline.Context, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="attempt 3"):
        ctx.options(retry_exceptions=True, max_retries=2).run(fail_until, tmp_path, 9).result(PATIENCE)
    assert len(list(tmp_path.iterdir())) == 3


@CLUSTERS
def test_a_task_whose_process_is_killed_is_repeated(ctx: marline.Context, tmp_path: Path) -> None:
    def die_once(file: Path) -> str:
        if not file.exists():
            file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "survived"

    assert ctx.run(die_once, tmp_path / "died").result(PATIENCE) == "survived"
    with pytest.raises(marline.WorkerLostError) as caught:
        ctx.options(max_retries=0).run(die_once, tmp_path / "other").result(PATIENCE)
    assert caught.value.may_have_run


def test_a_task_ends_with_its_timeout(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")
    with pytest.raises(marline.GetTimeoutError, match="timeout of"):
        ctx.options(timeout=0.05).run(wait_for, tmp_path / "go").result(PATIENCE)
    assert ctx.options(timeout=PATIENCE).run(abs, -1).result(PATIENCE) == 1


# Restarts.


def test_an_actor_that_is_killed_is_restarted_by_default(ctx: marline.Context) -> None:
    worker = ctx.create_actor(Worker, 10, name="the one")
    for life in range(1, 4):
        assert answers(worker) == 11, "a new epoch begins with the constructor"
        status = ctx.actor_status(worker)
        assert (status.state, status.epoch, status.restarts) == ("ready", life, life - 1)
        ctx.kill("the one" if life == 1 else worker, no_restart=False)

        def is_next(before: int = life) -> bool:
            return ctx.actor_status(worker).epoch == before + 1

        wait_until("the next life begins", is_next)


def test_restarts_are_counted(ctx: marline.Context) -> None:
    worker = ctx.options(max_restarts=1).create_actor(Worker)
    assert worker.add.remote().result(PATIENCE) == 1
    ctx.kill(worker, no_restart=False)
    wait_until("the next life is ready", lambda: ctx.actor_status(worker).epoch == 2)
    assert answers(worker) == 1
    ctx.kill(worker, no_restart=False)
    wait_until("the actor is dead", lambda: ctx.actor_status(worker).state == "dead")
    status = ctx.actor_status(worker)
    assert (status.cause, status.restarts) == ("restarts used up", 1)
    assert "may not be restarted" in str(status.error)
    with pytest.raises(marline.ActorDiedError, match="may not be restarted"):
        worker.add.remote().result(PATIENCE)


def test_a_call_under_way_says_that_it_may_have_run(
    ctx: marline.Context, engine: str, tmp_path: Path
) -> None:
    skip(engine, "sync", why="nothing overlaps")
    worker = ctx.create_actor(Worker)
    future = worker.wait_for.remote(tmp_path)
    wait_until("the call runs", exists(tmp_path / "begun-0"))
    ctx.kill(worker, no_restart=False)
    with pytest.raises(marline.WorkerLostError) as caught:
        future.result(PATIENCE)
    assert caught.value.may_have_run
    assert not isinstance(caught.value, marline.ActorDiedError)
    assert answers(worker) == 1


def test_a_call_under_way_is_repeated_if_that_is_allowed(
    ctx: marline.Context, engine: str, tmp_path: Path
) -> None:
    skip(engine, "sync", why="nothing overlaps")
    worker = ctx.options(max_task_retries=1).create_actor(Worker)
    future, later = worker.wait_for.remote(tmp_path), worker.add.remote()
    wait_until("the call runs", exists(tmp_path / "begun-0"))
    ctx.kill(worker, no_restart=False)
    wait_until("the call runs again", exists(tmp_path / "begun-1"))
    (tmp_path / "go").touch()
    assert future.result(PATIENCE) == "go"
    assert later.result(PATIENCE) == 1, "the new instance starts from 0"


def test_repeats_are_counted(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")
    worker = ctx.options(max_task_retries=1).create_actor(Worker)
    future = worker.wait_for.remote(tmp_path)
    for life in range(2):
        wait_until("the call runs", exists(tmp_path / f"begun-{life}"))
        ctx.kill(worker, no_restart=False)
    with pytest.raises(marline.WorkerLostError) as caught:
        future.result(PATIENCE)
    assert caught.value.may_have_run


@CLUSTERS
def test_an_actor_outlives_its_process(ctx: marline.Context) -> None:
    worker = ctx.create_actor(Worker, 5)
    pid = worker.pid.remote().result(PATIENCE)
    os.kill(pid, signal.SIGKILL)
    assert answers(worker, "pid") != pid
    assert answers(worker) == 6
    with pytest.raises(marline.WorkerLostError) as caught:
        worker.die.remote().result(PATIENCE)
    assert caught.value.may_have_run
    wait_until("the actor is back", lambda: ctx.actor_status(worker).state == "ready")
    assert ctx.actor_status(worker).restarts == 2


def test_an_actor_goes_on_where_it_was_saved(ctx: marline.Context) -> None:
    saver = ctx.options(checkpoint_every=2, max_task_retries=-1).create_actor(Saver)
    assert ctx.get([saver.add.remote() for _ in range(3)], timeout=PATIENCE) == [1, 2, 3]
    ctx.kill(saver, no_restart=False)
    wait_until("the next life begins", lambda: ctx.actor_status(saver).epoch == 2)
    assert answers(saver) == 3, "two calls were saved"
    with pytest.raises(TypeError, match="save_checkpoint"):
        ctx.options(checkpoint_every=2).create_actor(Worker)


def test_an_actor_with_coroutines_goes_on_where_it_was_saved(ctx: marline.Context) -> None:
    saver = ctx.options(max_task_retries=-1).create_actor(AsyncSaver)
    assert [saver.add.remote().result(PATIENCE) for _ in range(3)] == [1, 2, 3]
    saver.save_checkpoint.remote().result(PATIENCE)
    ctx.kill(saver, no_restart=False)
    wait_until("the next life begins", lambda: ctx.actor_status(saver).epoch == 2)
    assert answers(saver) == 4


# Ends.


def test_a_killed_actor_stays_dead(ctx: marline.Context) -> None:
    worker = ctx.create_actor(Worker, name="the one")
    assert worker.add.remote().result(PATIENCE) == 1
    ctx.kill("the one")
    wait_until("the actor is dead", lambda: ctx.actor_status(worker).state == "dead")
    assert ctx.actor_status(worker).cause == "deleted"
    assert ctx.actor_status("the one").cause == "deleted"
    ctx.kill(worker)
    ctx.kill(worker, no_restart=False)
    ctx.delete_actor(worker)
    assert ctx.actor_status(worker).cause == "deleted"
    with pytest.raises(marline.ActorDiedError, match="deleted"):
        worker.add.remote().result(PATIENCE)
    for name in ("the one", "nobody"):
        with pytest.raises(ValueError, match=name):
            ctx.kill(name)
    with pytest.raises(TypeError, match="name or its handle, not int"):
        ctx.kill(5)  # type: ignore[arg-type]


def test_an_actor_ends_itself(ctx: marline.Context) -> None:
    worker = ctx.create_actor(Worker)
    assert worker.leave.remote().result(PATIENCE) is None
    with pytest.raises(marline.ActorDiedError, match="ended itself"):
        worker.add.remote().result(PATIENCE)
    assert ctx.actor_status(worker).cause == "ended itself"
    with pytest.raises(RuntimeError, match="no actor runs here"):
        ctx.run(marline.exit_actor).result(PATIENCE)


def test_asking_for_the_status_leaves_an_idle_actor_idle(ctx: marline.Context) -> None:
    saver = ctx.options(idle_ttl=0.5, checkpoint_every=1).create_actor(Saver, name="idle")
    assert saver.how_often_saved.remote().result(PATIENCE) == 0

    def is_dead() -> bool:
        return ctx.actor_status("idle").state == "dead"

    wait_until("the actor has ended, idle for long enough", is_dead)
    assert ctx.actor_status(saver).cause == "idle"
    with pytest.raises(marline.ActorDiedError, match="idle for too long"):
        saver.add.remote().result(PATIENCE)


# Statuses.


def test_status(ctx: marline.Context, engine: str) -> None:
    before = time.time()
    worker = ctx.create_actor(Worker, name="the one")
    assert worker.add.remote().result(PATIENCE) == 1
    wait_until("the call is counted as ended", lambda: ctx.actor_status(worker).queue_length == 0)
    status = ctx.actor_status("the one")
    assert status == ctx.actor_status(worker)
    assert (status.name, status.class_name, status.state) == ("the one", "Worker", "ready")
    assert (status.cause, status.error, status.epoch, status.restarts) == (None, None, 1, 0)
    assert status.actor_id
    assert (status.worker is not None) == (engine in CONTEXTS_ON_CLUSTERS)
    assert status.created_at is not None and status.last_used_at is not None
    # The times come from the clocks of several processes and are in whole milliseconds.
    assert before - 1 <= status.created_at <= status.last_used_at <= time.time() + 1

    def is_used_later() -> bool:
        worker.add.remote().result(PATIENCE)
        last_used_at = ctx.actor_status(worker).last_used_at
        return last_used_at is not None and last_used_at > status.last_used_at

    wait_until("a call changes when it was last used", is_used_later)
    nobody = ctx.actor_status("nobody")
    assert (nobody.name, nobody.state, nobody.cause, nobody.actor_id) == ("nobody", "dead", None, None)


def test_the_status_runs_no_code_of_the_actor(ctx: marline.Context) -> None:
    saver = ctx.options(checkpoint_every=1, max_pending_calls=1).create_actor(Saver, name="the one")
    assert saver.how_often_saved.remote().result(PATIENCE) == 0
    wait_until("the actor has saved its state", lambda: ctx.actor_status(saver).queue_length == 0)
    saved = saver.how_often_saved.remote().result(PATIENCE)
    for actor in (saver, "the one"):
        for _ in range(5):
            assert ctx.actor_status(actor).state == "ready"
    wait_until("the last call has ended", lambda: ctx.actor_status(saver).queue_length == 0)
    assert saver.how_often_saved.remote().result(PATIENCE) == saved + 1


def test_the_status_says_how_many_calls_wait(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")
    worker = ctx.create_actor(Worker, name="the one")
    futures = [worker.wait_for.remote(tmp_path), worker.add.remote(), worker.add.remote()]
    wait_until("the first call runs", exists(tmp_path / "begun-0"))
    wait_until("all calls have arrived", lambda: ctx.actor_status("the one").queue_length == 3)
    assert ctx.actor_status(worker).state == "ready"
    [listed] = ctx.list_actors()
    assert listed.queue_length == 3
    (tmp_path / "go").touch()
    assert ctx.get(futures, timeout=PATIENCE) == ["go", 1, 2]
    wait_until("no call waits or runs", lambda: ctx.actor_status("the one").queue_length == 0)


def test_the_status_takes_no_place_among_pending_calls(
    ctx: marline.Context, engine: str, tmp_path: Path
) -> None:
    skip(engine, "sync", why="nothing overlaps")
    worker = ctx.options(max_pending_calls=1).create_actor(Worker)
    assert worker.add.remote().result(PATIENCE) == 1
    wait_until("no call is pending", lambda: ctx.actor_status(worker).queue_length == 0)
    future = worker.wait_for.remote(tmp_path)
    wait_until("the call runs", exists(tmp_path / "begun-0"))
    for _ in range(5):
        status = ctx.actor_status(worker)
        assert (status.state, status.queue_length) == ("ready", 1)
    (tmp_path / "go").touch()
    assert future.result(PATIENCE) == "go"
    wait_until("no call is pending", lambda: ctx.actor_status(worker).queue_length == 0)
    assert worker.add.remote().result(PATIENCE) == 2


def test_an_actor_that_is_being_made_says_so(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")

    class Slow:
        def __init__(self, file: Path) -> None:
            wait_for(file)

        def hello(self) -> str:
            return "hello"

    slow = ctx.create_actor(Slow, tmp_path / "go")
    assert ctx.actor_status(slow).state == "creating"
    (tmp_path / "go").touch()
    assert slow.hello.remote().result(PATIENCE) == "hello"
    assert ctx.actor_status(slow).state == "ready"
    (tmp_path / "go").unlink()
    ctx.kill(slow, no_restart=False)
    wait_until("the actor is restarting", lambda: ctx.actor_status(slow).state == "restarting")
    (tmp_path / "go").touch()
    wait_until("the actor is back", lambda: ctx.actor_status(slow).state == "ready")


def test_a_class_that_fails_is_the_cause_of_death(ctx: marline.Context) -> None:
    class Broken:
        def __init__(self) -> None:
            raise OSError("no disk")

    broken = ctx.create_actor(Broken)
    wait_until("the actor is dead", lambda: ctx.actor_status(broken).state == "dead")
    status = ctx.actor_status(broken)
    assert (status.cause, "no disk" in str(status.error)) == ("constructor failed", True)


# Finding actors.


def test_actors_are_found_and_listed(ctx: marline.Context) -> None:
    assert ctx.list_actors() == []
    first = ctx.create_actor(Worker, 5, name="first")
    second = ctx.create_actor(Saver)
    found = ctx.get_actor("first")
    assert found == first
    assert found.add.remote().result(PATIENCE) == 6
    assert second.add.remote().result(PATIENCE) == 1
    listed = [(one.name, one.class_name) for one in ctx.list_actors()]
    assert listed == [(None, "Saver"), ("first", "Worker")]
    ctx.kill(second)
    wait_until("only the first actor is listed", lambda: [one.name for one in ctx.list_actors()] == ["first"])
    with pytest.raises(ValueError, match="nobody"):
        ctx.get_actor("nobody")
    with pytest.raises(TypeError, match="name must be a string"):
        ctx.get_actor(5)  # type: ignore[arg-type]


def test_names_count_within_a_namespace(ctx: marline.Context) -> None:
    there = ctx.options(namespace="there")
    one, other = ctx.create_actor(Worker, 1, name="x"), there.create_actor(Worker, 2, name="x")
    assert ctx.get([ctx.get_actor("x").add.remote(), there.get_actor("x").add.remote()]) == [2, 3]
    assert [len(ctx.list_actors()), len(there.list_actors())] == [1, 1]
    there.kill("x")
    wait_until("the actor is dead", lambda: there.actor_status("x").state == "dead")
    assert ctx.actor_status("x").state == "ready"
    assert (one != other, one.add.remote().result(PATIENCE)) == (True, 3)


def test_a_name_stands_for_one_class(ctx: marline.Context) -> None:
    worker = ctx.create_actor(Worker, name="the one")
    with pytest.raises(ValueError, match=r"is a .*Worker, not a .*Saver"):
        ctx.create_actor(Saver, name="the one", get_if_exists=True)
    as_main = type("Worker", (Worker,), {"__module__": "__main__", "__qualname__": Worker.__qualname__})
    assert ctx.create_actor(as_main, name="the one", get_if_exists=True) == worker
    with pytest.raises(ValueError, match="give it one"):
        ctx.create_actor(Worker, get_if_exists=True)


SCRIPT = """
NAMES
with marline.Context(ADDRESS, token=TOKEN) as ctx:
    clock = ctx.create_actor(Clock, name="clock", get_if_exists=True, lifetime="detached")
    print(Clock.__module__, clock.tick.remote().result(60), flush=True)
"""

CLASS = """
class Clock:
    ticks = 0
    def tick(self):
        self.ticks += 1
        return self.ticks
"""


@pytest.mark.parametrize("creator", ["main", "module"])
def test_a_class_of_a_script_is_the_same_for_those_who_import_it(
    creator: str, scripts: list[Script], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(CLASS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    names = {"main": CLASS, "module": "from app import Clock"}
    with marline_up(tmp_path) as running:
        for number, kind in enumerate([creator, *(one for one in names if one != creator)], 1):
            source = SCRIPT.replace("NAMES", names[kind])
            source = source.replace("ADDRESS", repr(running.address)).replace("TOKEN", repr(running.token))
            script = Script(source)
            scripts.append(script)
            code, out, err = script.end()
            module = "__main__" if kind == "main" else "app"
            assert (code, out) == (0, f"{module} {number}\n"), err


# Limits of actors.


def test_calls_of_an_actor_overlap_if_that_is_allowed(
    ctx: marline.Context, engine: str, tmp_path: Path
) -> None:
    skip(engine, "sync", why="nothing overlaps")
    worker = ctx.options(max_concurrency=2).create_actor(Worker)
    first = worker.wait_for.remote(tmp_path)
    wait_until("the first call runs", exists(tmp_path / "begun-0"))
    assert worker.add.remote().result(PATIENCE) == 1
    second = worker.wait_for.remote(tmp_path)
    wait_until("the second call runs", exists(tmp_path / "begun-1"))
    third = worker.add.remote()
    wait_until("the third call waits", lambda: ctx.actor_status(worker).queue_length == 3)
    assert not third.done()
    (tmp_path / "go").touch()
    assert ctx.get([first, second, third], timeout=PATIENCE) == ["go", "go", 2]


def test_pending_calls_are_limited(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")
    worker = ctx.options(max_pending_calls=2).create_actor(Worker)
    futures = [worker.wait_for.remote(tmp_path) for _ in range(5)]
    with pytest.raises(marline.ExhaustedError, match="max_pending_calls"):
        futures[-1].result(PATIENCE)
    (tmp_path / "go").touch()
    assert futures[0].result(PATIENCE) == "go"


# Cancelling.


def test_a_task_that_runs_is_cancelled(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")

    def work(folder: Path) -> None:
        try:
            (folder / "begun").touch()
            wait_for(folder / "go")
        finally:
            (folder / "cleaned up").touch()

    future = ctx.run(work, tmp_path)
    wait_until("the task runs", exists(tmp_path / "begun"))
    future.cancel()
    with pytest.raises(marline.TaskCancelledError):
        future.result(PATIENCE)
    wait_until("the task's code was interrupted", exists(tmp_path / "cleaned up"))
    assert future.done()
    assert ctx.run(abs, -1).result(PATIENCE) == 1


def test_a_task_that_waits_is_cancelled(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")
    first = ctx.run(wait_for, tmp_path / "go")
    dependent = ctx.run((tmp_path / "ran").touch, first)
    dependent.cancel()
    with pytest.raises(marline.TaskCancelledError):
        dependent.result(PATIENCE)
    (tmp_path / "go").touch()
    assert first.result(PATIENCE) == "go"
    assert ctx.run(abs, -1).result(PATIENCE) == 1
    assert not (tmp_path / "ran").exists()


def test_a_coroutine_is_cancelled(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")

    async def work(folder: Path) -> None:
        try:
            (folder / "begun").touch()
            await asyncio.sleep(3_600)
        finally:
            (folder / "cleaned up").touch()

    future = ctx.run(work, tmp_path)
    wait_until("the coroutine runs", exists(tmp_path / "begun"))
    marline.cancel(future)  # type: ignore[arg-type]
    with pytest.raises(marline.TaskCancelledError):
        future.result(PATIENCE)
    wait_until("the coroutine was interrupted", exists(tmp_path / "cleaned up"))


@pytest.mark.parametrize("waits", ["result", "get", "wait"])
def test_what_a_cancelled_task_has_submitted_is_cancelled_with_it(
    ctx: marline.Context, engine: str, waits: str, tmp_path: Path
) -> None:
    skip(engine, "sync", why="nothing overlaps")

    def inner(folder: Path) -> None:
        try:
            (folder / "begun").touch()
            wait_for(folder / "go")
        finally:
            (folder / "cleaned up").touch()

    def outer(folder: Path) -> None:
        context = marline.default_context()
        future = context.run(inner, folder)
        if waits == "result":
            future.result()
        elif waits == "get":
            context.get([future])
        else:
            context.wait([future])

    future = ctx.run(outer, tmp_path)
    wait_until("both tasks run", exists(tmp_path / "begun"))
    future.cancel()
    with pytest.raises(marline.TaskCancelledError):
        future.result(PATIENCE)
    wait_until("both tasks were interrupted", exists(tmp_path / "cleaned up"))


def test_a_call_is_cancelled_and_its_actor_goes_on(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")
    worker = ctx.create_actor(Worker)
    running, waiting = worker.wait_for.remote(tmp_path), worker.wait_for.remote(tmp_path)
    wait_until("the first runs", exists(tmp_path / "begun-0"))
    waiting.cancel()
    running.cancel()
    for future in (running, waiting):
        with pytest.raises(marline.TaskCancelledError):
            future.result(PATIENCE)
    assert worker.add.remote().result(PATIENCE) == 1
    assert ctx.actor_status(worker).epoch == 1
    assert not (tmp_path / "begun-1").exists()


def test_cancelling_at_any_moment_harms_nothing_else(ctx: marline.Context, engine: str) -> None:
    def spin(rounds: int) -> int:
        return sum(1 for _ in range(rounds))

    worker = ctx.create_actor(Worker)
    rounds = 40 if engine in CONTEXTS_ON_CLUSTERS else 400
    for number in range(rounds):
        cancelled = [ctx.run(spin, number % 50), worker.add.remote()]
        kept = ctx.run(spin, 10)
        for future in cancelled:
            future.cancel()
        assert kept.result(PATIENCE) == 10
        for future in cancelled:
            with contextlib.suppress(marline.TaskCancelledError):
                future.result(PATIENCE)
    assert worker.add.remote().result(PATIENCE) <= rounds + 1
    assert ctx.actor_status(worker).epoch == 1


def test_a_value_that_has_come_stays(ctx: marline.Context) -> None:
    future, put = ctx.run(abs, -1), ctx.put(2)
    assert future.result(PATIENCE) == 1
    for one in (future, put):
        one.cancel()
        one.cancel(force=True)
    assert ctx.get([future, put]) == [1, 2]


def test_closing_ends_what_runs(ctx: marline.Context, engine: str, tmp_path: Path) -> None:
    skip(engine, "sync", why="nothing overlaps")
    skip(engine, "host:port", why="what was submitted goes on")
    worker = ctx.create_actor(Worker)
    call = worker.wait_for.remote(tmp_path)
    task = ctx.run(wait_for, tmp_path / "go")
    wait_until("the call runs", exists(tmp_path / "begun-0"))
    ctx.close()
    for future in (call, task):
        with pytest.raises(marline.MarlineError) as caught:
            future.result(PATIENCE)
        assert not isinstance(caught.value, marline.TaskError)


@pytest.mark.parametrize("engine", ["threads"])
def test_closing_leaves_code_behind_that_does_not_stop(
    ctx: marline.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    from marline._engines import on_threads

    monkeypatch.setattr(on_threads, "STOPS_WITHIN", 0.05)
    begun, go = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        go.wait()  # An exception that is thrown into this thread is raised when this returns.

    future = ctx.run(block)
    assert begun.wait(PATIENCE)
    ctx.close()
    with pytest.raises(marline.WorkerLostError) as caught:
        future.result(0)
    assert caught.value.may_have_run
    go.set()


# Errors.


def test_a_failed_task_or_call_is_a_task_error(ctx: marline.Context) -> None:
    class Own(ValueError):
        def __init__(self, one: int, *, other: int) -> None:
            super().__init__(f"{one} and {other}")
            self.other = other

    def fail() -> None:
        raise Own(1, other=2)

    class Failing:
        def fail(self) -> None:
            raise Own(1, other=2)

        async def fail_later(self) -> None:
            raise Own(1, other=2)

    failing = ctx.create_actor(Failing)
    for future in (ctx.run(fail), failing.fail.remote(), failing.fail_later.remote()):
        with pytest.raises(marline.TaskError, match="1 and 2") as caught:
            future.result(PATIENCE)
        assert isinstance(caught.value, ValueError)
        assert (caught.value.class_name.rpartition(".")[2], caught.value.may_have_run) == ("Own", True)
        assert "raise Own(1, other=2)" in caught.value.remote_traceback


def test_an_error_that_ends_loops_is_a_task_error(ctx: marline.Context) -> None:
    def stop() -> None:
        raise StopIteration("over")

    with pytest.raises(marline.TaskError, match="over"):
        ctx.run(stop).result(PATIENCE)


# Context variables.

request = marline.propagate(contextvars.ContextVar("request of test_context_lives", default="none"))


class Reader:
    def __init__(self) -> None:
        self.made = request.get()

    def read(self) -> tuple[str, str]:
        return self.made, request.get()


class AsyncReader:
    def __init__(self) -> None:
        self.made = request.get()

    async def read(self) -> tuple[str, str]:
        await asyncio.sleep(0)
        return self.made, request.get()


def test_variables_travel_with_tasks_and_calls(ctx: marline.Context) -> None:
    def nested() -> tuple[str, str]:
        return request.get(), marline.default_context().run(request.get).result(PATIENCE)

    def change() -> str:
        request.set("changed")
        return request.get()

    def check() -> None:
        request.set("first")
        readers = [ctx.create_actor(cls) for cls in (Reader, AsyncReader)]
        assert ctx.run(nested).result(PATIENCE) == ("first", "first")
        for reader in readers:
            assert reader.read.remote().result(PATIENCE) == ("first", "first")
        request.set("second")
        for reader in readers:
            assert reader.read.remote().result(PATIENCE) == ("first", "second")
        assert ctx.run(change).result(PATIENCE) == "changed"
        assert request.get() == "second"

    contextvars.copy_context().run(check)
    assert ctx.run(request.get).result(PATIENCE) == "none"


# Sessions.


@pytest.mark.parametrize("engine", CONTEXTS_ON_CLUSTERS)
def test_a_context_that_was_dropped_ends_with_a_warning(engine: str, tmp_path: Path) -> None:
    def use(address: str, token: str | None) -> int:
        dropped = marline.Context(address, token=token)
        return int(dropped.run(abs, -1).result(PATIENCE))

    separate = SeparateCluster(tmp_path / "run") if engine == "host:port" else None
    before = descendants(os.getpid())
    try:
        if separate is not None:
            separate.worker("--cpus", "2")
        address, token = ("local", None) if separate is None else (separate.address, separate.token)
        for _ in range(2):
            with pytest.warns(ResourceWarning, match="was dropped and not closed"):
                assert use(address, token) == 1
                gc.collect()
            assert not marline.is_initialized()
        if separate is None:
            wait_until("the processes have ended", lambda: not (descendants(os.getpid()) - before))
    finally:
        if separate is not None:
            separate.end()


@pytest.mark.parametrize("engine", ["local"])
def test_a_future_keeps_the_context_that_was_dropped(engine: str) -> None:
    future = marline.Context(engine, num_cpus=1).run(abs, -1)
    assert future.result(PATIENCE) == 1
    context = marline.default_context()
    assert context.run(abs, -2).result(PATIENCE) == 2
    context.close()
    assert not marline.is_initialized()
