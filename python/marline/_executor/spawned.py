"""An executor that is a newly started Python (``MARLINE_START_METHOD=spawn``).

It is for code that does not work in a fork. The fork server forks as usual. The fork then replaces
itself by a new Python that runs this module. The new Python reads its setup from a pipe, whose
descriptor is its only argument.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def become_spawned(variable: str) -> None:
    """Replaces this fork by a new Python that is an executor.

    The standard streams are set already.
    """
    from marline._environment import environment
    from marline._session import sessions

    setup = {
        "variable": variable,
        "path": sys.path,
        "cluster": sessions.executor_cluster,
        "packages": environment.package_root,
    }
    # Not in an environment variable, which user code may print: the setup has a token.
    reader, writer = os.pipe()
    os.write(writer, json.dumps(setup).encode())
    os.set_inheritable(reader, True)
    os.execv(sys.executable, [sys.executable, "-m", "marline._executor.spawned", str(reader)])


def main() -> None:
    """Runs an executor until this process ends."""
    with os.fdopen(int(sys.argv[1]), "rb") as pipe:
        setup: dict[str, Any] = json.loads(pipe.read(MAX_BYTES))
    sys.path[:] = setup["path"]
    from marline._environment import environment
    from marline._executor import forkserver
    from marline._session import sessions

    sessions.executor_cluster = setup["cluster"] and tuple(setup["cluster"])
    environment.package_root = setup["packages"]
    forkserver.serve(setup["variable"])


# The largest setup, in bytes: what a pipe holds before it is read.
MAX_BYTES = 64 << 10

if __name__ == "__main__":
    main()
