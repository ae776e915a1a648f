"""Waiting for a condition, with the longest wait of a test."""

from __future__ import annotations

import time
from collections.abc import Callable

# The longest wait of a test, in seconds: far longer than any step takes on a busy machine.
PATIENCE = 60.0


def wait_until(what: str | Callable[[], str], condition: Callable[[], bool]) -> None:
    """Waits until the condition holds. Fails with `what` after a minute.

    `what` says what the condition is. A function is called only when the wait fails.
    """
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited a minute: {what() if callable(what) else what}"
        time.sleep(0.002)
