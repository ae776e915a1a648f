"""`marline.scope()`: a scope that fails cancels the work submitted in it, and waits for its end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.usefixtures("cluster")


@marline.remote
def hang(started: Path | None = None) -> None:
    if started is not None:
        started.touch()
    threading.Event().wait()


@marline.remote
class Actor:
    def hang(self) -> None:
        threading.Event().wait()

    def answer(self) -> int:
        return 42


@marline.remote
def one() -> int:
    return 1


def is_cancelled(ref: marline.ObjectRef) -> bool:
    with pytest.raises(marline.TaskCancelledError):
        marline.get(ref, timeout=PATIENCE)
    return True


def test_a_scope_that_fails_cancels_its_work_and_waits_for_it(tmp_path: Path) -> None:
    started = tmp_path / "started"
    actor = Actor.remote()
    refs = []
    with pytest.raises(KeyError, match="the first"), marline.scope():
        refs += [hang.remote(started), hang.options(num_cpus=2).remote(), actor.hang.remote()]
        wait_until("one task runs", started.exists)
        raise KeyError("the first")
    assert all(ref.done() for ref in refs), "the scope waited until all work had ended"
    assert all(is_cancelled(ref) for ref in refs)
    assert marline.get(actor.answer.remote()) == 42


def test_a_scope_that_ends_well_waits_for_nothing_and_cancels_nothing() -> None:
    with marline.scope():
        ref, soon = hang.remote(), one.remote()
    assert not ref.done()
    assert marline.get(soon) == 1
    marline.cancel(ref)
    assert is_cancelled(ref)


def test_an_interrupt_cancels_too(tmp_path: Path) -> None:
    started = tmp_path / "started"
    refs = []
    with pytest.raises(KeyboardInterrupt), marline.scope():
        refs.append(hang.remote(started))
        wait_until("the task runs", started.exists)
        os.kill(os.getpid(), signal.SIGINT)
        marline.get(refs)
    assert refs[0].done()
    assert is_cancelled(refs[0])


def test_work_without_references_is_cancelled_too(tmp_path: Path) -> None:
    started, stopped = tmp_path / "started", tmp_path / "stopped"

    @marline.remote
    def stubborn() -> None:
        try:
            started.touch()
            threading.Event().wait()
        finally:
            stopped.touch()

    with pytest.raises(KeyError), marline.scope():
        stubborn.remote()
        wait_until("the task runs", started.exists)
        raise KeyError
    assert stopped.exists()


def test_inner_scopes_are_part_of_outer_ones() -> None:
    with pytest.raises(KeyError), marline.scope():
        with marline.scope():
            inner = hang.remote()
        assert not inner.done()
        raise KeyError
    assert inner.done() and is_cancelled(inner)


def test_an_inner_scope_that_fails_leaves_the_outer_one_alone() -> None:
    with marline.scope():
        outer = hang.remote()
        with pytest.raises(KeyError), marline.scope():
            inner = hang.remote()
            raise KeyError
        assert inner.done() and is_cancelled(inner)
        assert not outer.done()
    marline.cancel(outer)
    assert is_cancelled(outer)


def test_actors_that_were_made_inside_live_on() -> None:
    with pytest.raises(KeyError), marline.scope():
        actor = Actor.remote()
        raise KeyError
    assert marline.get(actor.answer.remote()) == 42


def test_work_that_other_threads_submit_does_not_belong_to_the_scope() -> None:
    refs: list[marline.ObjectRef] = []
    with pytest.raises(KeyError), marline.scope():
        thread = threading.Thread(target=lambda: refs.append(hang.remote()))
        thread.start()
        thread.join()
        raise KeyError
    assert not refs[0].done()
    marline.cancel(refs[0])
    assert is_cancelled(refs[0])


def test_a_cancelled_coroutine_cancels_the_work_of_its_scope(tmp_path: Path) -> None:
    started = tmp_path / "started"
    refs: list[marline.ObjectRef] = []

    async def submits() -> None:
        async with marline.scope():
            refs.append(hang.remote(started))
            refs.append(Actor.remote().hang.remote())
            await asyncio.gather(*refs)

    async def main() -> None:
        task = asyncio.create_task(submits())
        other = hang.remote()
        await asyncio.to_thread(wait_until, "the task runs", started.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert all(ref.done() for ref in refs)
        assert not other.done(), "work from outside the scope goes on"
        marline.cancel(other)

    asyncio.run(main())
    assert all(is_cancelled(ref) for ref in refs)


def test_work_that_another_coroutine_submits_after_the_scope_failed_is_cancelled() -> None:
    async def main() -> marline.ObjectRef:
        async def straggles(left: asyncio.Event) -> marline.ObjectRef:
            await left.wait()
            ref: marline.ObjectRef = hang.remote()
            return ref

        left = asyncio.Event()
        with pytest.raises(KeyError):
            async with marline.scope():
                straggler = asyncio.create_task(straggles(left))
                raise KeyError
        left.set()
        return await straggler

    assert is_cancelled(asyncio.run(main()))


@pytest.mark.parametrize("is_async", [False, True])
def test_scopes_work_in_tasks(is_async: bool) -> None:
    def fails() -> Any:
        refs = []
        try:
            with marline.scope():
                refs.append(hang.remote())
                raise KeyError
        except KeyError:
            return [ref.done() for ref in refs]

    async def fails_async() -> Any:
        refs = []
        try:
            async with marline.scope():
                refs.append(hang.remote())
                raise KeyError
        except KeyError:
            return [ref.done() for ref in refs]

    assert marline.get(marline.remote(fails_async if is_async else fails).remote()) == [True]


def test_a_scope_is_entered_once_at_a_time() -> None:
    scope = marline.scope()
    with scope, pytest.raises(RuntimeError, match="entered already"), scope:
        pass
    with scope:
        assert marline.get(one.remote()) == 1
