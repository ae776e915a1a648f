"""Marline in a real Jupyter kernel: cells run again, interrupts, `await`, restarts, the end."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import PATIENCE, wait_until

jupyter = pytest.importorskip("jupyter_client.manager", reason="needs jupyter_client and ipykernel")
pytest.importorskip("ipykernel")

SETUP = """
import asyncio, os, time
import marline

@marline.remote
def nap(seconds):
    time.sleep(seconds)
    return os.getpid()

marline.init(num_cpus=2)
print(marline.get(nap.remote(0)) != os.getpid())
"""

# Prints "waiting" when the kernel's main thread waits in Marline. An interrupt before that could
# hit `print`, whose locks in a kernel do not survive one.
TELL = """
import sys, threading

def tell():
    def is_waiting():
        frame = sys._current_frames()[threading.main_thread().ident]
        return frame.f_code.co_filename.startswith(os.path.dirname(marline.__file__) + os.sep)
    while not is_waiting():
        time.sleep(0.01)
    print("waiting")

threading.Thread(target=tell).start()
"""


class CellError(Exception):
    """A cell raised an exception. The arguments are its class and its text."""


class Notebook:
    """A kernel and its client, which runs cells."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tmp").mkdir()
        self.kernel: Any = jupyter.KernelManager(kernel_name="python3")
        # The processes of the kernel are found by this variable of their environment.
        self.mark = f"XDG_RUNTIME_DIR={folder}"
        self.kernel.start_kernel(
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder / "tmp")}, cwd=str(folder)
        )
        self.client = self.kernel.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def begin(self, cell: str) -> str:
        """Starts a cell without waiting for it. Returns the id of the request."""
        return str(self.client.execute(textwrap.dedent(cell), stop_on_error=False))

    def end(self, request: str, until_printed: str | None = None) -> str:
        """Returns a cell's output and value, when it ends or has printed `until_printed`."""
        text = ""
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "stream":
                text += content["text"]
                if until_printed is not None and until_printed in text:
                    return text
            elif kind == "execute_result":
                text += content["data"]["text/plain"]
            elif kind == "error":
                raise CellError(content["ename"], content["evalue"])
            elif kind == "status" and content["execution_state"] == "idle":
                return text.strip()

    def run(self, cell: str) -> str:
        return self.end(self.begin(cell))

    def live_processes(self) -> set[int]:
        """Returns the kernel and all processes that it started, also orphans."""
        found = set()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes().split(
                    b"\0"
                ):
                    found.add(int(entry.name))
            except OSError:
                continue
        return found

    def leftover_files(self) -> list[str]:
        """Returns the names of the files that clusters left behind."""
        places = [self.folder / "marline", self.folder / "tmp"]
        return [entry.name for place in places if place.is_dir() for entry in place.iterdir()]


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "run").mkdir()
    started = Notebook(tmp_path / "run")
    try:
        yield started
        started.kernel.shutdown_kernel()
    finally:
        started.client.stop_channels()
        started.kernel.shutdown_kernel(now=True)
    wait_until("every process of the kernel has ended", lambda: not started.live_processes())
    wait_until("no file of a cluster is left", lambda: not started.leftover_files())


def test_a_cell_that_is_run_again_counts(notebook: Notebook) -> None:
    assert notebook.run(SETUP) == "True"
    cell = """
        @marline.remote
        class Greeter:
            def __init__(self):
                self.times = 0
            def hello(self):
                self.times += 1
                return "{word}", self.times

        @marline.remote
        def word():
            return "{word}"
        """
    notebook.run(cell.format(word="old"))
    notebook.run("old = Greeter.remote()")
    assert notebook.run("marline.get([old.hello.remote(), word.remote()])") == "[('old', 1), 'old']"
    notebook.run(cell.format(word="new"))
    notebook.run("new = Greeter.remote()")
    assert notebook.run("marline.get([new.hello.remote(), word.remote()])") == "[('new', 1), 'new']"
    assert notebook.run("marline.get(old.hello.remote())") == "('old', 2)", (
        "an actor keeps the class that it was created with"
    )


def test_values_of_classes_of_a_notebook_travel(notebook: Notebook) -> None:
    assert notebook.run(SETUP) == "True"
    notebook.run(
        """
        import dataclasses

        @dataclasses.dataclass
        class Point:
            x: int

        @marline.remote
        def double(point):
            return Point(2 * point.x)
        """
    )
    assert notebook.run("point = marline.get(double.remote(Point(4))); point") == "Point(x=8)"
    assert notebook.run("type(point) is Point") == "True"


def test_an_interrupt_ends_a_wait_and_nothing_else(notebook: Notebook) -> None:
    assert notebook.run(SETUP) == "True"
    notebook.run(
        """
        @marline.remote
        class Sitter:
            def pid(self):
                return os.getpid()
        sitter = Sitter.remote()
        home = marline.get(sitter.pid.remote())
        slow = nap.remote(600)
        """
    )
    for wait in ("marline.get(slow)", "marline.wait([slow])"):
        request = notebook.begin(TELL + wait)
        notebook.end(request, until_printed="waiting")
        notebook.kernel.interrupt_kernel()
        with pytest.raises(CellError, match="KeyboardInterrupt"):
            notebook.end(request)
        assert notebook.run("marline.get(sitter.pid.remote()) == home, slow.done()") == "(True, False)"
        assert notebook.run("marline.get(nap.remote(0)) > 0") == "True"
    notebook.run("marline.cancel(slow)")
    with pytest.raises(CellError, match="TaskCancelledError"):
        notebook.run("marline.get(slow)")


def test_references_are_awaited_in_cells(notebook: Notebook) -> None:
    assert notebook.run(SETUP) == "True"
    assert notebook.run("await nap.remote(0.05) > 0") == "True"
    assert notebook.run("len(await asyncio.gather(*(nap.remote(0.01) for _ in range(10))))") == "10"
    assert notebook.run("1 + (await marline.put(1))") == "2"
    with pytest.raises(CellError, match="ZeroDivisionError"):
        notebook.run("await marline.remote(lambda: 1 / 0).remote()")
    assert notebook.run("marline.get(nap.remote(0)) > 0") == "True"


@pytest.mark.parametrize("how", ["asked", "killed"])
def test_a_restart_leaves_nothing_of_what_was_before(notebook: Notebook, how: str) -> None:
    notebook.run(SETUP)
    notebook.run(
        """
        @marline.remote
        class Sitter:
            def pid(self):
                return os.getpid()
        sitter = Sitter.options(name="sitter").remote()
        marline.get(sitter.pid.remote())
        slow = nap.remote(600)
        """
    )
    before = notebook.live_processes()
    assert len(before) >= 4
    notebook.kernel.restart_kernel(now=how == "killed")
    notebook.client.wait_for_ready(timeout=PATIENCE)
    wait_until("every process of the old kernel has ended", lambda: not (before & notebook.live_processes()))
    wait_until("the files of the old cluster are gone", lambda: not notebook.leftover_files())
    assert notebook.run(SETUP) == "True"
    with pytest.raises(CellError, match="NotFoundError"):
        notebook.run("marline.get_actor('sitter')")
