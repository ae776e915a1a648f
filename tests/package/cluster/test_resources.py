"""Resources decide where work runs and what it gets: CPUs, GPUs, memory, and custom resources."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import marline
import pytest
from harness.clusters import SeparateCluster
from harness.processes import descendants
from harness.waiting import wait_until

Start = Callable[..., None]


@pytest.fixture(params=["embedded", "separate"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """A function that starts a cluster whose one worker has the given resources."""
    ends: list[Callable[[], None]] = []

    def embedded(num_gpus: int = 0, memory: int | None = None, **resources: float) -> None:
        ends.append(marline.shutdown)
        marline.init(num_cpus=2, num_gpus=num_gpus, memory=memory, resources=resources)

    def separate(num_gpus: int = 0, memory: int | None = None, **resources: float) -> None:
        running = SeparateCluster(tmp_path)
        ends.append(running.end)
        words = [f"--resource={name}={amount}" for name, amount in resources.items()]
        words += [f"--memory={memory}"] if memory is not None else []
        running.worker("--cpus=2", f"--gpus={num_gpus}", *words)
        ends.append(marline.shutdown)
        marline.init(running.address, token=running.token)

    yield embedded if request.param == "embedded" else separate
    for end in reversed(ends):
        end()


@marline.remote
def look() -> tuple[str | None, tuple[int, ...], int]:
    """Returns the GPUs of the environment and of the runtime context, and the process."""
    return os.environ.get("CUDA_VISIBLE_DEVICES"), marline.get_runtime_context().gpu_ids, os.getpid()


def test_a_task_sees_the_gpus_it_was_given_and_no_other_does(start: Start) -> None:
    start(num_gpus=2)
    shown, gpu_ids, pid = marline.get(look.options(num_gpus=2, num_cpus=0).remote())
    assert (shown, gpu_ids) == ("0,1", (0, 1))
    for _ in range(4):
        shown, gpu_ids, other = marline.get(look.remote())
        assert (shown, gpu_ids) == (None, ())
        assert other != pid, "an executor that used a GPU ends, since the GPU's driver keeps state of it"


def test_tasks_that_run_side_by_side_have_different_gpus(start: Start, tmp_path: Path) -> None:
    start(num_gpus=2)

    @marline.remote(num_gpus=1, num_cpus=0)
    def hold(name: str) -> str:
        (tmp_path / name).touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.002)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    held = [hold.remote("first"), hold.remote("second")]
    wait_until("both tasks run", lambda: (tmp_path / "first").exists() and (tmp_path / "second").exists())
    third = hold.remote("third")
    ready, _ = marline.wait([third], timeout=0.2)
    assert not ready and not (tmp_path / "third").exists()
    assert marline.available_resources().get("GPU", 0) == 0
    (tmp_path / "go").touch()
    assert sorted(marline.get(held)) == ["0", "1"]
    assert marline.get(third) in ("0", "1")


def test_an_actor_has_its_gpus_from_its_first_line_on(start: Start) -> None:
    start(num_gpus=2)

    @marline.remote(num_gpus=1)
    class Model:
        def __init__(self) -> None:
            self.device = os.environ["CUDA_VISIBLE_DEVICES"]

        def look(self) -> tuple[str, str, tuple[int, ...]]:
            return self.device, os.environ["CUDA_VISIBLE_DEVICES"], marline.get_runtime_context().gpu_ids

    models = [Model.remote() for _ in range(2)]
    looks = marline.get([model.look.remote() for model in models])
    assert sorted(looks) == [("0", "0", (0,)), ("1", "1", (1,))]


def test_half_a_gpu_is_shared(start: Start) -> None:
    start(num_gpus=1)

    @marline.remote(num_gpus=0.5)
    class Half:
        def look(self) -> str:
            return os.environ["CUDA_VISIBLE_DEVICES"]

    halves = [Half.remote(), Half.remote()]
    assert marline.get([half.look.remote() for half in halves]) == ["0", "0"]


def test_a_worker_gives_out_the_gpus_that_it_sees(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    start(num_gpus=2)
    assert marline.get(look.options(num_gpus=2).remote())[:2] == ("3,GPU-5", (0, 1))


def test_custom_resources_and_memory_are_taken_and_given_back(start: Start) -> None:
    start(licence=2, memory=1 << 30)
    assert marline.cluster_resources()["licence"] == 2

    @marline.remote(resources={"licence": 1.5}, memory=600 << 20)
    def use() -> dict[str, float]:
        return marline.available_resources()

    left = marline.get(use.remote())
    assert left["licence"] == 0.5
    assert left["memory"] == (1 << 30) - (600 << 20)
    wait_until("the resource is given back", lambda: marline.available_resources()["licence"] == 2)


def test_tasks_that_need_more_than_half_of_the_memory_take_turns(start: Start, tmp_path: Path) -> None:
    start(memory=1 << 30)

    @marline.remote(memory=600 << 20)
    def alone(name: str) -> bool:
        (tmp_path / name).touch()
        both = len(list(tmp_path.glob("use-*"))) > 1
        (tmp_path / name).unlink()
        return both

    assert not any(marline.get([alone.remote(f"use-{number}") for number in range(20)]))


def test_a_task_that_fits_no_worker_waits_and_can_be_cancelled(start: Start) -> None:
    start()
    waits = look.options(resources={"moon": 1}).remote()
    with pytest.raises(TimeoutError):
        marline.get(waits, timeout=0.2)
    marline.cancel(waits)
    with pytest.raises(marline.TaskCancelledError):
        marline.get(waits)


def test_calls_beyond_max_pending_calls_are_refused(start: Start, tmp_path: Path) -> None:
    start()

    @marline.remote(max_pending_calls=3)
    class Slow:
        def wait(self) -> None:
            while not (tmp_path / "go").exists():
                time.sleep(0.002)

    slow = Slow.remote()
    calls = [slow.wait.remote() for _ in range(50)]
    refused = []
    wait_until(
        "some calls are refused", lambda: bool(refused or refused.extend(marline.wait(calls, timeout=1)[0]))
    )
    with pytest.raises(marline.ExhaustedError, match="max_pending_calls"):
        marline.get(refused[0])
    (tmp_path / "go").touch()
    ended = [call for call in calls if _ends_well(call)]
    assert 1 <= len(ended) < 50


def _ends_well(call: marline.ObjectRef[None]) -> bool:
    try:
        marline.get(call)
    except marline.ExhaustedError as error:
        assert "max_pending_calls" in str(error)
        return False
    return True


def test_an_actor_that_is_not_preemptible_waits_for_a_worker_that_is_not(tmp_path: Path) -> None:
    running = SeparateCluster(tmp_path)
    try:
        running.worker("--cpus=2", "--preemptible")
        for option in ({"num_cpus": 2}, {"object_store_memory": 10**8}, {"object_spilling_directory": ""}):
            (name,) = option
            with pytest.raises(marline.InvalidError, match=rf"^{name} is for a cluster that starts here"):
                marline.init(running.address, token=running.token, **option)  # type: ignore[arg-type]
        assert not marline.is_initialized()
        with marline.init(running.address, token=running.token):

            @marline.remote
            class Where:
                def executor(self) -> int:
                    return os.getpid()

            stays = Where.options(preemptible=False).remote()
            placed = stays.executor.remote()
            moves = marline.get(Where.remote().executor.remote())
            assert moves in descendants(running.processes[1].pid)
            assert marline.wait([placed], timeout=0.2)[0] == []
            running.worker("--cpus=2")
            assert marline.get(placed) in descendants(running.processes[2].pid)
    finally:
        running.end()
