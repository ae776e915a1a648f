"""Who takes part in a benchmark, and how one of them is run: in a cage, with a deadline, and nothing left
behind. Those of the Python benchmark are here, those of the one of large values in `object_rows`."""

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
    # What --only calls it.
    word: str
    # The environment it runs in: ours, or that of the rivals.
    rival: bool
    command: list[str]
    # It is ended after so many seconds. A full turn of Ray takes two minutes on two cores.
    deadline: int
    # Without a cage it is not started at all.
    wild: bool = False
    # Turns in each round. Where the kernel puts a process it mostly stays: a process is one draw.
    turns: int = 1
    # The words that stand beside its version; without them, it is part of another's.
    set_up: str = ""
    # Whose version it is, where it has none of its own.
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
        wild=True,
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
    """A contestant gave no figures; the text says why."""


@dataclasses.dataclass
class Result:
    version: str
    figures: Figures


def turn(contestant: Contestant, python: Path, scale: int) -> Result:
    """Lets one contestant take its figures."""
    cage = contain.words()
    if cage is None and contestant.wild:
        raise Failed("it listens on every interface, and no namespaces can be made here to keep it in")
    # A short path: there will be sockets in it.
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir="/tmp"))
    try:
        return _run(contestant, [*(cage or []), str(python)], folder, scale)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(contestant: Contestant, python: list[str], folder: Path, scale: int) -> Result:
    script, *words = contestant.command
    out = folder / "figures.json"
    said = folder / "said.txt"
    command = [*python, str(HERE / script), *words, "--out", str(out), "--scale", str(scale)]
    with said.open("w") as stream:
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
            raise Failed(f"it took longer than {contestant.deadline} s{_last_words(said)}") from None
        finally:
            _end(process)
    if code != 0 or not out.exists():
        raise Failed(f"it ended with code {code}{_last_words(said)}")
    return Result(**json.loads(out.read_text()))


def environment(folder: Path) -> dict[str, str]:
    """Ours without what would change anybody's behaviour; temporary files go to the folder."""
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
        # Else Ray's workers step back for whatever else the machine does, and ours do not.
        "RAY_worker_niceness": "0",
    }


def _end_with_parent() -> None:
    """In the child: it is killed when this program dies, and the cage with it."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of a session; in a cage, its first process takes everything along."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(10)


def _last_words(said: Path) -> str:
    lines = [line.strip() for line in said.read_text(errors="replace").splitlines() if line.strip()]
    return "; it said last: " + " / ".join(lines[-3:]) if lines else ""
