"""The lines that a driver prints about failures whose errors were never read.

Called by the native module.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marline._api.errors import class_of
from marline._session.output import short

if TYPE_CHECKING:
    from marline import _native

TOO_MANY = "(marline) other failures that nobody reads are not printed in this session: there are too many"


def show(failures: Sequence[_native.UnreadNotice | None]) -> None:
    """Writes a line for each failure to ``sys.stderr``.

    ``None`` stands for the line about too many.
    """
    text = "".join(f"{TOO_MANY if failure is None else line(failure)}\n" for failure in failures)
    if sys.stderr is not None:
        with contextlib.suppress(Exception):  # The stream may be closed.
            sys.stderr.write(text)
            sys.stderr.flush()


def line(failure: _native.UnreadNotice) -> str:
    """Returns the line about one failure."""
    class_name, name = failure.class_name, short(failure.name)
    if class_name is None:
        class_name = class_of(failure.kind, failure.is_value_gone, failure.is_out_of_memory).__name__
    error = f"{class_name}: {failure.message}" if failure.message else class_name
    if failure.what == "actor":
        return (
            f"(marline) the constructor of actor {name} failed, and nobody called it: {error} "
            "(get() a call to it to see the traceback)"
        )
    return (
        f"(marline) {failure.what} {name} failed, and nobody read its error: {error} "
        "(get() its reference to see the traceback)"
    )
