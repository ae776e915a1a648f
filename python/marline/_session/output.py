"""Shows the output of remote work in the driver: ``(square pid=1234) text``.

One thread takes the output, and waits for it without the interpreter's lock. It writes to
``sys.stdout`` and ``sys.stderr`` as they are at that moment. A line that several processes print is
shown once, and later once more with the number of repetitions: ``(square pid=1234) text [repeated
3x across cluster]``.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from typing import NamedTuple

from marline import _native

# How long a line is held back if another process has printed the same line, in seconds.
WINDOW = 5.0
# The most lines that are remembered for that.
MAX_RECENT = 10_000
# Output of actors counts as complete after this many seconds without any, and how long to wait for
# that at most.
QUIET = 0.1
MAX_SETTLE = 1.0
# How long the end of the session waits for this thread, in seconds. A pipe that no process reads
# blocks it.
MAX_JOIN = 5.0

_FUNCTION = re.compile(r"python(?:/[^:]*)?:(.*)#[^#]*", re.DOTALL)
_PATH = re.compile(r"(?:[\w<>]+\.)*([\w<>]+)")


class Printer:
    """Shows the output of a driver's work. See the module."""

    def __init__(self, output: _native.Output, address: str | None = None) -> None:
        self._output = output
        # The option of `marline logs` for a cluster embedded in this process.
        self._log_options = f" --address {address}" if address is not None else ""
        self._host = os.uname().nodename
        self._repeats = RepeatFilter() if os.environ.get("MARLINE_DEDUP_LOGS") != "0" else None
        self._came = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marline-output", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Waits until no more output comes, ``MAX_SETTLE`` seconds at most."""
        end = time.monotonic() + MAX_SETTLE
        self._came.clear()
        while self._came.wait(QUIET) and time.monotonic() < end:
            self._came.clear()

    def join(self) -> None:
        """Waits until all output is shown. Called after the session has ended."""
        if threading.current_thread() is not self._thread:
            self._thread.join(MAX_JOIN)

    def _run(self) -> None:
        repeats = self._repeats
        while (pieces := self._output.take(repeats.due_in() if repeats else None)) is not None:
            if pieces:
                self._came.set()
            shown: list[tuple[bool, str]] = []
            for piece in pieces:
                shown += self._lines(piece)
            if repeats is not None:
                shown += repeats.over(time.monotonic())
            _write(shown)
        if repeats is not None:
            _write(repeats.over(None))

    def _lines(self, piece: _native.OutputPiece) -> list[tuple[bool, str]]:
        """Returns the lines to show, each with whether it goes to standard error."""
        where = f", host={piece.hostname}" if piece.hostname != self._host else ""
        prefix = f"({short(piece.name)} pid={piece.pid}{where})"
        shown = []
        if piece.missed:
            words = f"(marline) … {piece.missed:,} lines were not shown: they came faster than they were read"
            shown.append((piece.is_error, words))
        if piece.dropped:
            logs = f"`marline logs {piece.log}{self._log_options}` has them"
            count = "1 line was" if piece.dropped == 1 else f"{piece.dropped:,} lines were"
            shown.append((piece.is_error, f"{prefix} … {count} dropped, {logs}"))
        if piece.text is not None:
            now = time.monotonic()
            for line in piece.text.split("\n"):
                key = Line(piece.name, piece.is_error, line)
                if self._repeats is None or not self._repeats.hold(now, key, prefix):
                    shown.append((piece.is_error, f"{prefix} {line}"))
        return shown


class Line(NamedTuple):
    """The parts of a line that are equal when it is repeated."""

    name: str
    is_error: bool
    text: str


class RecentLine:
    """A line that was shown: since when, its first and last process, and how often it came."""

    def __init__(self, since: float, prefix: str) -> None:
        self.since = since
        self.first = self.last = prefix
        self.count = 0


class RepeatFilter:
    """Recent lines, the oldest first. Holds back lines that another process repeats."""

    def __init__(self) -> None:
        self._recent: dict[Line, RecentLine] = {}

    def hold(self, now: float, line: Line, prefix: str) -> bool:
        """Returns whether a line is held back, because another process has printed the same line.

        A process that repeats its own line does so on purpose: such a line is not held back.
        """
        if not line.text:
            return False
        recent = self._recent.get(line)
        if recent is None:
            self._recent[line] = RecentLine(now, prefix)
            return False
        if recent.count == 0 and recent.first == prefix:
            return False
        recent.count, recent.last = recent.count + 1, prefix
        return True

    def due_in(self) -> float | None:
        """Returns the seconds until the oldest line is shown or forgotten."""
        oldest = next(iter(self._recent.values()), None)
        return None if oldest is None else max(0.0, oldest.since + WINDOW - time.monotonic())

    def over(self, now: float | None) -> list[tuple[bool, str]]:
        """Returns the lines that were held back for ``WINDOW`` seconds.

        Without a time, returns all.
        """
        shown = []
        while self._recent:
            line, recent = next(iter(self._recent.items()))
            young = now is not None and recent.since + WINDOW > now
            if young and len(self._recent) <= MAX_RECENT:
                break
            del self._recent[line]
            if recent.count > 1 and now is not None:
                # The repetitions go on, so the line is held back again.
                self._recent[line] = RecentLine(now, "")
            if recent.count > 0:
                times = f" [repeated {recent.count}x across cluster]" if recent.count > 1 else ""
                shown.append((line.is_error, f"{recent.last} {line.text}{times}"))
        return shown


def short(name: str) -> str:
    """Returns the short name of a function or class: ``square`` for
    ``python:module.square#1f0a``."""
    if (function := _FUNCTION.fullmatch(name)) is None:
        return name
    label = function[1]
    path = _PATH.fullmatch(label)
    return label if path is None else path[1]


def _write(shown: list[tuple[bool, str]]) -> None:
    """Writes lines to the current standard streams of this process."""
    for is_error in (False, True):
        text = "".join(f"{line}\n" for error, line in shown if error is is_error)
        stream = sys.stderr if is_error else sys.stdout
        if text and stream is not None:
            with contextlib.suppress(Exception):  # The stream may be closed. The log has the lines.
                stream.write(text)
                stream.flush()
