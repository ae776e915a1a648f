"""Inside an executor: makes this process what a runtime environment says, once."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

from marline import _package, _runtime_env, _session
from marline._errors import MarlineError, RuntimeEnvError, TaskCancelledError
from marline._runtime_env import Package, RuntimeEnv
from marline._runtime_env_shipped import read

# How long a package may take to come.
FETCH_PATIENCE = 300.0

_is_applied = False


def apply(description: bytes) -> None:
    """Fetches what is missing; then this process is what was described, and what it submits inherits it."""
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
            f"the runtime_env could not be made on {os.uname().nodename}: {error}"
        ) from error
    sys.path[:0] = path
    _runtime_env.around = env
    _is_applied = True


def _paths(env: RuntimeEnv) -> list[str]:
    """Where modules are looked for first; in the working directory before all others."""
    packages = env.working_dir, *(env.py_modules or ())
    return [str(_unpacked(package)) for package in packages if isinstance(package, Package)]


def _unpacked(package: Package) -> Path:
    """The folder of a package; the first that needs it makes it."""
    folder = _runtime_env.folder
    if folder is None:
        raise RuntimeEnvError("its worker cannot write to a folder for packages (TMPDIR)")
    target = Path(folder, package.hash)
    if target.is_dir():
        return target
    target.parent.mkdir(exist_ok=True)
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Until it is closed, or its process ends.
        if not target.is_dir():
            data = _session.get(package.reference(), timeout=FETCH_PATIENCE)
            if _package.digest(data) != package.hash:
                raise RuntimeEnvError(f"package {package.hash} came as something else")
            _package.unpack(data, target)
    return target
