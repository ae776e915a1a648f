"""Where user code is, and what work that is submitted there has from it."""

from __future__ import annotations

import contextvars
from typing import Any

from marline import _native, _propagate

# The task or call that runs.
current: contextvars.ContextVar[_native.Scope | None] = contextvars.ContextVar("marline", default=None)


def around() -> tuple[dict[str, Any] | None, _native.Scope | None]:
    """What surrounds what is submitted here; called by the native module."""
    return _propagate.values(), current.get()
