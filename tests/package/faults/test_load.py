"""Much at a time: 10,000 tasks, 1,000 actors, few descriptors, forks, threads that wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import marline
import pytest
from harness.processes import descendants
from harness.waiting import PATIENCE, wait_until

TASKS = 10_000
ACTORS = 1_000
# The most memory that the actors and the cluster may take together. An interpreter alone takes
# 10 MB, so a thousand of them would take 10 GB if they shared nothing.
MAX_KIB = 3 << 20
# With less free memory than this, the test of the actors is skipped: they may take `MAX_KIB`.
FREE_KIB = 4 << 20


def available_kib() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def proportional_kib(pid: int) -> int:
    """Returns the memory of a process: its own, and its share of what it shares with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@pytest.mark.usefixtures("cluster")
def test_ten_thousand_tasks_in_flight_each_give_their_own_result(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @marline.remote
    def numbered(n: int) -> tuple[int, str]:
        while not gate.exists():
            time.sleep(0.005)
        return n, f"{n:05}" * (n % 7)

    refs = [numbered.remote(n) for n in range(TASKS)]
    assert marline.wait(refs, timeout=0) == ([], refs), "all tasks are in flight"
    gate.touch()
    assert marline.get(refs) == [(n, f"{n:05}" * (n % 7)) for n in range(TASKS)]


def test_a_thousand_actors_live_at_once(cluster: str) -> None:
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 6 * ACTORS:
        pytest.skip("a worker with a thousand actors needs 6,000 descriptors: ulimit -Hn 8192")
    if available_kib() < FREE_KIB:
        pytest.skip("a thousand actors take up to 3 GB: this machine has less than 4 GB free")

    @marline.remote
    class Numbered:
        def __init__(self, n: int) -> None:
            self.n = n

        def who(self) -> tuple[int, int]:
            return self.n, os.getpid()

    actors = [Numbered.remote(n) for n in range(ACTORS)]
    answers = marline.get([actor.who.remote() for actor in actors], timeout=PATIENCE)
    assert [n for n, _ in answers] == list(range(ACTORS))
    pids = {pid for _, pid in answers}
    family = descendants(os.getpid())
    assert len(pids) == ACTORS and pids <= family
    taken = sum(proportional_kib(pid) for pid in family | {os.getpid()})
    assert taken <= MAX_KIB, f"{taken >> 10} MB"
    # The same actors answer again.
    assert marline.get([actor.who.remote() for actor in actors], timeout=PATIENCE) == answers
    del actors
    wait_until("every actor's process has ended", lambda: not (pids & descendants(os.getpid())))


def run(tmp_path: Path, script: str, **environment: str) -> list[str]:
    """Runs a user's script. Returns the lines that it prints."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_low_soft_limit_of_descriptors_does_not_limit_a_cluster(tmp_path: Path) -> None:
    printed = run(
        tmp_path,
        """
        import resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        import marline

        @marline.remote
        class Sitter:
            def hello(self):
                return 1

        with marline.init(num_cpus=2):
            sitters = [Sitter.remote() for _ in range(100)]
            print(sum(marline.get([sitter.hello.remote() for sitter in sitters], timeout=30)))
        """,
    )
    assert printed == ["100"]


def test_forks_of_a_process_with_seeded_generators_draw_different_numbers(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    # Every Python that starts seeds both generators with the same seed.
    (tmp_path / "sitecustomize.py").write_text("import random, numpy\nrandom.seed(1)\nnumpy.random.seed(1)\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    printed = run(
        tmp_path,
        """
        import marline

        @marline.remote
        class Drawer:
            def draw(self):
                import random, numpy
                return random.random(), random.getrandbits(64), float(numpy.random.random())

        with marline.init(num_cpus=2):
            drawers = [Drawer.remote() for _ in range(8)]
            for drawn in zip(*marline.get([drawer.draw.remote() for drawer in drawers])):
                print(len(set(drawn)))
        """,
        PYTHONPATH=path,
    )
    assert printed == ["8", "8", "8"]


def test_threads_that_wait_side_by_side_each_get_their_own(cluster: str) -> None:
    @marline.remote
    def double(number: int) -> int:
        return number * 2

    @marline.remote
    class Echo:
        def much(self, count: int) -> bytes:
            return bytes(count)

        def back(self, number: int) -> int:
            return number

    echo = Echo.remote()

    def wait_all_over(seed: int) -> None:
        choice = random.Random(seed)
        for number in range(100):
            ref = choice.choice([echo.back, double]).remote(number)
            with contextlib.suppress(TimeoutError):
                marline.get(ref, timeout=choice.random() * 0.001)
            assert marline.get(ref) in (number, 2 * number)
            count = choice.randrange(200_000)
            assert len(marline.get(echo.much.remote(count))) == count
            refs = [echo.back.remote(other) for other in range(20)]
            ready, _ = marline.wait(refs, num_returns=5)
            assert len(ready) == 5
            assert asyncio.run(_await_all(refs)) == list(range(20))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(wait_all_over, range(8)))


async def _await_all(refs: list[marline.ObjectRef]) -> list[int]:
    return [await ref for ref in refs]
