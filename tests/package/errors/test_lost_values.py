"""A lost value fails with `ObjectLostError`, an actor that died with `ActorDiedError`."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.clusters import SeparateCluster
from harness.waiting import PATIENCE, wait_until


@marline.remote(num_cpus=0)
class Shelf:
    def put(self, refs: list[marline.ObjectRef]) -> None:
        self.refs = refs

    def take(self) -> list[marline.ObjectRef]:
        return self.refs

    def hang(self) -> None:
        threading.Event().wait()


@marline.remote(num_cpus=0)
def length(value: Any) -> int:
    return len(value)


@marline.remote(num_cpus=0)
def hang() -> None:
    threading.Event().wait()


@marline.remote(num_cpus=0)
def leaves_one() -> list[marline.ObjectRef]:
    return [hang.remote()]


def dangling_reference() -> marline.ObjectRef:
    """Returns a reference to a value that was never put."""
    return marline.ObjectRef._load(os.urandom(16), 0)


@pytest.mark.usefixtures("cluster")
def test_a_value_that_nobody_has_is_lost() -> None:
    lost = dangling_reference()
    with pytest.raises(marline.ObjectLostError, match=f"{lost.task_id()}.* is lost.*make it again"):
        marline.get(lost, timeout=PATIENCE)


@pytest.mark.usefixtures("cluster")
def test_a_task_that_needs_a_lost_value_says_so() -> None:
    lost = dangling_reference()
    with pytest.raises(marline.ObjectLostError, match=f"{lost.task_id()}.* is lost"):
        marline.get(length.remote(lost), timeout=PATIENCE)
    later = length.remote(length.remote(lost))
    with pytest.raises(marline.ObjectLostError, match="depends on"):
        marline.get(later, timeout=PATIENCE)


@pytest.mark.usefixtures("cluster")
def test_what_only_a_killed_process_waited_for_is_lost(tmp_path: Path) -> None:
    @marline.remote(num_cpus=0, max_retries=0)
    def waits(shelf: Any, other: Any) -> None:
        marline.get(shelf.put.remote([other.hang.remote()]))
        (tmp_path / "writes").write_text(str(os.getpid()))
        (tmp_path / "writes").rename(tmp_path / "pid")
        threading.Event().wait()

    shelf, other = Shelf.remote(), Shelf.remote()
    ref = waits.remote(shelf, other)
    wait_until("the task waits", (tmp_path / "pid").exists)
    (lost,) = marline.get(shelf.take.remote(), timeout=PATIENCE)
    assert not lost.done()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    with pytest.raises(marline.ObjectLostError, match="is lost: the process that waited for it"):
        marline.get(lost, timeout=PATIENCE)
    with pytest.raises(marline.WorkerLostError):
        marline.get(ref, timeout=PATIENCE)


@pytest.mark.usefixtures("cluster")
def test_an_actor_that_is_gone_has_died() -> None:
    shelf = Shelf.remote()
    running = shelf.hang.remote()
    marline.kill(shelf)
    for ref in (running, shelf.take.remote()):
        with pytest.raises(marline.ActorDiedError):
            marline.get(ref, timeout=PATIENCE)
    with pytest.raises(marline.ActorDiedError, match="depends on"):
        marline.get(length.remote(running), timeout=PATIENCE)


def test_values_are_lost_with_their_cluster(tmp_path: Path) -> None:
    separate = SeparateCluster(tmp_path)
    try:
        separate.worker("--cpus", "1")
        with marline.init(separate.address, token=separate.token):
            (lost,) = marline.get(leaves_one.remote(), timeout=PATIENCE)
            mine = hang.remote()
            assert not lost.done()
            separate.processes[0].kill()
            with pytest.raises(marline.ObjectLostError, match=f"{lost.task_id()}.* is lost to this process"):
                marline.get(lost, timeout=PATIENCE)
            with pytest.raises(marline.WorkerLostError):
                marline.get(mine, timeout=PATIENCE)
    finally:
        separate.end()


@pytest.mark.parametrize("kind", ["task", "call", "coroutine"])
def test_values_that_a_result_refers_to_survive_if_the_result_arrives_late(tmp_path: Path, kind: str) -> None:
    """An executor sends releases straight to the controller, but results through its worker.

    Here the worker is stopped, so that the release of the inner value arrives long before the
    result that refers to it.
    """

    class Giver:
        def give(self, running: str, go: str) -> list[marline.ObjectRef]:
            Path(running).write_text(str(os.getpid()))
            while not os.path.exists(go):
                time.sleep(0.001)
            return [marline.put("deep")]

        async def give_later(self, running: str, go: str) -> list[marline.ObjectRef]:
            return self.give(running, go)

    class Plain:
        give = Giver.give

    make = {
        "task": lambda: marline.remote(Plain().give),
        "call": lambda: marline.remote(Plain).remote().give,
        "coroutine": lambda: marline.remote(Giver).remote().give_later,
    }[kind]
    running = SeparateCluster(tmp_path)
    try:
        running.worker("--cpus=2")
        worker = running.processes[1]
        with marline.init(running.address, token=running.token):
            give = make()
            for number in range(3):
                begun, go = tmp_path / f"begun{number}", tmp_path / f"go{number}"
                ref = give.remote(str(begun), str(go))
                wait_until("the task runs", lambda begun=begun: begun.exists() and begun.read_text() != "")
                worker.send_signal(signal.SIGSTOP)
                go.touch()
                wait_until("the task has returned", lambda begun=begun: is_asleep(int(begun.read_text())))
                worker.send_signal(signal.SIGCONT)
                (inner,) = marline.get(ref)
                del ref
                assert marline.get(inner) == "deep"
    finally:
        running.end()


def is_asleep(pid: int) -> bool:
    """Returns whether no thread of a process ran for 50 ms."""
    before = switches(pid)
    time.sleep(0.05)
    return switches(pid) == before


def switches(pid: int) -> list[str]:
    """Returns the counters of context switches of each thread of a process."""
    threads = sorted(Path(f"/proc/{pid}/task").iterdir())
    lines = [line for thread in threads for line in (thread / "status").read_text().splitlines()]
    return [line for line in lines if "ctxt" in line]
