"""Inside an executor: applies a runtime environment to this process, once."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

from marline._api import values
from marline._api.errors import MarlineError, RuntimeEnvError, TaskCancelledError
from marline._environment import environment, packing
from marline._environment.environment import Package, RuntimeEnv
from marline._environment.ship import read
from marline._session import sessions

# How long to wait for a package, in seconds.
FETCH_PATIENCE = 300.0

_is_applied = False


def apply(description: bytes) -> None:
    """Fetches missing packages, and applies the environment.

    Work that this process submits inherits it.
    """
    global _is_applied
    if _is_applied:
        return  # An executor runs in one environment.
    try:
        env = read(description)
        path = _paths(env)
        os.environ.update(env.env_vars)
        if env.working_dir is not None:
            os.chdir(path[0])
    except TaskCancelledError:
        raise
    except (OSError, MarlineError) as error:
        raise RuntimeEnvError(
            f"the runtime_env could not be set up on {os.uname().nodename}: {error}"
        ) from error
    sys.path[:0] = path
    environment.executor_env = env
    _is_applied = True


def _paths(env: RuntimeEnv) -> list[str]:
    """Returns the folders for modules: the working directory first, then ``py_modules``."""
    packages = env.working_dir, *(env.py_modules or ())
    return [str(_unpacked(package)) for package in packages if isinstance(package, Package)]


def _unpacked(package: Package) -> Path:
    """Returns the folder of a package. The first executor that needs it unpacks it."""
    folder = environment.package_root
    if folder is None:
        raise RuntimeEnvError("its worker cannot write to a folder for packages (TMPDIR)")
    target = Path(folder, package.hash)
    if target.is_dir():
        return target
    target.parent.mkdir(exist_ok=True)
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Until the file is closed, or the process ends.
        if not target.is_dir():
            data = values.get(package.reference(sessions.current().native), timeout=FETCH_PATIENCE)
            if packing.digest(data) != package.hash:
                raise RuntimeEnvError(f"package {package.hash} arrived damaged: its hash does not match")
            packing.unpack(data, target)
    return target
