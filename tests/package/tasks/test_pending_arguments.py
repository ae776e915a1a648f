"""A pending result can be an argument: `.remote()` never waits for it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.usefixtures("cluster")


@marline.remote(num_cpus=0)
class Gate:
    """An actor whose call `wait` returns when the test makes the file `open`."""

    def wait(self, folder: Path, answer: Any) -> Any:
        (folder / "waits").touch()
        while not (folder / "open").exists():
            threading.Event().wait(0.005)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def two(self, folder: Path) -> Any:
        return self.wait(folder, ("one", "two"))

    def echo(self, value: Any) -> Any:
        return value

    def length(self, values: list[marline.ObjectRef]) -> int:
        return len(values)


@marline.remote(num_cpus=0)
def echo(value: Any, *, other: Any = None) -> Any:
    return value if other is None else (value, other)


@marline.remote(num_cpus=0)
def get(refs: list[marline.ObjectRef]) -> Any:
    return marline.get(refs)


@marline.remote(num_cpus=0)
def opens(folder: Path, refs: list[marline.ObjectRef]) -> Any:
    """Opens the gate, and waits for calls that need the open gate."""
    (folder / "open").touch()
    return marline.get(refs)


def test_a_task_waits_for_a_call_that_has_not_come(tmp_path: Path) -> None:
    gate = Gate.remote()
    ref = echo.remote(gate.wait.remote(tmp_path, 7), other=gate.wait.remote(tmp_path, 8))
    # Work that does not depend on the call goes on.
    assert marline.get(echo.remote("other"), timeout=PATIENCE) == "other"
    assert not ref.done()
    (tmp_path / "open").touch()
    assert marline.get(ref, timeout=PATIENCE) == (7, 8)


def test_each_of_several_results_can_be_passed_on(tmp_path: Path) -> None:
    one, two = Gate.remote().two.options(num_returns=2).remote(tmp_path)
    ref = echo.remote(two, other=one)
    (tmp_path / "open").touch()
    assert marline.get(ref, timeout=PATIENCE) == ("two", "one")


def test_calls_and_constructors_do_not_wait_either(tmp_path: Path) -> None:
    @marline.remote(num_cpus=0)
    class Keeper:
        def __init__(self, value: Any) -> None:
            self.value = value

        def kept(self) -> Any:
            return self.value

    other = Gate.remote()
    pending = Gate.remote().wait.remote(tmp_path, 7)
    called = other.echo.remote(pending)
    kept = Keeper.remote(pending).kept.remote()
    assert not pending.done()
    (tmp_path / "open").touch()
    assert marline.get([called, kept], timeout=PATIENCE) == [7, 7]


def test_a_reference_inside_is_known_before_its_value(tmp_path: Path) -> None:
    gate, other = Gate.remote(), Gate.remote()
    pending = gate.wait.remote(tmp_path, 7)
    assert marline.get(other.length.remote([pending, pending]), timeout=PATIENCE) == 2
    put = marline.put([pending])
    assert not pending.done()
    assert marline.get(opens.remote(tmp_path, [pending]), timeout=PATIENCE) == [7]
    assert marline.get(get.remote(marline.get(put)), timeout=PATIENCE) == [7]


def test_what_a_pending_result_contains_is_kept(tmp_path: Path) -> None:
    gate = Gate.remote()
    ref = get.remote(gate.wait.remote(tmp_path, [marline.put("inside")]))
    (tmp_path / "open").touch()
    assert marline.get(ref, timeout=PATIENCE) == ["inside"]


def test_a_task_fails_as_the_call_did_that_it_waited_for(tmp_path: Path) -> None:
    pending = Gate.remote().wait.remote(tmp_path, LookupError("not there"))
    ref = echo.remote(pending)
    (tmp_path / "open").touch()
    with pytest.raises(LookupError, match="not there"):
        marline.get(ref, timeout=PATIENCE)
    # By now the call has failed: a new task fails in the same way.
    after = echo.remote(pending)
    with pytest.raises(LookupError, match="not there"):
        marline.get(after, timeout=PATIENCE)


def test_a_task_that_waits_can_be_cancelled(tmp_path: Path) -> None:
    gate = Gate.remote()
    pending = gate.wait.remote(tmp_path, 7)
    ref = echo.remote(pending)
    marline.cancel(ref)
    with pytest.raises(marline.TaskCancelledError):
        marline.get(ref, timeout=PATIENCE)
    assert not pending.done()
    (tmp_path / "open").touch()
    assert marline.get(pending, timeout=PATIENCE) == 7


def test_a_task_ends_with_the_call_that_was_cancelled(tmp_path: Path) -> None:
    gate = Gate.remote()
    pending = gate.wait.remote(tmp_path, 7)
    ref = echo.remote(pending)
    wait_until("the call runs", (tmp_path / "waits").exists)
    marline.cancel(pending)
    with pytest.raises(marline.TaskCancelledError):
        marline.get(ref, timeout=PATIENCE)


def test_references_may_go_before_what_they_name_has_come(tmp_path: Path) -> None:
    gate = Gate.remote()
    echo.remote(gate.wait.remote(tmp_path, 7))  # Neither reference is kept.
    kept = echo.remote(gate.wait.remote(tmp_path, 8))
    (tmp_path / "open").touch()
    assert marline.get(kept, timeout=PATIENCE) == 8


def test_a_session_ends_while_a_task_waits(tmp_path: Path) -> None:
    ref = echo.remote(Gate.remote().wait.remote(tmp_path, 7))
    marline.shutdown()
    with pytest.raises(marline.WorkerLostError):
        marline.get(ref, timeout=PATIENCE)


def test_a_task_returns_a_call_that_has_not_come(tmp_path: Path) -> None:
    @marline.remote(num_cpus=0)
    def returns(gate: Any, folder: Path) -> Any:
        return [gate.wait.remote(folder, 7)]

    ref = returns.remote(Gate.remote(), tmp_path)
    wait_until("the call runs", (tmp_path / "waits").exists)
    (tmp_path / "open").touch()
    assert marline.get(marline.get(ref, timeout=PATIENCE), timeout=PATIENCE) == [7]
