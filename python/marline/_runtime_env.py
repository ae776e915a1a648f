"""Runtime environments: what was said of where work runs, checked, and as it travels.

Executors run in one environment for as long as they live. Its hash is part of the name of what runs in it,
so that a worker keeps executors of different environments apart. What has to be on the executor's machine
goes there as packages: values that the first executor which needs them fetches.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import threading
import types
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from marline import _native, _package
from marline._errors import InvalidError
from marline._native import ObjectRef
from marline._package import Entry, Source

# The scheme of what runs in no environment of its own.
SCHEME = "python"

_KEYS = ("env_vars", "excludes", "py_modules", "working_dir")
_INSTALL = "install it in the Python that workers run (marline worker --python PROGRAM)"
_CONTAIN = "start the worker inside of it"
_INSTEAD = {"pip": _INSTALL, "uv": _INSTALL, "conda": _INSTALL, "container": _CONTAIN, "image_uri": _CONTAIN}


@dataclasses.dataclass(frozen=True)
class Package:
    """What was packed and put."""

    hash: str
    #: The id of the value.
    origin: str

    def reference(self) -> ObjectRef:
        """A reference to it in this process's session."""
        return ObjectRef._load(uuid.UUID(self.origin).bytes, 0)


@dataclasses.dataclass(frozen=True)
class RuntimeEnv:
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


def parse(said: Any) -> RuntimeEnv:
    """What a user said, checked. Nothing is packed yet, or looked for: a module that says it may be read on
    another machine."""
    if said is None or isinstance(said, RuntimeEnv):
        return said or NOTHING
    if not isinstance(said, Mapping):
        raise InvalidError(f"runtime_env is a dict, not {type(said).__name__}")
    for key in said:
        if key not in _KEYS:
            instead = f": {_INSTEAD[key]}" if key in _INSTEAD else ""
            raise InvalidError(f"runtime_env has no {key!r}{instead}. There are {', '.join(_KEYS)}")
    excludes = _strings("excludes", said.get("excludes") or ())
    folder, modules = said.get("working_dir"), said.get("py_modules")
    return RuntimeEnv(
        _variables(said.get("env_vars") or {}),
        None if folder is None else _folder(folder, excludes),
        None
        if modules is None
        else tuple(_module(module, excludes) for module in _list("py_modules", modules)),
    )


