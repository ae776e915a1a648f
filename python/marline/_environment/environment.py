"""Runtime environments: the variables, working directory and modules that work runs with.

An executor runs in one environment as long as it lives. The hash of the environment is part of the
name of the functions that run in it, so that a worker keeps executors of different environments
apart. Files travel as packages: objects that the first executor which needs them fetches and
unpacks.

Most work has no environment, so the other parts are imported only when one is used:
``_environment.parse`` parses what the user has passed, ``_environment.ship`` packs and puts it,
``_environment.apply`` applies it in an executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from marline._native import ObjectRef

if TYPE_CHECKING:
    from marline import _native
    from marline._session.session import Session

# The scheme of the names of functions that run without an environment.
SCHEME = "python"


class Source(NamedTuple):
    """A folder or file of this machine that is packed when work is submitted."""

    #: The key of the runtime_env that names it, for messages.
    what: str
    path: str
    #: The folder inside the package that has its content.
    prefix: str = ""
    excludes: tuple[str, ...] = ()
    #: Whether it is a module, which may be a file.
    is_module: bool = False


class Package(NamedTuple):
    """A package that was put."""

    hash: str
    #: The id of the object, as text.
    origin: str

    def reference(self, session: _native.Session) -> ObjectRef:
        """Returns a reference to the package."""
        return ObjectRef._load(bytes.fromhex(self.origin.replace("-", "")), 0, session)


class RuntimeEnv(NamedTuple):
    """A runtime environment. A part that is ``None`` or empty comes from the submitting process."""

    env_vars: tuple[tuple[str, str], ...] = ()
    working_dir: Source | Package | None = None
    py_modules: tuple[Source | Package, ...] | None = None

    def with_defaults(self, defaults: RuntimeEnv) -> RuntimeEnv:
        """Returns this environment, completed by ``defaults``, with the variables of both."""
        return RuntimeEnv(
            tuple(sorted({**dict(defaults.env_vars), **dict(self.env_vars)}.items())),
            defaults.working_dir if self.working_dir is None else self.working_dir,
            defaults.py_modules if self.py_modules is None else self.py_modules,
        )


NOTHING = RuntimeEnv()
# The environment of this executor. Work that is submitted here inherits it.
executor_env = NOTHING
# The folder in which packages are unpacked. The executors of a worker share it, and it ends with
# the worker.
package_root: str | None = None


class ShippedEnv:
    """An environment whose packages were put into a session."""

    def __init__(
        self,
        env: RuntimeEnv,
        runtime: str = SCHEME,
        description: bytes | None = None,
        packages: Sequence[ObjectRef] = (),
    ) -> None:
        self.env = env
        #: The scheme of the names of functions that run in it.
        self.runtime = runtime
        #: The environment as it travels; ``None`` if it is empty.
        self.description = description
        #: References to its packages.
        self.packages = list(packages)


def parse(raw: Any) -> RuntimeEnv:
    """Checks a ``runtime_env`` that a user has passed.

    Does not pack or look up files: a module with such an option may be imported on another machine.
    """
    if raw is None or isinstance(raw, RuntimeEnv):
        return raw or NOTHING
    from marline._environment.parse import parse_mapping

    return parse_mapping(raw)


def ship_env(env: RuntimeEnv, session: Session) -> ShippedEnv:
    """Puts the packages of an environment, with the session's defaults, into a session."""
    env = env.with_defaults(session.default_env).with_defaults(executor_env)
    if env == NOTHING:
        return ShippedEnv(env)
    from marline._environment.ship import ship

    return ship(env, session)
