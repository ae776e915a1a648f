"""The folder in which the executors of a worker unpack packages.

It is locked for as long as one of them lives, also if the fork server that is to remove it was killed. The
next fork server of this user that starts or ends on this machine sees that nobody locks it, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

_PREFIX = "marline-packages-"
_LOCK = "lock"


class PackageFolder:
    """See the module. Forks of this process share the lock."""

    def __init__(self) -> None:
        sweep()
        self.path, self._lock = _make()
        while not os.path.exists(self.path):  # It was taken for one that others left.
            os.close(self._lock)
            self.path, self._lock = _make()

    def remove(self) -> None:
        """Removes it, and the folders of this user that nobody locks."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        sweep()


def sweep() -> None:
    """Removes the folders of this user that nobody locks."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = left.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            with open(left / _LOCK, "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)


def _make() -> tuple[str, int]:
    path = tempfile.mkdtemp(prefix=_PREFIX)
    lock = os.open(Path(path, _LOCK), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return path, lock
