"""With `MARLINE_START_METHOD=spawn`, each executor is a new Python instead of a fork."""

from __future__ import annotations

import os
from pathlib import Path

import marline
import pytest


@pytest.fixture(autouse=True)
def embedded(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("MARLINE_START_METHOD", "spawn")
    monkeypatch.delenv("MARLINE_ADDRESS", raising=False)
    with marline.init(num_cpus=2) as running:
        yield running


@marline.remote
def program() -> tuple[int, str]:
    return os.getpid(), Path("/proc/self/cmdline").read_text()


@marline.remote
def nested(x: int) -> int:
    @marline.remote
    def inner(y: int) -> int:
        return y + 1

    return int(marline.get(inner.remote(x)))


@marline.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


def test_an_executor_is_a_program_of_its_own() -> None:
    pid, command = marline.get(program.remote())
    assert pid != os.getpid() and "marline._executor.spawned" in command


def test_a_spawned_executor_runs_nested_tasks_and_actors() -> None:
    assert marline.get(nested.remote(1)) == 2, "a spawned executor can submit tasks"
    counter = Counter.remote()
    assert marline.get([counter.add.remote() for _ in range(3)]) == [1, 2, 3]


def test_an_unknown_start_method_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    marline.shutdown()
    monkeypatch.setenv("MARLINE_START_METHOD", "forkserver")
    with pytest.raises(ValueError, match="'fork' or 'spawn'"):
        marline.init()
