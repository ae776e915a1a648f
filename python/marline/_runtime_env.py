"""Runtime environments: where work runs, as it was said and as it travels.

Executors run in one environment for as long as they live. Its hash is part of the name of what runs in it,
so that a worker keeps executors of different environments apart. What has to be on the executor's machine
goes there as packages: values that the first executor which needs them fetches.

Most work has none: what is said is understood in ``_runtime_env_said``, and packed and put in
``_runtime_env_shipped``, which are imported only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from marline import _native
from marline._native import ObjectRef

# The scheme of what runs in no environment of its own.
SCHEME = "python"


class Source(NamedTuple):
    """A folder or file of this machine that is to be packed."""

    #: Which part of a runtime_env it is, for messages.
    what: str
    path: str
    #: What its content is under, where it is unpacked.
    prefix: str = ""
    excludes: tuple[str, ...] = ()
    #: Whether it may be a file.
    is_module: bool = False


class Package(NamedTuple):
    """What was packed and put."""

    hash: str
    #: The id of the value.
    origin: str

    def reference(self) -> ObjectRef:
        """A reference to it in this process's session."""
        return ObjectRef._load(bytes.fromhex(self.origin.replace("-", "")), 0)


class RuntimeEnv(NamedTuple):
    """What was said. What was not said is nothing, and comes from where the work is submitted."""

    env_vars: tuple[tuple[str, str], ...] = ()
    working_dir: Source | Package | None = None
    py_modules: tuple[Source | Package, ...] | None = None

    def over(self, outer: RuntimeEnv) -> RuntimeEnv:
        """This one where it says something, otherwise what is around it; variables of both."""
        return RuntimeEnv(
            tuple(sorted({**dict(outer.env_vars), **dict(self.env_vars)}.items())),
            outer.working_dir if self.working_dir is None else self.working_dir,
            outer.py_modules if self.py_modules is None else self.py_modules,
        )


NOTHING = RuntimeEnv()
# What work has that is submitted in this process: said to `init`, or what this executor runs in.
around = NOTHING
# Where packages are unpacked: a folder that the executors of a worker share, and that ends with it.
folder: str | None = None


class Shipped:
    """An environment in a session: what is to be packed was packed, and put."""

    def __init__(
        self,
        env: RuntimeEnv,
        runtime: str = SCHEME,
        description: bytes | None = None,
        packages: Sequence[ObjectRef] = (),
    ) -> None:
        self.env = env
        #: The scheme of the names of what runs in it.
        self.runtime = runtime
        #: It as it travels; nothing if nothing was said.
        self.description = description
        #: References to its packages.
        self.packages = list(packages)


def parse(said: Any) -> RuntimeEnv:
    """What a user said, checked. Nothing is packed yet, or looked for: a module that says it may be read on
    another machine."""
    if said is None or isinstance(said, RuntimeEnv):
        return said or NOTHING
    from marline._runtime_env_said import understood

    return understood(said)


def shipped(said: RuntimeEnv, session: _native.Session) -> Shipped:
    """What was said, with what is around it, in a session."""
    env = said.over(around)
    if env == NOTHING:
        return Shipped(env)
    from marline._runtime_env_shipped import ship

    return ship(env, session)
