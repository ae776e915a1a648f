"""Executors: how many run, which work shares them, what they load, their memory, their output."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import pytest
from harness.clusters import SeparateCluster
from harness.processes import descendants
from harness.waiting import PATIENCE, wait_until

# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def pid() -> int:
    return os.getpid()


@marline.remote
class Sitter:
    def pid(self) -> int:
        return os.getpid()


def executors() -> set[int]:
    """Returns the processes that fork servers have forked."""
    family = descendants(os.getpid())
    servers = {pid for pid in family if is_server(pid)}
    return set().union(*(descendants(server) for server in servers))


def is_server(pid: int) -> bool:
    try:
        return b"marline._executor.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_as_many_as_there_are_cpus_are_started_ahead(cluster: str, tmp_path: Path) -> None:
    wait_until("two executors wait for work", lambda: len(executors()) == 2)
    ahead = executors()

    @marline.remote
    def meet() -> int:
        (tmp_path / str(os.getpid())).touch()
        while len(os.listdir(tmp_path)) < 2:  # Until another executor runs this task, too.
            time.sleep(0.002)
        return os.getpid()

    assert set(marline.get([meet.remote() for _ in range(2)], timeout=PATIENCE)) == ahead


def test_tasks_share_executors_and_an_actor_has_its_own(cluster: str) -> None:
    sitters = [Sitter.remote() for _ in range(2)]
    theirs = marline.get([sitter.pid.remote() for sitter in sitters])
    used = {marline.get(marline.remote(pid).remote()) for _ in range(20)}
    assert len(used) <= 2
    assert len({*theirs, *used}) == 2 + len(used)
    assert marline.get([sitter.pid.remote() for sitter in sitters]) == theirs


class Noting:
    """A function that writes down each process in which it is unpickled. It returns the process id."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__dict__ = state
        with self.file.open("a") as file:
            file.write(f"{os.getpid()}\n")

    def __call__(self) -> int:
        return os.getpid()


def test_later_executors_start_with_the_optional_modules_imported(cluster: str) -> None:
    @marline.remote
    class Looker:
        def has(self, name: str) -> bool:
            return name in sys.modules

    # Executors that were started ahead may not have asyncio yet.
    kept: list[Any] = []

    def later() -> bool:
        kept.append(Looker.remote())
        return bool(marline.get(kept[-1].has.remote("asyncio")))

    wait_until("an executor starts with asyncio imported", later)
    assert marline.get(kept[-1].has.remote("cloudpickle"))


def test_a_function_is_read_once_however_often_it_is_used(cluster: str, tmp_path: Path) -> None:
    file = tmp_path / "read"
    first, second = marline.remote(Noting(file)), marline.remote(Noting(file))
    ran = set(marline.get([function.remote() for _ in range(50) for function in (first, second)]))
    read = file.read_text().split()
    assert len(read) == len(set(read)), "an executor reads equal code of two functions once"
    assert {int(pid) for pid in read} == ran


@pytest.fixture
def separate(tmp_path: Path) -> Iterator[SeparateCluster]:
    before = descendants(os.getpid())
    started = SeparateCluster(tmp_path / "run")
    try:
        yield started
    finally:
        marline.shutdown()
        started.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


def test_an_executor_that_may_not_have_so_much_memory_is_told_and_goes_on(separate: SeparateCluster) -> None:
    separate.worker("--cpus", "1", "--executor-memory", "1GiB")
    marline.init(separate.address, token=separate.token)

    @marline.remote
    def take(size: int) -> tuple[int, int]:
        return len(bytearray(size)), os.getpid()

    _, before = marline.get(take.remote(1 << 20))
    with pytest.raises(MemoryError) as caught:
        marline.get(take.remote(2 << 30))
    assert isinstance(caught.value, marline.TaskError)
    assert marline.get(take.remote(1 << 20)) == (1 << 20, before), "the same executor goes on"


def test_what_each_attempt_printed_is_kept(separate: SeparateCluster, tmp_path: Path) -> None:
    separate.worker("--cpus", "1")
    marline.init(separate.address, token=separate.token, log_to_driver=False)
    file = tmp_path / "tried"

    @marline.remote(retry_exceptions=True)
    def tries() -> None:
        attempt = marline.get_runtime_context().attempt
        print("this is attempt", attempt)
        if not file.exists():
            file.touch()
            raise ConnectionError

    ref = tries.remote()
    marline.get(ref)

    def logs() -> str:
        binary = os.environ.get("MARLINE_BINARY", "marline")
        command = [binary, "logs", ref.task_id()]
        return subprocess.run(
            command, env=separate.environment, capture_output=True, text=True, check=True
        ).stdout

    wait_until(lambda: f"the log has attempt 2: {logs()!r}", lambda: "this is attempt 2" in logs())
