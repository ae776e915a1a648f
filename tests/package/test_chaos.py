"""Fifty times something is killed while work runs; every result is what was promised, and nothing is left.

`MARLINE_CHAOS_SEED` repeats what was chosen, which is printed; what the system makes of it may differ.
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
from conftest import PATIENCE, Separate, lives, until

WORKERS = 3
# How often each kind is killed.
KILLS = {"executor": 14, "worker": 10, "fork server": 12, "actor": 14}
# In each round.
TASKS = 8
CALLS = 6
# So many, then there are other actors.
ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Ran:
    """A line in the log of what ran: which work, which try at it, and where."""

    kind: str
    number: int
    attempt: int
    epoch: int
    count: int
    pid: int


class Log:
    """What ran, as it says itself: whoever runs adds a line before it does anything else."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def read(self) -> list[Ran]:
        lines = [line.split() for line in self.file.read_text().splitlines()]
        return [Ran(kind, *(int(word) for word in words)) for kind, *words in lines]


class Cluster(Separate):
    """A controller and workers, any of which can be killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        for _ in range(WORKERS):
            self.worker("--cpus", "2")

    @property
    def workers(self) -> list[subprocess.Popen[str]]:
        return self.processes[1:]

    def family(self) -> dict[int, tuple[int, list[str]]]:
        """All processes of this cluster that live, wherever they belong: their parents, and what they are."""
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
        family = self.family().items()
        return [
            pid for pid, (parent, words) in family if parent in workers and "marline._forkserver" in words
        ]

    def forks(self) -> list[int]:
        """Executors, also those whose fork server is gone."""
        workers = {worker.pid for worker in self.workers}
        family = self.family().items()
        return [
            pid for pid, (parent, words) in family if parent not in workers and "marline._forkserver" in words
        ]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path / "run")
    try:
        with marline.init(started.address, token=started.token):
            yield started
    finally:
        started.end()
    until("no process is left", lambda: not started.family())
    run = tmp_path / "run"
    until("no file or socket is left", lambda: all(entry.is_dir() for entry in run.rglob("*")))


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
    """The rounds, and what was asked for in them."""

    def __init__(self, cluster: Cluster, log: Log, choice: random.Random) -> None:
        self.cluster, self.log, self.choice = cluster, log, choice
        self.actors: dict[str, marline.ActorHandle] = {}
        self.next = 0
        # What each call of each actor gave, by its number.
        self.answers: dict[str, dict[int, tuple[int, int, int]]] = {}
        # What ended without having run, as was said.
        self.never_ran: set[tuple[str, int]] = set()

    def renew(self, rounds: int) -> None:
        """Other actors: one that dies often is given more time before each restart."""
        self.actors = {}
        for name, retries in (("stubborn", -1), ("timid", 0)):
            kind = f"{name}-{rounds}"
            actor = Counter.options(max_task_retries=retries).remote(str(self.log.file), kind)
            self.actors[kind], self.answers[kind] = actor, {}

    def round(self, victim: str) -> None:
        before = len(self.log.read())
        asked = self.submit()
        some = before + self.choice.randint(1, TASKS)
        until("some of it runs", lambda: len(self.log.read()) >= some)
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
            assert may_fail(kind), f"{kind} {number} is to be tried again: {error}"
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
            until("it is dead", lambda: not lives(pid))

    def homes(self) -> list[int]:
        """Where the actors ran last."""
        last = {ran.kind: ran.pid for ran in self.log.read() if ran.kind in self.actors}
        return [pid for pid in last.values() if lives(pid)]


def may_fail(kind: str) -> bool:
    return kind == "once" or kind.startswith("timid")


def check_the_log(chaos: Chaos) -> None:
    log = chaos.log.read()
    tries = [(ran.kind, ran.number, ran.attempt) for ran in log]
    assert len(set(tries)) == len(tries), "no attempt runs twice"
    ran_at_all = {(ran.kind, ran.number) for ran in log}
    assert not (chaos.never_ran & ran_at_all), "what is said not to have run has not"
    # An attempt that was not begun costs nothing, so the one that ran need not be the first.
    once = [(ran.kind, ran.number) for ran in log if may_fail(ran.kind)]
    assert len(set(once)) == len(once), "they are not run again"
    for kind, answers in chaos.answers.items():
        lives_of: dict[int, list[Ran]] = {}
        for ran in log:
            if ran.kind == kind:
                lives_of.setdefault(ran.epoch, []).append(ran)
        for epoch, life in lives_of.items():
            assert [ran.count for ran in life] == list(range(1, len(life) + 1)), "one instance in each epoch"
            assert len({ran.pid for ran in life}) == 1, "one process in each epoch"
            numbers = [ran.number for ran in life]
            assert numbers == sorted(numbers), f"epoch {epoch} ran them in the order of the calls"
        where = {(ran.number, ran.attempt, ran.epoch, ran.count) for ran in log if ran.kind == kind}
        assert all((number, *answer) in where for number, answer in answers.items()), "answers are what ran"
        epochs = [answers[number][1] for number in sorted(answers)]
        assert epochs == sorted(epochs), "no answer comes from an epoch before"


def test_whatever_is_killed_everything_is_as_promised(cluster: Cluster, tmp_path: Path) -> None:
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
    assert sum(stubborn) == len(victims) * CALLS, "each was answered"


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
            if b"marline._forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        return next(named, 0)

    with marline.init(num_cpus=2) as running:
        socket = Path(running.address.removeprefix("unix:"))
        assert socket.exists()
        sitter = Sitter.remote()
        home = marline.get(sitter.pid.remote())
        for turn in range(10):
            until("there is one", lambda: fork_server() > 0)
            pid = fork_server()
            assert pid > 0
            os.kill(pid, signal.SIGKILL)
            if turn % 2:  # Otherwise it is asked while it dies.
                until("it is dead", lambda pid=pid: not lives(pid))  # type: ignore[misc]
            assert marline.get(sitter.pid.remote()) == home, "what it had forked lives on"
            others = [Sitter.remote() for _ in range(3)]
            pids = marline.get([other.pid.remote() for other in others], timeout=PATIENCE)
            assert len({home, *pids}) == 4
            assert marline.get(marline.remote(abs).remote(-1), timeout=PATIENCE) == 1
            del others
    until("the executors have ended", lambda: not lives(home) and not any(lives(pid) for pid in pids))
    assert not socket.parent.exists()
