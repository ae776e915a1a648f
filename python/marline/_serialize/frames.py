"""Tracebacks that travel between processes.

Frames cannot be pickled. They travel as file, line and function name, and are made again from
these, so that Python prints the same traceback as in the process that raised.
"""

from __future__ import annotations

import traceback
import types
from collections.abc import Sequence

# The file, the line, and the name of the function of a frame.
Frame = tuple[str, int, str]

# The most frames of a traceback that travel: half of them from each end.
MAX_FRAMES = 100

# The two bytes of an entry in CPython's table of source positions. The first says that no columns are
# known; its low bits have the number of instructions less 1, and an entry is for at most 8. The second
# says that these instructions are on the same line as those of the entry before.
_NO_COLUMNS, _SAME_LINE = 0x80 | 13 << 3, 0
_MOST_INSTRUCTIONS = 8


def frames_of(error: BaseException) -> list[Frame]:
    """Returns the frames of an exception's traceback."""
    walked = list(traceback.walk_tb(error.__traceback__))
    if len(walked) > MAX_FRAMES:
        walked[MAX_FRAMES // 2 : -MAX_FRAMES // 2] = []
    return [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]


def traceback_of(frames: Sequence[Frame]) -> types.TracebackType | None:
    """Makes a traceback with these frames."""
    result: types.TracebackType | None = None
    for frame in reversed(frames):
        raised = _raised(*frame)
        result = types.TracebackType(result, raised.tb_frame, raised.tb_lasti, frame[1])
    return result


def _raised(file: str, line: int, name: str) -> types.TracebackType:
    """Returns the traceback of a made-up function that raises at this line of this file."""
    code = compile("raise Exception", file, "exec")
    code = code.replace(co_name=name, co_qualname=name, co_firstlineno=line, co_linetable=_table(code))
    try:
        exec(code, {})
    except Exception as error:
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        return error.__traceback__.tb_next
    raise AssertionError("it raises")


def _table(code: types.CodeType) -> bytes:
    """Returns a table with all code on one line. The columns of the original code are unknown."""
    left, table = len(code.co_code) // 2, b""
    while left > 0:
        count = min(left, _MOST_INSTRUCTIONS)
        table += bytes([_NO_COLUMNS | count - 1, _SAME_LINE])
        left -= count
    return table
