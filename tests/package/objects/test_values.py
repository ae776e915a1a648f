"""Values: how large they may be, what keeps them alive, and how processes wait for them."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import gc
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.usefixtures("cluster")

LIMIT = 64 << 20
TOO_LARGE = rf"\d+ bytes pickled, the limit is {LIMIT} \(64 MiB\): pass it in parts, or write a file"


@marline.remote
def add(a: int, b: int = 0) -> int:
    return a + b


@marline.remote
def make(size: int) -> bytes:
    return bytes(size)


@marline.remote
def size_of(*values: bytes) -> int:
    return sum(map(len, values))


@marline.remote
class Keeper:
    def __init__(self, value: Any = b"") -> None:
        self.value = value

    def make(self, size: int) -> bytes:
        return bytes(size)

    def size_of(self, *values: bytes) -> int:
        return sum(map(len, values))

    def keep(self, value: Any) -> None:
        self.value = value

    def kept(self) -> Any:
        return marline.get(self.value[0])

    def call(self) -> Any:
        return marline.get(self.value[0].pid.remote())

    def pid(self) -> int:
        return os.getpid()

    def use_a_library(self) -> bool:
        assert marline.is_initialized()
        with marline.init():
            marline.get(add.remote(1))
        return marline.is_initialized()


def test_values_as_large_as_may_be_travel() -> None:
    size = LIMIT - 1000
    keeper = Keeper.remote()
    assert marline.get(size_of.remote(bytes(size))) == size
    assert len(marline.get(make.remote(size))) == size
    assert marline.get(keeper.size_of.remote(marline.put(bytes(size)))) == size


def test_code_that_is_too_large_is_refused_where_it_is_submitted() -> None:
    large = bytes(LIMIT)
    with pytest.raises(marline.TooLargeError, match=TOO_LARGE):
        marline.remote(lambda: len(large)).remote()


def test_a_value_inside_another_outlives_it_if_its_reference_was_taken_out() -> None:
    outer = marline.put({"a": [marline.put("inner"), add.remote(1, 1)]})
    gc.collect()
    # Releases are sent before this task, so a value that was released is gone after it.
    marline.get(add.remote(1))
    inner = marline.get(outer)["a"]
    del outer
    gc.collect()
    marline.get(add.remote(1))
    assert marline.get(inner) == ["inner", 2]


def test_what_an_actor_keeps_lives_as_long_as_the_actor() -> None:
    keeper, other = Keeper.remote(), Keeper.remote()
    pid = marline.get(other.pid.remote())
    value = marline.put("kept")
    marline.get(keeper.keep.remote([value]))
    del value
    gc.collect()
    marline.get(add.remote(1))
    assert marline.get(keeper.kept.remote()) == "kept"
    marline.get(keeper.keep.remote([other]))
    del other
    gc.collect()
    assert marline.get(keeper.call.remote()) == pid


def test_a_library_that_starts_and_ends_its_session_leaves_that_of_the_actor_alone() -> None:
    keeper = Keeper.remote()
    marline.get(keeper.keep.remote([marline.put("kept")]))
    assert marline.get(keeper.use_a_library.remote())
    assert marline.get(keeper.kept.remote()) == "kept"


def test_a_handle_that_a_task_returns_or_that_was_put_keeps_its_actor() -> None:
    @marline.remote
    def make_one() -> marline.ActorHandle:
        keeper = Keeper.remote()
        marline.get(keeper.pid.remote())
        return keeper

    keeper = marline.get(make_one.remote())
    pid = marline.get(keeper.pid.remote())
    box = marline.put([keeper])
    del keeper
    gc.collect()
    marline.get(add.remote(1))
    (again,) = marline.get(box)
    assert marline.get(again.pid.remote()) == pid
    method = again.pid
    del again, box
    gc.collect()
    assert marline.get(method.remote()) == pid, "a bound method keeps its actor alive, too"


def test_copies_of_references_and_handles_are_the_same_ones() -> None:
    @dataclasses.dataclass
    class Settings:
        value: marline.ObjectRef
        keeper: marline.ActorHandle

    settings = Settings(add.remote(1, 2), Keeper.remote())
    for copied in (dataclasses.asdict(settings), vars(copy.deepcopy(settings)), vars(copy.copy(settings))):
        assert copied["value"] == settings.value and marline.get(copied["value"]) == 3
        assert copied["keeper"] == settings.keeper
    assert copy.copy(settings.value) is settings.value


def test_a_reference_is_not_pickled_by_hand() -> None:
    for thing in (add.remote(1), Keeper.remote()):
        with pytest.raises(TypeError, match="pass it to a task instead"):
            pickle.dumps(thing)


def test_many_wait_for_one_value_each_in_a_loop_of_its_own() -> None:
    slow = marline.remote(time.sleep).remote(0.1)
    came: list[None] = []

    async def wait() -> None:
        came.append(await slow)

    async def wait_twice() -> None:
        await asyncio.gather(wait(), wait())

    threads = [threading.Thread(target=lambda: asyncio.run(wait_twice())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    asyncio.run(wait())  # The value has arrived by now.
    assert len(came) == 7


def test_a_wait_that_is_given_up_does_not_stop_the_task(tmp_path: Path) -> None:
    @marline.remote
    def late() -> str:
        while not (tmp_path / "go").exists():
            time.sleep(0.002)
        return "late"

    ref = late.remote()

    async def wait() -> None:
        await asyncio.wait_for(ref, 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    future = ref.future()
    with pytest.raises(TimeoutError):
        future.result(0.01)
    future.cancel()
    assert not ref.done()
    (tmp_path / "go").touch()
    assert marline.get(ref) == "late"
    wait_until("the task is done", ref.done)


TABLE = bytes(80 << 20)


def test_a_variable_that_makes_code_too_large_is_named() -> None:
    closed_over = bytes(70 << 20)

    def uses_global() -> int:
        return len(TABLE)

    def uses_variable() -> int:
        return len(closed_over)

    class Uses:
        def size(self) -> int:
            return len(closed_over)

    # Only code of `__main__` takes its globals along, and these tests are an importable module.
    uses_global.__module__ = "__main__"
    for code, what in (
        (uses_global, "global TABLE"),
        (uses_variable, "variable closed_over"),
        (Uses, r"Uses uses \.size, variable closed_over"),
    ):
        with pytest.raises(marline.TooLargeError, match=rf"{what}, which has .* marline\.put") as raised:
            marline.remote(code).remote()
        assert "pickled, the limit is" in str(raised.value)


def test_code_that_no_variable_makes_too_large_says_its_size() -> None:
    many = [bytes(1 << 19) for _ in range(140)]
    parts = {f"part_{n}": part for n, part in enumerate(many)}
    source = "def make():\n" + "".join(f"    {name} = parts[{name!r}]\n" for name in parts)
    source += "    def total():\n        return " + " + ".join(f"len({name})" for name in parts) + "\n"
    source += "    return total\n"
    space: dict[str, Any] = {"parts": parts}
    exec(source, space)
    with pytest.raises(
        marline.TooLargeError, match=r"the code, with what it uses: .* bytes pickled"
    ) as raised:
        marline.remote(space["make"]()).remote()
    assert "marline.put" not in str(raised.value)


class InterruptedOnce:
    """A value whose first pickling the user interrupts with Ctrl-C."""

    asked = 0

    def __reduce__(self) -> tuple[type, tuple[int]]:
        InterruptedOnce.asked += 1
        if InterruptedOnce.asked == 1:
            raise KeyboardInterrupt
        return int, (7,)


def test_ctrl_c_while_a_value_is_pickled_is_not_swallowed() -> None:
    InterruptedOnce.asked = 0
    value = InterruptedOnce()
    with pytest.raises(KeyboardInterrupt):
        add.remote(value)
    assert marline.get(add.remote(value)) == 7
