"""Tracebacks that travel. Their frames cannot: made anew, they have the file, the line and the name, so that
Python prints the traceback as it would have where it came from."""

from __future__ import annotations

import traceback
import types
from collections.abc import Sequence

# The file, the line, and the name of the function.
Frame = tuple[str, int, str]

# So many frames of a traceback travel, from each of its ends half of them.
MAX_FRAMES = 100

# In CPython's table of positions: some instructions (the bits that are free say how many) that have a line,
# that of those before them, and no columns.
_NO_COLUMNS, _SAME_LINE = 0x80 | 13 << 3, 0
_MOST_INSTRUCTIONS = 8


def frames_of(error: BaseException) -> list[Frame]:
    """Where an exception was raised."""
    walked = list(traceback.walk_tb(error.__traceback__))
    if len(walked) > MAX_FRAMES:
        walked[MAX_FRAMES // 2 : -MAX_FRAMES // 2] = []
    return [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]


def traceback_of(frames: Sequence[Frame]) -> types.TracebackType | None:
    """A traceback that has these frames."""
    made: types.TracebackType | None = None
    for frame in reversed(frames):
        raised = _raised(*frame)
        made = types.TracebackType(made, raised.tb_frame, raised.tb_lasti, frame[1])
    return made


def _raised(file: str, line: int, name: str) -> types.TracebackType:
    """What is left of a function that raised something there."""
    code = compile("raise Exception", file, "exec")
    code = code.replace(co_name=name, co_qualname=name, co_firstlineno=line, co_linetable=_table(code))
    try:
        exec(code, {})
    except Exception as error:
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        return error.__traceback__.tb_next
    raise AssertionError("it raises")


def _table(code: types.CodeType) -> bytes:
    """All of it is one line: columns would be those of what is not there."""
    left, table = len(code.co_code) // 2, b""
    while left > 0:
        count = min(left, _MOST_INSTRUCTIONS)
        table += bytes([_NO_COLUMNS | count - 1, _SAME_LINE])
        left -= count
    return table
