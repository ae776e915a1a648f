"""Tasks may wait for other tasks deeper than there are CPUs, up to a limit that the error names."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.waiting import PATIENCE, wait_until

LIMIT = 3


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLINE_MAX_BLOCKED_EXECUTORS", str(LIMIT))


@marline.remote
def nest(depth: int) -> int:
    return 0 if depth == 0 else 1 + int(marline.get(nest.remote(depth - 1)))


@marline.remote(num_cpus=0)
def late(folder: Path) -> str:
    while not (folder / "open").exists():
        threading.Event().wait(0.005)
    return "late"


@marline.remote
def waits(folder: Path, number: int) -> Any:
    ref = late.remote(folder)
    (folder / str(number)).touch()
    return marline.get(ref)


@pytest.mark.usefixtures("cluster")
def test_tasks_nest_deeper_than_there_are_cpus() -> None:
    assert marline.get(nest.remote(12), timeout=PATIENCE) == 12


@pytest.mark.usefixtures("limited", "cluster")
def test_tasks_nest_up_to_the_limit_and_one_more_is_refused() -> None:
    assert marline.get(nest.remote(LIMIT), timeout=PATIENCE) == LIMIT
    with pytest.raises(marline.ExhaustedError, match=f"{LIMIT} tasks .*max_blocked_executors"):
        marline.get(nest.remote(LIMIT + 1), timeout=PATIENCE)
    # The refused task has freed its place.
    assert marline.get(nest.remote(LIMIT), timeout=PATIENCE) == LIMIT


@pytest.mark.usefixtures("limited", "cluster")
def test_a_task_whose_wait_is_refused_can_go_on(tmp_path: Path) -> None:
    @marline.remote
    def tries(refs: list[marline.ObjectRef]) -> Any:
        with pytest.raises(marline.ExhaustedError):
            marline.get(refs)
        with pytest.raises(marline.ExhaustedError):
            marline.wait(refs)
        # With `timeout=0` the task does not wait, so it is not refused.
        return [len(some) for some in marline.wait(refs, timeout=0)]

    refs = [waits.remote(tmp_path, number) for number in range(LIMIT)]
    files = [tmp_path / str(number) for number in range(LIMIT)]
    wait_until("the tasks run", lambda: all(file.exists() for file in files))
    wait_until("the tasks wait", lambda: marline.available_resources() == {"CPU": 2.0})
    assert marline.get(tries.remote([late.remote(tmp_path)]), timeout=PATIENCE) == [0, 1]
    (tmp_path / "open").touch()
    assert marline.get(refs, timeout=PATIENCE) == ["late"] * LIMIT


@pytest.mark.usefixtures("limited", "cluster")
def test_waiting_actors_do_not_count_against_the_limit() -> None:
    @marline.remote
    class Waits:
        def get(self) -> Any:
            return marline.get(nest.remote(0))

    actors = [Waits.remote() for _ in range(LIMIT + 2)]
    assert marline.get([actor.get.remote() for actor in actors], timeout=PATIENCE) == [0] * (LIMIT + 2)
