"""Work keeps its promises while processes are killed: fifty kills, then a check of every result.

The promises: work with retries gives its result, work without retries runs at most once, calls of
an actor run in order in one process for each epoch, and nothing of the cluster is left at the end.
Kills and freezes at random, for longer, are in `test_faults.py`.

Each run prints its seed. `MARLINE_CHAOS_SEED` repeats the choices of a run, but not how the system
schedules it.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.clusters import SeparateCluster
from harness.processes import is_alive
from harness.waiting import PATIENCE, wait_until

WORKERS = 3
# How often each kind of process is killed. Each kill is a round.
KILLS = {"executor": 14, "worker": 10, "fork server": 12, "actor": 14}
# How many retried tasks a round submits, and how many calls of each actor.
TASKS = 8
CALLS = 6
# After this many rounds the actors are replaced.
ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class RanAttempt:
    """A line of the log: an attempt that ran, and its process. Epoch and count are 0 for tasks."""

    kind: str
    number: int
    attempt: int
    epoch: int
    count: int
    pid: int


class Log:
    """The file to which every attempt adds a line before it does anything else."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def read(self) -> list[RanAttempt]:
        lines = [line.split() for line in self.file.read_text().splitlines()]
        return [RanAttempt(kind, *(int(word) for word in words)) for kind, *words in lines]


