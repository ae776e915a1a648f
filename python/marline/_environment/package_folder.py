"""The folder in which the executors of a worker unpack packages.

The folder is locked as long as an executor of the worker lives, even if the fork server was killed,
which otherwise removes it. Each fork server of this user that starts or ends on this machine
removes the folders that no process has locked.
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
    """The folder for packages. See the module. Forks of this process share its lock."""

    def __init__(self) -> None:
        sweep()
        self.path, self._lock = _make()
        while not os.path.exists(self.path):  # Another process removed it before it was locked.
            os.close(self._lock)
            self.path, self._lock = _make()

    def remove(self) -> None:
        """Removes the folder, and the folders of this user that no process has locked."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        sweep()


def sweep() -> None:
    """Removes the folders of this user that no process has locked."""
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
