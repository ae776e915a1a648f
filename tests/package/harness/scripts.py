"""Scripts of users, each in a process of its own, that a test resumes step by step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.waiting import PATIENCE

# The beginning of the source of every `Script`. A script prints lines for the test with
# `print_line`, and waits in `wait_for_resume` until the test calls `Script.resume`.
PREAMBLE = """
import os, sys, time
import marline

@marline.remote
def nap(seconds):
    time.sleep(seconds)
    return os.getpid()

@marline.remote
class Counter:
    def __init__(self, count=0):
        self.count = count
    def add(self):
        self.count += 1
        return self.count
    def pid(self):
        return os.getpid()

def print_line(*words):
    print(*words, flush=True)

def wait_for_resume():
    return sys.stdin.readline()

"""


class Script:
    """A user's script, in a process of its own. Its source is `PREAMBLE` and `source`."""

    def __init__(self, source: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def line(self) -> str:
        """Waits for the next line that the script prints, and returns it without the line end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def resume(self) -> None:
        """Lets the script's `wait_for_resume` return."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, patience: float = PATIENCE) -> tuple[int, str, str]:
        """Waits for the script's end.

        Returns its exit code and the unread rest of its two outputs.
        """
        out, err = self.process.communicate(timeout=patience)
        return self.process.returncode, out, err


def script_beside(test: str, source: str) -> Script:
    """Starts a user's script that can import the modules beside a test file, and `harness`."""
    folders = [str(Path(test).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return Script(source, PYTHONPATH=os.pathsep.join(folders))
