"""Actors restart from their last checkpoint, and actors end themselves."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import marline
import pytest

EVERY = 5


@marline.remote(max_restarts=-1, max_task_retries=0, checkpoint_every=EVERY)
class Sum:
    """An actor that saves its sum after every `EVERY` calls."""

    def __init__(self, start: int = 0) -> None:
        self.total = start

    def add(self, n: int) -> int:
        self.total += n
        return self.total

    def pid(self) -> int:
        return os.getpid()

    def save_checkpoint(self) -> dict[str, int]:
        return {"total": self.total}

    def load_checkpoint(self, state: dict[str, int]) -> None:
        self.total = state["total"]


def until_answered(call: Any) -> Any:
    """Repeats a call until the actor is back, and returns the result. Lost calls have no effect."""
    for _ in range(100):
        try:
            return marline.get(call(), timeout=60)
        except (marline.WorkerLostError, marline.ActorUnavailableError):
            continue
    raise AssertionError("the actor did not come back")


@pytest.mark.parametrize("calls", [1, EVERY - 1, EVERY, EVERY + 1, 4 * EVERY])
def test_a_killed_actor_forgets_no_more_calls_than_it_may(cluster: Any, calls: int) -> None:
    actor = Sum.remote()
    pid = marline.get(actor.pid.remote())
    assert marline.get([actor.add.remote(1) for _ in range(calls)]) == list(range(1, calls + 1))
    os.kill(pid, signal.SIGKILL)
    assert until_answered(lambda: actor.add.remote(0)) >= calls - EVERY


def test_a_checkpoint_that_was_asked_for_is_stored_when_the_call_is_answered(cluster: Any) -> None:
    actor = Sum.options(checkpoint_every=None).remote()
    marline.get([actor.add.remote(1) for _ in range(7)])
    assert marline.get(actor.save_checkpoint.remote()) == {"total": 7}
    os.kill(marline.get(actor.pid.remote()), signal.SIGKILL)
    assert until_answered(lambda: actor.add.remote(0)) == 7


def test_without_a_checkpoint_an_actor_restarts_from_its_constructor(cluster: Any) -> None:
    actor = Sum.options(checkpoint_every=1000).remote(100)
    marline.get(actor.add.remote(1))
    os.kill(marline.get(actor.pid.remote()), signal.SIGKILL)
    assert until_answered(lambda: actor.add.remote(0)) == 100


@marline.remote(max_restarts=-1, checkpoint_every=1)
class Async:
    def __init__(self) -> None:
        self.seen: list[int] = []

    async def see(self, n: int) -> int:
        await asyncio.sleep(0)
        self.seen.append(n)
        return os.getpid()

    async def all(self) -> list[int]:
        return sorted(self.seen)

    async def save_checkpoint(self) -> list[int]:
        return self.seen

    async def load_checkpoint(self, state: list[int]) -> None:
        self.seen = state


def test_an_async_actor_is_saved_too(cluster: Any) -> None:
    actor = Async.remote()
    pids = marline.get([actor.see.remote(n) for n in range(20)])
    os.kill(pids[0], signal.SIGKILL)
    assert len(until_answered(lambda: actor.all.remote())) >= 19


@marline.remote(max_restarts=-1, max_task_retries=-1)
class Fragile:
    """An actor that can read its first checkpoint only."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self) -> int:
        self.calls += 1
        return self.calls

    def pid(self) -> int:
        return os.getpid()

    def save_checkpoint(self) -> int:
        return self.calls

    def load_checkpoint(self, calls: int) -> None:
        if calls >= 2:
            raise ValueError("a broken checkpoint")
        self.calls = calls


def test_a_checkpoint_that_cannot_be_read_gives_way_to_the_one_before(cluster: Any) -> None:
    actor = Fragile.remote()
    pid = marline.get(actor.pid.remote())
    for calls in (1, 2):
        assert marline.get(actor.call.remote()) == calls
        assert marline.get(actor.save_checkpoint.remote()) == calls
    os.kill(pid, signal.SIGKILL)
    assert marline.get(actor.call.remote()) == 2, "the first checkpoint, with one call, was loaded"


def test_an_actor_whose_checkpoints_cannot_be_read_says_why(cluster: Any) -> None:
    actor = Fragile.remote()
    pid = marline.get(actor.pid.remote())
    for calls in (1, 2, 3):
        assert marline.get(actor.call.remote()) == calls
        assert marline.get(actor.save_checkpoint.remote()) == calls
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ValueError, match="a broken checkpoint"):
        marline.get(actor.call.remote())


def test_options_without_the_methods_make_no_sense(cluster: Any) -> None:
    @marline.remote(checkpoint_every=3)
    class Plain:
        pass

    with pytest.raises(TypeError, match="save_checkpoint"):
        Plain.remote()
    with pytest.raises(ValueError, match="checkpoint_every must be a whole number, 1 or more, not 0"):
        marline.get(Sum.options(checkpoint_every=0).remote().add.remote(1))


@marline.remote(max_restarts=-1)
class QuitsAsync:
    async def quit(self) -> None:
        marline.exit_actor()


def test_an_actor_can_end_itself(cluster: Any, tmp_path: Path) -> None:
    @marline.remote(max_restarts=-1)
    class Quits:
        def quit(self, file: str) -> None:
            import atexit

            atexit.register(Path(file).write_text, "over")
            marline.exit_actor()

        def later(self) -> str:
            return "here"

    actor = Quits.remote()
    quitting = actor.quit.remote(str(tmp_path / "end"))
    later = actor.later.remote()
    assert marline.get(quitting) is None
    with pytest.raises(marline.ActorDiedError, match="ended itself"):
        marline.get(later)
    with pytest.raises(marline.ActorDiedError, match="ended itself"):
        marline.get(actor.later.remote())
    assert (tmp_path / "end").read_text() == "over"


def test_an_async_actor_can_end_itself(cluster: Any) -> None:
    actor = QuitsAsync.remote()
    assert marline.get(actor.quit.remote()) is None
    with pytest.raises(marline.ActorDiedError, match="ended itself"):
        marline.get(actor.quit.remote())


def test_only_actors_end_themselves(cluster: Any) -> None:
    with pytest.raises(RuntimeError, match="methods of actors"):
        marline.exit_actor()


def test_a_killed_actor_is_restarted_if_the_kill_allows_it(cluster: Any) -> None:
    actor = Sum.remote(3)
    pid = marline.get(actor.pid.remote())
    marline.kill(actor, no_restart=False)
    assert until_answered(lambda: actor.pid.remote()) != pid
    marline.kill(actor)
    with pytest.raises(marline.ActorDiedError):
        marline.get(actor.pid.remote())