class ChaosCluster(SeparateCluster):
    """A controller, and workers that can be killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        for _ in range(WORKERS):
            self.worker("--cpus", "2")

    @property
    def workers(self) -> list[subprocess.Popen[str]]:
        return self.processes[1:]

    def live_processes(self) -> dict[int, tuple[int, list[str]]]:
        """Returns all live processes of this cluster, also orphans: id, parent and command line."""
        mark = f"XDG_RUNTIME_DIR={self.folder}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or mark not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            found[int(entry.name)] = parent, words
        return found

    def fork_servers(self) -> list[int]:
        workers = {worker.pid for worker in self.workers}
        family = self.live_processes().items()
        return [
            pid
            for pid, (parent, words) in family
            if parent in workers and "marline._executor.forkserver" in words
        ]

    def forks(self) -> list[int]:
        """Returns the executors, also those whose fork server is dead."""
        workers = {worker.pid for worker in self.workers}
        family = self.live_processes().items()
        return [
            pid
            for pid, (parent, words) in family
            if parent not in workers and "marline._executor.forkserver" in words
        ]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ChaosCluster]:
    started = ChaosCluster(tmp_path / "run")
    try:
        with marline.init(started.address, token=started.token):
            yield started
    finally:
        started.end()
    wait_until("every process of the cluster has ended", lambda: not started.live_processes())
    run = tmp_path / "run"
    wait_until("no file or socket is left", lambda: all(entry.is_dir() for entry in run.rglob("*")))


@marline.remote
def work(log: str, kind: str, number: int, seconds: float) -> int:
    attempt = marline.get_runtime_context().attempt
    with open(log, "a") as lines:
        lines.write(f"{kind} {number} {attempt} 0 0 {os.getpid()}\n")
    time.sleep(seconds)
    return number * number


@marline.remote(max_restarts=-1)
class Counter:
    def __init__(self, log: str, kind: str) -> None:
        self.log, self.kind, self.count = log, kind, 0

    def add(self, number: int, seconds: float) -> tuple[int, int, int]:
        context = marline.get_runtime_context()
        self.count += 1
        with open(self.log, "a") as lines:
            lines.write(
                f"{self.kind} {number} {context.attempt} {context.actor_epoch} {self.count} {os.getpid()}\n"
            )
        time.sleep(seconds)
        assert context.attempt is not None and context.actor_epoch is not None
        return context.attempt, context.actor_epoch, self.count


class Chaos:
    """Runs the rounds, and records the answers of their work."""

    def __init__(self, cluster: ChaosCluster, log: Log, choice: random.Random) -> None:
        self.cluster, self.log, self.choice = cluster, log, choice
        self.actors: dict[str, marline.ActorHandle] = {}
        self.next = 0
        # By actor and number of the call: the attempt, epoch and count that the call returned.
        self.answers: dict[str, dict[int, tuple[int, int, int]]] = {}
        # The work whose error said that it had not run.
        self.never_ran: set[tuple[str, int]] = set()

    def renew(self, rounds: int) -> None:
        """Replaces the actors, since an actor that dies often waits longer before each restart."""
        self.actors = {}
        for name, retries in (("stubborn", -1), ("timid", 0)):
            kind = f"{name}-{rounds}"
            actor = Counter.options(max_task_retries=retries).remote(str(self.log.file), kind)
            self.actors[kind], self.answers[kind] = actor, {}

    def round(self, victim: str) -> None:
        before = len(self.log.read())
        asked = self.submit()
        some = before + self.choice.randint(1, TASKS)
        wait_until("some of the work runs", lambda: len(self.log.read()) >= some)
        self.kill(victim)
        for kind, number, ref in asked:
            self.check(kind, number, ref)

    def submit(self) -> list[tuple[str, int, marline.ObjectRef]]:
        asked = []
        file = str(self.log.file)
        for kind in ["retried"] * TASKS + ["once"] * 2 + [*self.actors] * CALLS:
            self.next += 1
            number, seconds = self.next, self.choice.uniform(0, 0.03)
            if kind == "retried":
                ref = work.options(max_retries=-1).remote(file, kind, number, seconds)
            elif kind == "once":
                ref = work.options(max_retries=0).remote(file, kind, number, seconds)
            else:
                ref = self.actors[kind].add.remote(number, seconds)
            asked.append((kind, number, ref))
        return asked

    def check(self, kind: str, number: int, ref: marline.ObjectRef) -> None:
        try:
            value: Any = marline.get(ref, timeout=PATIENCE)
        except marline.WorkerLostError as error:
            assert may_fail(kind), f"{kind} {number} has retries and must not fail: {error}"
            if not error.may_have_run:
                self.never_ran.add((kind, number))
            return
        if kind in self.answers:
            self.answers[kind][number] = value
        else:
            assert value == number * number

    def kill(self, victim: str) -> None:
        if victim == "worker":
            worker = self.choice.choice(self.cluster.workers)
            worker.kill()
            worker.wait()
            self.cluster.processes.remove(worker)
            self.cluster.worker("--cpus", "2")
            return
        if victim == "fork server":
            pids = self.cluster.fork_servers()
        elif victim == "actor":
            pids = self.homes()
        else:
            homes = self.homes()
            pids = [pid for pid in self.cluster.forks() if pid not in homes]
        if pids:
            pid = self.choice.choice(sorted(pids))
            os.kill(pid, signal.SIGKILL)
            wait_until("the victim is dead", lambda: not is_alive(pid))

    def homes(self) -> list[int]:
        """Returns the live processes in which the actors ran last."""
        last = {ran.kind: ran.pid for ran in self.log.read() if ran.kind in self.actors}
        return [pid for pid in last.values() if is_alive(pid)]


def may_fail(kind: str) -> bool:
    return kind == "once" or kind.startswith("timid")


def check_the_log(chaos: Chaos) -> None:
    log = chaos.log.read()
    tries = [(ran.kind, ran.number, ran.attempt) for ran in log]
    assert len(set(tries)) == len(tries), "no attempt runs twice"
    ran_at_all = {(ran.kind, ran.number) for ran in log}
    assert not (chaos.never_ran & ran_at_all), "work whose error says that it has not run has not run"
    # An attempt that was not begun uses up no retry, so the attempt that ran need not be the first.
    once = [(ran.kind, ran.number) for ran in log if may_fail(ran.kind)]
    assert len(set(once)) == len(once), "work without retries runs at most once"
    for kind, answers in chaos.answers.items():
        lives_of: dict[int, list[RanAttempt]] = {}
        for ran in log:
            if ran.kind == kind:
                lives_of.setdefault(ran.epoch, []).append(ran)
        for epoch, life in lives_of.items():
            assert [ran.count for ran in life] == list(range(1, len(life) + 1)), "one instance in each epoch"
            assert len({ran.pid for ran in life}) == 1, "one process in each epoch"
            numbers = [ran.number for ran in life]
            assert numbers == sorted(numbers), f"epoch {epoch} ran them in the order of the calls"
        where = {(ran.number, ran.attempt, ran.epoch, ran.count) for ran in log if ran.kind == kind}
        assert all((number, *answer) in where for number, answer in answers.items()), "each answer has a run"
        epochs = [answers[number][1] for number in sorted(answers)]
        assert epochs == sorted(epochs), "no call is answered by an earlier epoch than the call before"


def test_whatever_is_killed_everything_is_as_promised(cluster: ChaosCluster, tmp_path: Path) -> None:
    seed = int(os.environ.get("MARLINE_CHAOS_SEED", random.randrange(2**32)))
    print(f"MARLINE_CHAOS_SEED={seed}")
    choice = random.Random(seed)
    victims = [kind for kind, times in KILLS.items() for _ in range(times)]
    choice.shuffle(victims)
    chaos = Chaos(cluster, Log(tmp_path / "log"), choice)
    for rounds, victim in enumerate(victims):
        if rounds % ROUNDS == 0:
            chaos.renew(rounds)
        chaos.round(victim)
    check_the_log(chaos)
    stubborn = [len(answers) for kind, answers in chaos.answers.items() if not may_fail(kind)]
    assert sum(stubborn) == len(victims) * CALLS, "every call of a retried actor was answered"


def test_an_embedded_cluster_survives_its_fork_server() -> None:
    @marline.remote
    class Sitter:
        def pid(self) -> int:
            return os.getpid()

    def fork_server() -> int:
        children = [
            child
            for thread in Path("/proc/self/task").iterdir()
            for child in (thread / "children").read_text().split()
        ]
        named = (
            int(pid)
            for pid in children
            if b"marline._executor.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        return next(named, 0)

    with marline.init(num_cpus=2) as running:
        socket = Path(running.address.removeprefix("unix:"))
        assert socket.exists()
        sitter = Sitter.remote()
        home = marline.get(sitter.pid.remote())
        for turn in range(10):
            wait_until("a fork server runs", lambda: fork_server() > 0)
            pid = fork_server()
            assert pid > 0
            os.kill(pid, signal.SIGKILL)
            if turn % 2:  # Otherwise work comes to the fork server while it dies.
                wait_until("the fork server is dead", lambda pid=pid: not is_alive(pid))  # type: ignore[misc]
            assert marline.get(sitter.pid.remote()) == home, "executors that it forked live on"
            others = [Sitter.remote() for _ in range(3)]
            pids = marline.get([other.pid.remote() for other in others], timeout=PATIENCE)
            assert len({home, *pids}) == 4
            assert marline.get(marline.remote(abs).remote(-1), timeout=PATIENCE) == 1
            del others
    wait_until(
        "the executors have ended", lambda: not is_alive(home) and not any(is_alive(pid) for pid in pids)
    )
    assert not socket.parent.exists()
