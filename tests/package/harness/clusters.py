"""Clusters of separate processes.

`store.py` adds a cluster with one object store, and `faults.py` a cluster whose processes tests kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.waiting import PATIENCE


class SeparateCluster:
    """A cluster of separate processes: a controller and its workers, or one `marline up`."""

    def __init__(
        self, folder: Path, command: str = "controller", *words: str, listen: str = "127.0.0.1"
    ) -> None:
        # Words that stand before each command, such as `ip netns exec NAME`.
        self.command_prefix: list[str] = []
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self.folder: Path | None = None
        self.processes: list[subprocess.Popen[str]] = []
        announced = self.start(command, "--listen", f"{listen}:0", *words)
        self.address: str = announced["address"]
        self.token = Path(announced["token_file"]).read_text().strip()

    def start(self, *words: str) -> dict[str, Any]:
        """Starts a `marline` process and returns the JSON line that it prints when it is ready."""
        binary = os.environ.get("MARLINE_BINARY", "marline")
        process = subprocess.Popen(
            [*self.command_prefix, binary, "--json", *words],
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.folder,
        )
        self.processes.append(process)
        assert process.stdout is not None
        announced: dict[str, Any] = json.loads(process.stdout.readline())
        return announced

    def worker(self, *words: str) -> dict[str, Any]:
        return self.start("worker", "--quiet", "--python", sys.executable, *words)

    def end(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE)


class RestartableCluster(SeparateCluster):
    """A cluster whose controller can be killed and started again at the same address.

    The token comes from a file, so that it stays the same for every controller.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        file = folder / "token"
        file.touch(mode=0o600)
        file.write_text("known to all that are to come back")
        os.environ["MARLINE_TOKEN_FILE"] = str(file)
        try:
            super().__init__(folder)
        finally:
            del os.environ["MARLINE_TOKEN_FILE"]

    def restart(self) -> None:
        controller = self.processes.pop(0)
        controller.kill()
        controller.wait()
        self.start("controller", "--listen", self.address)
        self.processes.insert(0, self.processes.pop())


@contextlib.contextmanager
def marline_up(folder: Path, *words: str) -> Iterator[SeparateCluster]:
    """Runs `marline up` with two CPUs, and ends it afterwards."""
    running = SeparateCluster(folder, "up", "--cpus", "2", "--quiet", "--python", sys.executable, *words)
    try:
        yield running
    finally:
        running.end()
