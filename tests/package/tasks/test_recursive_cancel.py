"""The work that a task or call has submitted is cancelled with it, unless `recursive=False`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.processes import is_alive
from harness.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.usefixtures("cluster")


@marline.remote(num_cpus=0)
def hang(folder: Path, name: str) -> None:
    try:
        write(folder, name)
        threading.Event().wait()
    finally:
        (folder / f"{name} stopped").touch()


def write(folder: Path, name: str) -> None:
    """Writes the pid of this process to the file `name`, which appears only when it is complete."""
    (folder / f"{name} writes").write_text(str(os.getpid()))
    (folder / f"{name} writes").rename(folder / name)


# A function of `__main__` travels as code, so no executor has to import this module.
write.__module__ = "__main__"


@marline.remote(num_cpus=0)
def parent(folder: Path, depth: int) -> Any:
    if depth > 0:
        refs = [parent.remote(folder, depth - 1)]
    else:
        refs = [hang.remote(folder, "a"), hang.remote(folder, "b")]
    return marline.get(refs)


@marline.remote
class Actor:
    def hang(self, folder: Path, name: str) -> None:
        try:
            write(folder, name)
            threading.Event().wait()
        finally:
            (folder / f"{name} stopped").touch()

    def submits(self, folder: Path) -> Any:
        hang.remote(folder, "a")  # The reference is dropped at once.
        return marline.get(hang.remote(folder, "b"))


@marline.remote
class Async:
    async def submits(self, folder: Path) -> Any:
        hang.remote(folder, "a")
        return await hang.remote(folder, "b")


def wait_until_both_run(folder: Path) -> None:
    for name in ("a", "b"):
        wait_until(f"{name} runs", (folder / name).exists)


def wait_until_both_stopped(folder: Path) -> None:
    for name in ("a", "b"):
        wait_until(f"{name} has stopped", (folder / f"{name} stopped").exists)


def is_cancelled(ref: marline.ObjectRef) -> bool:
    with pytest.raises(marline.TaskCancelledError):
        marline.get(ref, timeout=PATIENCE)
    return True


@pytest.mark.parametrize("depth", [0, 2])
def test_children_of_a_cancelled_task_are_cancelled(tmp_path: Path, depth: int) -> None:
    ref = parent.remote(tmp_path, depth)
    wait_until_both_run(tmp_path)
    marline.cancel(ref)
    wait_until_both_stopped(tmp_path)
    assert is_cancelled(ref)


@pytest.mark.parametrize("actor", [Actor, Actor.options(max_concurrency=4), Async])
def test_children_of_a_cancelled_call_are_cancelled(tmp_path: Path, actor: Any) -> None:
    one = actor.remote()
    ref = one.submits.remote(tmp_path)
    wait_until_both_run(tmp_path)
    marline.cancel(ref)
    wait_until_both_stopped(tmp_path)
    assert is_cancelled(ref)


def test_calls_are_children_too(tmp_path: Path) -> None:
    @marline.remote(num_cpus=0)
    def calls(one: Any, other: Any) -> Any:
        return marline.get([one.hang.remote(tmp_path, "a"), other.hang.remote(tmp_path, "b")])

    ref = calls.remote(Actor.remote(), Actor.remote())
    wait_until_both_run(tmp_path)
    marline.cancel(ref)
    wait_until_both_stopped(tmp_path)
    assert is_cancelled(ref)


@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_children_of_a_killed_executor_end_with_it(tmp_path: Path, how: str) -> None:
    @marline.remote(num_cpus=0, max_retries=0)
    def killed() -> Any:
        write(tmp_path, "parent")
        return marline.get([hang.remote(tmp_path, "a"), hang.remote(tmp_path, "b")])

    ref = killed.remote()
    wait_until_both_run(tmp_path)
    if how == "cancel":
        marline.cancel(ref, force=True)
    else:
        os.kill(int((tmp_path / "parent").read_text()), signal.SIGKILL)
    with pytest.raises((marline.TaskCancelledError, marline.WorkerLostError)):
        marline.get(ref)
    for name in ("a", "b"):
        pid = int((tmp_path / name).read_text())
        wait_until(f"{name} has ended", lambda pid=pid: not is_alive(pid))  # type: ignore[misc]


def test_work_that_a_task_submits_after_its_cancel_is_not_cancelled(tmp_path: Path) -> None:
    @marline.remote(num_cpus=0)
    def cleans_up() -> Any:
        with contextlib.suppress(marline.TaskCancelledError):
            write(tmp_path, "a")
            threading.Event().wait()
        return marline.get(marline.remote(os.getpid).remote())

    ref = cleans_up.remote()
    wait_until("the task runs", (tmp_path / "a").exists)
    marline.cancel(ref)
    assert marline.get(ref) > 0


def test_children_of_a_task_that_has_ended_are_left_alone(tmp_path: Path) -> None:
    @marline.remote(num_cpus=0)
    def leaves() -> Any:
        return [hang.remote(tmp_path, "a")]

    ref = leaves.remote()
    (child,) = marline.get(ref)
    wait_until("the child runs", (tmp_path / "a").exists)
    marline.cancel(ref)
    assert marline.wait([child], timeout=0.2) == ([], [child])
    assert not (tmp_path / "a stopped").exists()


def test_a_sibling_that_was_cancelled_does_not_take_others_with_it(tmp_path: Path) -> None:
    @marline.remote(num_cpus=0)
    def has_two() -> Any:
        one, _other = hang.remote(tmp_path, "a"), hang.remote(tmp_path, "b")
        while not ((tmp_path / "a").exists() and (tmp_path / "b").exists()):
            marline.wait([one], timeout=0.01)
        marline.cancel(one)
        return marline.get(one)

    with pytest.raises(marline.TaskCancelledError):
        marline.get(has_two.remote())
    assert (tmp_path / "a stopped").exists()
    assert not (tmp_path / "b stopped").exists()


@marline.remote(num_cpus=0)
def wait_for(folder: Path, name: str) -> str:
    """Runs until the file `go on` exists."""
    write(folder, name)
    try:
        while not (folder / "go on").exists():
            threading.Event().wait(0.005)
    finally:
        (folder / f"{name} ended").touch()
    return name


@marline.remote(num_cpus=0)
def leave_two(folder: Path, refs: list[Any]) -> Any:
    """Submits two tasks, puts their references on shelves, and waits for them."""
    children = [wait_for.remote(folder, "a"), wait_for.remote(folder, "b")]
    marline.get([shelf.put.remote([child]) for shelf, child in zip(refs, children, strict=True)])
    return marline.get(children)


@marline.remote(num_cpus=0)
class Shelf:
    def __init__(self) -> None:
        self.refs: list[marline.ObjectRef] = []

    def put(self, refs: list[marline.ObjectRef]) -> None:
        self.refs = refs

    def take(self) -> list[marline.ObjectRef]:
        return self.refs


@marline.remote(num_cpus=0)
class Submits:
    def two(self, folder: Path, refs: list[Any]) -> Any:
        return leave_two._function(folder, refs)

    def again(self) -> str:
        return "here"


@marline.remote(num_cpus=0)
class SubmitsAsync:
    async def two(self, folder: Path, refs: list[Any]) -> Any:
        children = [wait_for.remote(folder, "a"), wait_for.remote(folder, "b")]
        for shelf, child in zip(refs, children, strict=True):
            await shelf.put.remote([child])
        return [await child for child in children]

    async def again(self) -> str:
        return "here"


@pytest.mark.parametrize("by", ["task", "method", "method on a thread", "coroutine"])
def test_children_go_on_if_the_task_alone_is_cancelled(tmp_path: Path, by: str) -> None:
    shelves = [Shelf.remote(), Shelf.remote()]
    actors = {
        "method": Submits,
        "method on a thread": Submits.options(max_concurrency=2),
        "coroutine": SubmitsAsync,
    }
    actor = actors[by].remote() if by in actors else None
    submit = leave_two.remote if actor is None else actor.two.remote
    ref = submit(tmp_path, shelves)
    wait_until_both_run(tmp_path)
    children: list[marline.ObjectRef] = []

    def shown() -> bool:
        children[:] = [child for shelf in shelves for child in marline.get(shelf.take.remote())]
        return len(children) == 2

    wait_until("both shelves have their reference", shown)
    marline.cancel(ref, recursive=False)
    assert is_cancelled(ref)
    assert not list(tmp_path.glob("* ended"))
    if actor is not None:
        assert marline.get(actor.again.remote(), timeout=PATIENCE) == "here"
    (tmp_path / "go on").touch()
    assert marline.get(children, timeout=PATIENCE) == ["a", "b"]


def test_a_task_that_was_cancelled_alone_can_be_cancelled_with_its_children(tmp_path: Path) -> None:
    @marline.remote(num_cpus=0)
    def stubborn(folder: Path) -> None:
        hang.remote(folder, "a")
        hang.remote(folder, "b")
        try:
            threading.Event().wait()
        finally:
            write(folder, "asked")
            while not (folder / "b stopped").exists():
                threading.Event().wait(0.005)

    ref = stubborn.remote(tmp_path)
    wait_until_both_run(tmp_path)
    marline.cancel(ref, recursive=False)
    wait_until("the task was asked to stop", (tmp_path / "asked").exists)
    assert not list(tmp_path.glob("* stopped"))
    marline.cancel(ref)
    wait_until_both_stopped(tmp_path)
    assert is_cancelled(ref)


def test_a_task_that_has_not_started_is_cancelled_alone_too() -> None:
    waits = marline.remote(os.getpid).options(resources={"never": 1}).remote()
    marline.cancel(waits, recursive=False)
    assert is_cancelled(waits)


def test_by_force_a_task_cannot_be_cancelled_alone(tmp_path: Path) -> None:
    ref = hang.remote(tmp_path, "a")
    with pytest.raises(marline.UnsupportedError, match="recursive=False needs force=False"):
        marline.cancel(ref, force=True, recursive=False)
    marline.cancel(ref)
    assert is_cancelled(ref)


def test_a_second_cancel_does_not_disturb_a_task_that_cleans_up(tmp_path: Path) -> None:
    @marline.remote
    def tidy(folder: Path) -> None:
        try:
            write(folder, "runs")
            threading.Event().wait()
        finally:
            write(folder, "cleans up")
            for _ in range(1000):
                if (folder / "go on").exists():
                    break
                threading.Event().wait(0.01)
            (folder / "done").touch()

    ref = tidy.remote(tmp_path)
    wait_until("the task runs", (tmp_path / "runs").exists)
    marline.cancel(ref)
    wait_until("the task cleans up", (tmp_path / "cleans up").exists)
    marline.cancel(ref)
    (tmp_path / "go on").touch()
    assert is_cancelled(ref)
    assert (tmp_path / "done").exists()