def _variables(said: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(said, Mapping):
        raise InvalidError(f"env_vars is a dict, not {type(said).__name__}")
    for name, value in said.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidError(f"env_vars has strings for names and values: {name!r} is {value!r}")
        if not name or "=" in name or "\0" in name + value:
            raise InvalidError(f"env_vars: {name!r} is {value!r}, which cannot be in an environment")
    return tuple(sorted(said.items()))


def _list(what: str, said: Any) -> list[Any]:
    if isinstance(said, str | os.PathLike) or not isinstance(said, Iterable):
        raise InvalidError(f"{what} is a list, not {type(said).__name__}")
    return list(said)


def _strings(what: str, said: Any) -> tuple[str, ...]:
    values = _list(what, said)
    wrong = next((value for value in values if not isinstance(value, str)), None)
    if wrong is not None:
        raise InvalidError(f"{what} has strings: {wrong!r} is none")
    return tuple(values)


def _folder(said: Any, excludes: tuple[str, ...]) -> Source:
    if not isinstance(said, str | os.PathLike):
        raise InvalidError(f"working_dir is the path of a folder, not {type(said).__name__}")
    return Source("working_dir", _absolute(said), "", excludes)


def _module(said: Any, excludes: tuple[str, ...]) -> Source:
    path = Path(_absolute(_path_of(said)))
    if path.suffix != ".py" and path.is_file():
        raise InvalidError(
            f"py_modules: {path} is neither a folder nor a .py file. If it is to be installed, {_INSTALL}"
        )
    # Found by its name in the folder it is unpacked to.
    prefix = "" if path.suffix == ".py" else f"{path.name}/"
    return Source("py_modules", str(path), prefix, excludes, is_module=True)


def _path_of(said: Any) -> Any:
    """Where a module is that was named by its path, or imported."""
    if isinstance(said, str | os.PathLike):
        return said
    if not isinstance(said, types.ModuleType):
        raise InvalidError(f"py_modules has paths and modules: {said!r} is neither")
    # A module inside a package is of no use without it.
    top = sys.modules.get(said.__name__.partition(".")[0], said)
    paths = list(getattr(top, "__path__", [])) or [getattr(top, "__file__", None)]
    if len(paths) != 1 or not paths[0]:
        raise InvalidError(
            f"py_modules: {top.__name__} is not one folder or one .py file. Say its path, or {_INSTALL}"
        )
    return paths[0]


def _absolute(said: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.path.expanduser(said))


class Shipped:
    """An environment in a session: what is to be packed was packed, and put."""

    def __init__(self, said: RuntimeEnv, session: _native.Session) -> None:
        env, store = said.over(around), _store_of(session)
        #: References to its packages.
        self.packages: list[ObjectRef] = []
        folder, modules = env.working_dir, env.py_modules
        shipped_folder = None if folder is None else self._ship(folder, store)
        shipped_modules = None if modules is None else tuple(self._ship(module, store) for module in modules)
        self.env = RuntimeEnv(env.env_vars, shipped_folder, shipped_modules)
        #: The scheme of the names of what runs in it.
        self.runtime = SCHEME
        #: It as it travels; nothing if nothing was said.
        self.description: bytes | None = None
        if self.env != NOTHING:
            hashes = [package.hash for package in shipped_modules or ()]
            content = env.env_vars, shipped_folder and shipped_folder.hash, hashes
            self.runtime += "/" + hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()
            self.description = json.dumps(dataclasses.asdict(self.env)).encode()

    def _ship(self, source: Source | Package, store: Store) -> Package:
        package, reference = store.put(source)
        self.packages.append(reference)
        return package


def read(description: bytes) -> RuntimeEnv:
    """What travelled."""
    env = json.loads(description)
    folder, modules = env["working_dir"], env["py_modules"]
    return RuntimeEnv(
        tuple((name, value) for name, value in env["env_vars"]),
        folder and Package(**folder),
        None if modules is None else tuple(Package(**module) for module in modules),
    )


class Store:
    """The packages of one session. What was put in the one before is put again when it is needed."""

    def __init__(self, session: _native.Session, before: Store | None) -> None:
        self.session = session
        self.number = session.number
        self._lock = threading.Lock()
        self._references: dict[str, ObjectRef] = {}
        # What was packed, as it was then.
        self._packed: dict[Source, tuple[list[Entry], str]] = {}
        # What packages were made of, also those that are gone.
        self._sources: dict[str, Source] = {} if before is None else dict(before._sources)

    def put(self, source: Source | Package) -> tuple[Package, ObjectRef]:
        """Packs and puts what is not there yet."""
        with self._lock:
            key = self._key(source)
            reference = self._references[key]
        return Package(key, reference.task_id()), reference

    def _key(self, source: Source | Package) -> str:
        if isinstance(source, Source):
            return self._pack(source)
        if source.hash not in self._references:
            if source.hash in self._sources:
                return self._pack(self._sources[source.hash])  # As it is now.
            self._references[source.hash] = source.reference()
        return source.hash

    def _pack(self, source: Source) -> str:
        found = _package.entries(source)
        before = self._packed.get(source)
        if before is not None and before[0] == found:
            return before[1]
        data = _package.pack(source, found)
        key = _package.digest(data)
        if key not in self._references:
            # A reference of its own: that of the put has all of the bytes.
            put = self.session.put_raw(data)
            self._references[key] = Package(key, put.task_id()).reference()
        self._packed[source] = found, key
        self._sources[key] = source
        return key


_store: Store | None = None


def _store_of(session: _native.Session) -> Store:
    global _store
    store = _store
    if store is None or store.session is not session:
        store = _store = Store(session, None)
    elif store.number != session.number:
        store = _store = Store(session, store)
    return store
