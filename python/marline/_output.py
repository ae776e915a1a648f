"""What work prints elsewhere, shown in the driver: ``(square pid=1234) text``.

One thread takes what comes, without the interpreter's lock while it waits, and writes it to what
``sys.stdout`` and ``sys.stderr`` are then. A line that several processes print is shown once, and again with
how often it was repeated: ``(square pid=1234) text [repeated 3x across cluster]``.
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

# A line is held back for so long, if another process printed the same.
WINDOW = 5.0
# So many lines are remembered for that.
MAX_RECENT = 10_000
# Nothing more is expected of actors when nothing came for so long; and how long that is waited for.
QUIET = 0.1
MAX_SETTLE = 1.0
# Whoever does not read what is written is not waited for.
MAX_JOIN = 5.0

_FUNCTION = re.compile(r"python(?:/[^:]*)?:(.*)#[^#]*", re.DOTALL)
_PATH = re.compile(r"(?:[\w<>]+\.)*([\w<>]+)")


class Printer:
    """See the module."""

    def __init__(self, output: _native.Output, address: str | None = None) -> None:
        self._output = output
        # Where people find the log of a cluster that lives in this process, as long as it does.
        self._log_options = f" --address {address}" if address is not None else ""
        self._host = os.uname().nodename
        self._repeats = Repeats() if os.environ.get("MARLINE_DEDUP_LOGS") != "0" else None
        self._came = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marline-output", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Waits until nothing comes any more."""
        end = time.monotonic() + MAX_SETTLE
        self._came.clear()
        while self._came.wait(QUIET) and time.monotonic() < end:
            self._came.clear()

    def join(self) -> None:
        """The session is over: shows what came before that."""
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

    def _lines(self, piece: _native._Piece) -> list[tuple[bool, str]]:
        """The lines that are shown of what came."""
        name, host, pid, is_error, text, dropped, missed, log = piece
        where = f", host={host}" if host != self._host else ""
        prefix = f"({short(name)} pid={pid}{where})"
        shown = []
        if missed:
            words = f"(marline) … {missed:,} lines were not shown: they came faster than they were read"
            shown.append((is_error, words))
        if dropped:
            logs = f"`marline logs {log}{self._log_options}` has them"
            count = "1 line was" if dropped == 1 else f"{dropped:,} lines were"
            shown.append((is_error, f"{prefix} … {count} dropped, {logs}"))
        if text is not None:
            now = time.monotonic()
            for line in text.split("\n"):
                one = Line(name, is_error, line)
                if self._repeats is None or not self._repeats.hold(now, one, prefix):
                    shown.append((is_error, f"{prefix} {line}"))
        return shown


class Line(NamedTuple):
    """What is the same when it is printed again."""

    name: str
    is_error: bool
    text: str


class Held:
    """A line that was shown, and how often it came again, from whom last."""

    def __init__(self, since: float, prefix: str) -> None:
        self.since = since
        self.first = self.last = prefix
        self.count = 0


class Repeats:
    """Lines that came lately, the oldest first."""

    def __init__(self) -> None:
        self._recent: dict[Line, Held] = {}

    def hold(self, now: float, line: Line, prefix: str) -> bool:
        """Whether a line is held back: another process has printed it. Who repeats itself means to."""
        if not line.text:
            return False
        held = self._recent.get(line)
        if held is None:
            self._recent[line] = Held(now, prefix)
            return False
        if held.count == 0 and held.first == prefix:
            return False
        held.count, held.last = held.count + 1, prefix
        return True

    def due_in(self) -> float | None:
        """After how long something is to be shown or forgotten."""
        oldest = next(iter(self._recent.values()), None)
        return None if oldest is None else max(0.0, oldest.since + WINDOW - time.monotonic())

    def over(self, now: float | None) -> list[tuple[bool, str]]:
        """What was held back for long enough; without a time, everything."""
        shown = []
        while self._recent:
            line, held = next(iter(self._recent.items()))
            young = now is not None and held.since + WINDOW > now
            if young and len(self._recent) <= MAX_RECENT:
                break
            del self._recent[line]
            if held.count > 1 and now is not None:
                # It goes on, so it is held back for another while.
                self._recent[line] = Held(now, "")
            if held.count > 0:
                times = f" [repeated {held.count}x across cluster]" if held.count > 1 else ""
                shown.append((line.is_error, f"{held.last} {line.text}{times}"))
        return shown


def short(name: str) -> str:
    """What a function, class or actor is called by people: ``python:module.square#1f0a`` is ``square``."""
    if (function := _FUNCTION.fullmatch(name)) is None:
        return name
    label = function[1]
    path = _PATH.fullmatch(label)
    return label if path is None else path[1]


def _write(shown: list[tuple[bool, str]]) -> None:
    """Writes lines to where this process writes now."""
    for is_error in (False, True):
        text = "".join(f"{line}\n" for error, line in shown if error is is_error)
        stream = sys.stderr if is_error else sys.stdout
        if text and stream is not None:
            with contextlib.suppress(Exception):  # Nobody reads it: the log has it.
                stream.write(text)
                stream.flush()
