"""The contestants of the Python benchmark, and how a contestant is run.

A contestant is a program of its own. It runs isolated (`contain`) and with a deadline, and leaves
nothing behind. The contestants of the benchmark of large values are in `object_rows`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import contain
import rows
from figures import Figures

HERE = Path(__file__).resolve().parent
# From <sys/prctl.h>.
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)


@dataclasses.dataclass(frozen=True)
class Contestant:
    name: str
    # Its name in `--only`.
    word: str
    # Whether it runs in the Python environment of the rivals, instead of Marline's.
    rival: bool
    # A script of this folder, and its arguments.
    command: list[str]
    # After this many seconds it is killed. A full turn of Ray takes two minutes on two cores.
    deadline: int
    # Whether it is not measured where it cannot be isolated.
    needs_isolation: bool = False
    # Turns in each round. The kernel mostly leaves a process on the core where it first put it, so
    # a process is a single sample of that choice.
    turns: int = 1
    # How the report describes it, after its version. Empty if it is part of another contestant.
    set_up: str = ""
    # What its version is the version of, if not of itself.
    version_of: str = ""


CONTESTANTS = [
    Contestant(
        rows.OURS,
        "marline",
        False,
        ["shapes.py", "marline"],
        300,
        set_up="`init(num_cpus=2)`: embedded, executors are processes; the release wheel",
    ),
    Contestant(rows.BESIDE, "beside", False, ["shapes.py", "marline", "--beside"], 120, turns=7),
    Contestant(
        rows.ONE_CORE, "one-core", False, ["shapes.py", "marline", "--beside", "--one-core"], 120, turns=3
    ),
    Contestant(
        rows.RAY,
        "ray",
        True,
        ["shapes.py", "ray"],
        600,
        needs_isolation=True,
        set_up="`init(num_cpus=2, include_dashboard=False, logging_level='ERROR')`",
    ),
    Contestant(
        rows.FLOORS,
        "floors",
        False,
        ["floors.py"],
        120,
        turns=7,
        set_up="100 bytes to another Python process and back, `os.write` and `os.read`, both blocking",
        version_of="Python",
    ),
    Contestant(
        rows.POOL,
        "pool",
        False,
        ["pool.py"],
        120,
        set_up="`ProcessPoolExecutor(2)`, forked",
        version_of="Python",
    ),
    Contestant(
        rows.DASK,
        "dask",
        True,
        ["dask_cluster.py"],
        300,
        set_up="`LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)`",
    ),
]


class Failed(Exception):
    """A contestant gave no figures. The text says why."""


@dataclasses.dataclass
class Result:
    version: str
    figures: Figures


def turn(contestant: Contestant, python: Path, scale: int) -> Result:
    """Runs a contestant once, and returns its figures."""
    prefix = contain.command_prefix()
    if prefix is None and contestant.needs_isolation:
        raise Failed("it listens on every interface, and cannot be isolated in namespaces here")
    # A short path, since paths of sockets are limited.
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir="/tmp"))
    try:
        return _run(contestant, [*(prefix or []), str(python)], folder, scale)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(contestant: Contestant, python: list[str], folder: Path, scale: int) -> Result:
    script, *words = contestant.command
    out = folder / "figures.json"
    output = folder / "output.txt"
    command = [*python, str(HERE / script), *words, "--out", str(out), "--scale", str(scale)]
    with output.open("w") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment(folder),
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            code = process.wait(contestant.deadline)
        except subprocess.TimeoutExpired:
            raise Failed(f"it took longer than {contestant.deadline} s{_last_lines(output)}") from None
        finally:
            _end(process)
    if code != 0 or not out.exists():
        raise Failed(f"it ended with code {code}{_last_lines(output)}")
    return Result(**json.loads(out.read_text()))


def environment(folder: Path) -> dict[str, str]:
    """Returns this environment without variables that change a contestant's behaviour.

    Temporary files go to the folder.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MARLINE_", "RAY_", "DASK_", "PYTHON"))
    }
    return {
        **kept,
        "TMPDIR": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Without this, Ray's workers would run at a lower priority than Marline's.
        "RAY_worker_niceness": "0",
    }


def _end_with_parent() -> None:
    """Runs in the child: has the kernel kill it, and so its namespaces, when this program dies."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the process group of a contestant.

    In namespaces, the kernel then kills everything else.
    """
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(10)


def _last_lines(output: Path) -> str:
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return "; its last output: " + " / ".join(lines[-3:]) if lines else ""
