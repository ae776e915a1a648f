"""An executor that is a Python started anew, for code that a fork would trouble.

The fork that was to be one has become this program; what it knew comes over a pipe, whose number is its
argument.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def become_spawned(variable: str) -> None:
    """Makes this fork a Python of its own that is an executor. Standard streams are what they are to be."""
    from marline import _runtime_env, _session

    said = {
        "variable": variable,
        "path": sys.path,
        "home": _session.home,
        "packages": _runtime_env.folder,
    }
    # Not the environment, which user code may show around: there is a token in it.
    reader, writer = os.pipe()
    os.write(writer, json.dumps(said).encode())
    os.set_inheritable(reader, True)
    os.execv(sys.executable, [sys.executable, "-m", "marline._spawned", str(reader)])


def main() -> None:
    """Is an executor until this process ends."""
    with os.fdopen(int(sys.argv[1]), "rb") as pipe:
        said: dict[str, Any] = json.loads(pipe.read(MAX_BYTES))
    sys.path[:] = said["path"]
    from marline import _forkserver, _runtime_env, _session

    _session.home = said["home"] and tuple(said["home"])
    _runtime_env.folder = said["packages"]
    _forkserver.serve(said["variable"])


# As much as a pipe holds without anybody who reads it.
MAX_BYTES = 64 << 10

if __name__ == "__main__":
    main()
