"""Work inherits the deadline of the task or call that submits it, and ends by then."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("cluster")

# A timeout in seconds that no work here reaches.
LONG = 1000.0


def left() -> float | None:
    return marline.get_runtime_context().deadline


left.__module__ = "__main__"


@marline.remote
def task() -> float | None:
    return left()


@marline.remote
def hang() -> None:
    threading.Event().wait()


@marline.remote
class Actor:
    def left(self) -> float | None:
        return left()

    def hang(self, runs: Path | None = None) -> None:
        if runs is not None:
            runs.touch()
        threading.Event().wait()

    def nested(self, other: Any) -> Any:
        own = left()
        return own, marline.get([task.remote(), other.left.remote()])


@marline.remote
class Async:
    async def left(self) -> float | None:
        return left()

    async def nested(self, other: Any) -> Any:
        own = left()
        return own, [await task.remote(), await other.left.remote()]


@marline.remote
def nested(other: Any) -> Any:
    own = left()
    short = marline.get(
        [task.options(timeout=LONG / 4).remote(), other.left.options(timeout=LONG / 4).remote()]
    )
    longer = task.options(timeout=2 * LONG), other.left.options(timeout=2 * LONG)
    return own, short, marline.get([task.remote(), other.left.remote(), *(one.remote() for one in longer)])


def test_without_a_timeout_there_is_no_deadline() -> None:
    assert left() is None
    assert marline.get(task.remote()) is None
    assert marline.get(nested.remote(Actor.remote()))[2][:2] == [None, None]


def test_tasks_and_calls_have_no_more_time_than_the_task_that_submits_them() -> None:
    own, short, inherited = marline.get(nested.options(timeout=LONG).remote(Actor.remote()))
    assert 0 < own <= LONG
    assert all(0 < one <= LONG / 4 for one in short), "a shorter timeout of the work itself counts"
    assert all(0 < one <= LONG for one in inherited), inherited


@pytest.mark.parametrize("actor", [Actor, Actor.options(max_concurrency=4), Async])
def test_calls_pass_on_their_deadline(actor: Any) -> None:
    call = actor.remote().nested.options(timeout=LONG)
    own, inherited = marline.get(call.remote(Actor.remote()))
    assert 0 < own <= LONG
    assert all(0 < one <= LONG for one in inherited), inherited


def test_work_that_hangs_ends_at_the_deadline_of_its_submitter() -> None:
    @marline.remote(timeout=1)
    def submits(actor: Any) -> Any:
        return [hang.remote(), actor.hang.remote()][:1]

    @marline.remote
    def waits(actor: Any) -> Any:
        return marline.get(actor.hang.remote())

    (ref,) = marline.get(submits.remote(Actor.remote()))
    with pytest.raises(marline.GetTimeoutError, match="took longer than its timeout"):
        marline.get(ref)
    with pytest.raises(marline.GetTimeoutError):
        marline.get(waits.options(timeout=1).remote(Actor.remote()))


def test_a_call_waits_for_its_turn_in_its_caller_s_time(tmp_path: Path) -> None:
    actor = Actor.remote()
    blocks = actor.hang.remote(tmp_path / "runs")
    # Calls of other callers may overtake this call before it runs.
    wait_until("the call runs", (tmp_path / "runs").exists)

    @marline.remote(timeout=1)
    def calls(actor: Any) -> str:
        called = actor.left.remote()
        # The deadline also stops the caller itself. It goes on, to see what becomes of the call.
        with contextlib.suppress(marline.TaskCancelledError):
            threading.Event().wait()
        try:
            return f"the call returned {marline.get(called)}"
        except (marline.GetTimeoutError, marline.TaskCancelledError):
            # By its deadline, or cancelled with its caller, whichever came first.
            return "the call ended"

    assert marline.get(calls.remote(actor)) == "the call ended"
    marline.cancel(blocks)


def test_nothing_is_submitted_when_no_time_is_left() -> None:
    @marline.remote(timeout=1)
    def late() -> str:
        with contextlib.suppress(marline.TaskCancelledError):
            threading.Event().wait()
        try:
            return f"submitted: {task.remote()}"
        except marline.GetTimeoutError as error:
            return str(error)

    assert "no time left" in marline.get(late.remote())
