"""The lines that a driver prints about failures whose errors were never read.

Called by the native module.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marline._errors import class_of
from marline._output import short

if TYPE_CHECKING:
    from marline import _native

TOO_MANY = "(marline) other failures that nobody reads are not printed in this session: there are too many"


def show(failures: Sequence[_native._UnreadFailure | None]) -> None:
    """Writes a line for each failure to ``sys.stderr``.

    ``None`` stands for the line about too many.
    """
    text = "".join(f"{TOO_MANY if failure is None else line(failure)}\n" for failure in failures)
    if sys.stderr is not None:
        with contextlib.suppress(Exception):  # The stream may be closed.
            sys.stderr.write(text)
            sys.stderr.flush()


def line(failure: _native._UnreadFailure) -> str:
    """Returns the line about one failure."""
    what, name, kind, class_name, message, is_value_gone, is_out_of_memory = failure
    if class_name is None:
        class_name = class_of(kind, is_value_gone, is_out_of_memory).__name__
    error = f"{class_name}: {message}" if message else class_name
    if what == "actor":
        return (
            f"(marline) the constructor of actor {short(name)} failed, and nobody called it: {error} "
            "(get() a call to it to see the traceback)"
        )
    return (
        f"(marline) {what} {short(name)} failed, and nobody read its error: {error} "
        "(get() its reference to see the traceback)"
    )
