"""The examples run as users start them: by name, from a shell, embedded and on a cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.clusters import SeparateCluster, marline_up
from harness.processes import descendants
from harness.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


class Shell:
    """Starts examples with this environment. `words` are the options that name a cluster."""

    def __init__(self, environment: dict[str, str], *words: str) -> None:
        self.environment = environment
        self.words = words

    def start(self, example: str, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, f"examples/{example}", *words, *self.words]
        # In a process group of its own, as a shell starts a command.
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # The tests may run as a background job, which ignores SIGINT. The example must not
            # inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, example: str, *words: str) -> str:
        process = self.start(example, *words)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert (process.returncode, err) == (0, ""), out
        return out


@pytest.fixture(params=["embedded", "separate", "up"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell whose examples embed a cluster, or join a separate one, or that of `marline up`."""
    before = descendants(os.getpid())
    if request.param == "embedded":
        yield Shell(dict(os.environ))
    elif request.param == "up":
        with marline_up(tmp_path_factory.mktemp("run")) as running:
            yield Shell(running.environment, "--address", "auto")
    else:
        separate = SeparateCluster(tmp_path_factory.mktemp("run"))
        try:
            separate.worker("--cpus", "2")
            # The cluster runs on this machine for this user: the examples find its token by its
            # address.
            yield Shell(separate.environment, "--address", separate.address)
        finally:
            separate.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


def figures(pattern: str, out: str) -> tuple[float, ...]:
    """Returns the numbers that the groups of a pattern match in the output."""
    found = re.search(pattern, out)
    assert found, f"{pattern!r} is not in:\n{out}"
    return tuple(float(number) for number in found.groups())


@pytest.mark.parametrize("killing", [False, True])
def test_rl_learns_whatever_is_killed(shell: Shell, killing: bool) -> None:
    out = shell.run("rl.py", *(["--kill"] if killing else []))
    assert len(re.findall(r"kill -9 \d+", out)) == (2 if killing else 0)
    first, last = figures(r"(\d+)% caught at the beginning, (\d+)% at the end", out)
    assert last >= first + 20
    made, forgotten, at_most = figures(r"(\d+) updates made, (\d+) forgotten \(at most (\d+)\)", out)
    assert made == 400
    assert forgotten <= at_most == (7 if killing else 0)
    (answered,) = figures(r"([\d.]+) players answered at a time", out)
    assert 1 < answered <= 4


def test_pipeline_loses_nothing(shell: Shell) -> None:
    out = shell.run("pipeline.py")
    files, again = figures(r"(\d+) files read, (\d+) of them again", out)
    assert (files, again >= 6) == (60, True)
    assert figures(r"(\d+) orders of", out) == (9_000_000,)
    assert "a plain loop has the same result" in out
    orders, memory, spilled = figures(r"(\d+) MB of orders, memory for (\d+) MB; (\d+) MB went", out)
    assert spilled >= orders - memory, "orders that memory cannot hold were spilled"
    assert shell.words or memory == 40


def test_an_array_is_shared_by_four_tasks_without_a_copy(shell: Shell) -> None:
    out = shell.run("shared_array.py", "--megabytes", "400")
    assert "every sum is right, and no process has a copy" in out
    readers = re.findall(r"process \d+ added it up .* \(([+-]\d+)\), (\d+) MB shared", out)
    assert len(readers) == 4
    assert all(int(grown) < 40 and int(shared) >= 400 for grown, shared in readers)


def test_the_shared_array_example_says_that_it_makes_a_smaller_array(tmp_path: Path) -> None:
    with marline_up(tmp_path, "--object-store-memory", "200MB") as running:
        out = Shell(running.environment, "--address", "auto").run("shared_array.py")
    assert "1000 MB are more than what fits into the store of each worker: it is 180 MB here" in out
    assert "every sum is right, and no process has a copy" in out


@pytest.mark.parametrize("example", EXAMPLES)
def test_help_says_what_an_example_does(example: str) -> None:
    out = Shell(dict(os.environ), "--help").run(example)
    assert "--address" in out


@pytest.mark.parametrize("example", EXAMPLES)
def test_ctrl_c_ends_an_example_quietly(shell: Shell, example: str) -> None:
    before = descendants(os.getpid())
    process = shell.start(example)
    try:
        # Wait until the example runs. With an embedded cluster it has child processes. On another
        # cluster it prints a line.
        if shell.words:
            assert process.stdout is not None and process.stdout.readline()
        else:
            wait_until(
                "the example has started a cluster", lambda: len(descendants(os.getpid()) - before) > 1
            )
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "")
