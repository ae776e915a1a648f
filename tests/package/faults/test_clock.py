"""Leases, deadlines and retries do not notice when the wall clock jumps by an hour.

They use the monotonic clock. A preloaded C library adds an offset to the wall clock of all
processes of the test. The offset is in a file that all of them map. Their monotonic clock is the
real one.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.clusters import SeparateCluster
from harness.processes import descendants
from harness.waiting import PATIENCE, wait_until

HOUR = 3600
# The lease is short, so that it would run out during the test if the jump counted.
LEASE = "3s"

LIBRARY = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long *offset;

__attribute__((constructor)) static void find_offset(void) {
    const char *path = getenv("WALL_CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
    if (result == 0 && is_wall && offset) now->tv_sec += *offset;
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"""

SCRIPT = """
import asyncio, os, sys, time
import marline

address, token, seconds = sys.argv[1], sys.argv[2] or None, float(sys.argv[3])

def print_line(*words):
    print(*words, flush=True)

def jump():
    print_line("jump")
    assert sys.stdin.readline().strip() == "done"

@marline.remote
def nap(seconds):
    began = time.time()
    time.sleep(seconds)
    return marline.get_runtime_context().attempt, time.time() - began

@marline.remote(retry_exceptions=True)
def fails_once():
    if marline.get_runtime_context().attempt == 1:
        raise OSError("once")
    return "in the end"

@marline.remote
class Sitter:
    def pid(self):
        return os.getpid()

async def waits(ref):
    await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(awaits(ref))), 0.3)

async def awaits(ref):
    return await ref

def phase(by):
    patient = Sitter.options(idle_ttl=600).remote()
    before = marline.get([sitter.pid.remote(), patient.pid.remote()])
    workers = [node["NodeID"] for node in marline.nodes()]
    calm = nap.options(timeout=600).remote(seconds)
    marline.wait([calm], timeout=0.2)
    began, wall = time.monotonic(), time.time()
    late = nap.options(timeout=1.5).remote(900)
    jump()
    assert abs(time.time() - wall - by) < 600, "the clock of the driver jumped"
    # Every timeout ends, and none ends early.
    for limit, wait in (
        (0.3, lambda: marline.get(calm, timeout=0.3)),
        (0.3, lambda: asyncio.run(waits(calm))),
    ):
        start = time.monotonic()
        try:
            wait()
        except TimeoutError:
            assert time.monotonic() - start >= limit - 0.05, "the timeout ended early"
        else:
            raise AssertionError("the result came before its task ended")
    try:
        marline.get(late)
    except TimeoutError:
        assert time.monotonic() - began >= 1.5, "the task's timeout ended early"
    else:
        raise AssertionError("the task's timeout never ended")
    assert marline.get(fails_once.remote()) == "in the end"
    attempt, took = marline.get(calm)
    assert attempt == 1, "the task ran more than once"
    assert abs(took - by) < 600, "the clock of the executor jumped"
    assert marline.get([sitter.pid.remote(), patient.pid.remote()]) == before
    assert [node["NodeID"] for node in marline.nodes()] == workers, "a worker joined again"
    brief = Sitter.options(idle_ttl=0.2, name="brief", lifetime="detached").remote()
    marline.get(brief.pid.remote())
    while marline.list_named_actors():
        time.sleep(0.01)

options = {"num_cpus": 2} if address == "local" else {"token": token}
with marline.init(address, **options):
    sitter = Sitter.remote()
    phase(3600)
    phase(-7200)
    print_line("completed")
"""


class Clock:
    """The wall clock of processes that run with `environment`."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler (cc) to make a wall clock that jumps")
        (folder / "clock.c").write_text(LIBRARY)
        self.library = folder / "clock.so"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", str(self.library), str(folder / "clock.c")],
            check=True,
        )
        self.file = folder / "offset"
        self.file.write_bytes(struct.pack("l", 0))
        self.environment = {"LD_PRELOAD": str(self.library), "WALL_CLOCK_OFFSET": str(self.file)}

    def set(self, offset: int) -> None:
        # Written in place: the processes have mapped this file, and would not see a new one.
        with self.file.open("r+b") as file:
            file.write(struct.pack("l", offset))

    def is_in(self, pid: int) -> bool:
        return str(self.library) in Path(f"/proc/{pid}/maps").read_text()


@pytest.fixture(params=["embedded", "separate"])
def clocked(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Clock, list[str]]]:
    """A wall clock, and the script's arguments: address, token, and how long a task runs."""
    before = descendants(os.getpid())
    clock = Clock(tmp_path)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    if request.param == "embedded":
        yield clock, ["local", "", "2"]
    else:
        monkeypatch.setenv("MARLINE_LEASE", LEASE)
        separate = SeparateCluster(tmp_path / "run")
        try:
            separate.worker("--cpus", "2")
            yield clock, [separate.address, separate.token, "4"]
        finally:
            separate.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


def test_a_jump_of_an_hour_is_not_noticed(clocked: tuple[Clock, list[str]]) -> None:
    clock, words = clocked
    before = descendants(os.getpid())
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None and driver.stdin is not None
        for offset in (HOUR, -HOUR):
            assert driver.stdout.readline() == "jump\n", driver.communicate()[1]
            family = before | descendants(os.getpid())
            assert len(family) >= 3 and all(clock.is_in(pid) for pid in family)
            clock.set(offset)
            driver.stdin.write("done\n")
            driver.stdin.flush()
        out, err = driver.communicate(timeout=PATIENCE)
        assert (driver.returncode, out) == (0, "completed\n"), err
        assert "lost" not in err and "suspected" not in err, err
    finally:
        driver.kill()
        driver.communicate()
