"""The folder in which the executors of a worker unpack packages.

It is locked for as long as one of them lives, also if the process that is to remove it was killed: then the
next one that ends here sees that nobody locks it, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "marline-packages-"
_LOCK = "lock"


class PackageFolder:
    """See the module. Forks of this process share the lock."""

    def __init__(self) -> None:
        self.path, self._lock = _make()
        while not os.path.exists(self.path):  # It was taken for one that others left.
            os.close(self._lock)
            self.path, self._lock = _make()

    def remove(self) -> None:
        """Removes it, and what others left."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError), open(left / _LOCK, "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)


def _make() -> tuple[str, int]:
    path = tempfile.mkdtemp(prefix=_PREFIX)
    lock = os.open(Path(path, _LOCK), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return path, lock
