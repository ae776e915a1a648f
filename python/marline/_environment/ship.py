"""Runtime environments as they travel: packed where work is submitted, read in executors."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import TYPE_CHECKING

from marline._environment import packing
from marline._environment.environment import SCHEME, Package, RuntimeEnv, ShippedEnv, Source
from marline._environment.packing import Entry
from marline._native import ObjectRef

if TYPE_CHECKING:
    from marline._session.session import Session


def ship(env: RuntimeEnv, session: Session) -> ShippedEnv:
    """Packs and puts the files of an environment that are not in the session yet."""
    cache, references = _cache_of(session), []

    def package(source: Source | Package) -> Package:
        put, reference = cache.put(source)
        references.append(reference)
        return put

    folder = None if env.working_dir is None else package(env.working_dir)
    modules = None if env.py_modules is None else tuple(package(module) for module in env.py_modules)
    content = env.env_vars, folder and folder.hash, [module.hash for module in modules or ()]
    key = hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()
    description = {
        "env_vars": env.env_vars,
        "working_dir": folder and folder._asdict(),
        "py_modules": modules and [module._asdict() for module in modules],
    }
    return ShippedEnv(
        RuntimeEnv(env.env_vars, folder, modules),
        f"{SCHEME}/{key}",
        json.dumps(description).encode(),
        references,
    )


def read(description: bytes) -> RuntimeEnv:
    """Reads an environment that has travelled."""
    env = json.loads(description)
    folder, modules = env["working_dir"], env["py_modules"]
    return RuntimeEnv(
        tuple((name, value) for name, value in env["env_vars"]),
        folder and Package(**folder),
        None if modules is None else tuple(Package(**module) for module in modules),
    )


class PackageCache:
    """The packages of one session.

    Packages of the session before are put again when they are needed.
    """

    def __init__(self, session: Session, before: PackageCache | None) -> None:
        self._session = session.native
        self.number = session.native.number
        self._lock = threading.Lock()
        self._references: dict[str, ObjectRef] = {}
        # The files of each packed source at that time, and the hash of the package.
        self._packed: dict[Source, tuple[list[Entry], str]] = {}
        # The source of each package, by its hash, also of packages of the session before.
        self._sources: dict[str, Source] = {} if before is None else dict(before._sources)

    def put(self, source: Source | Package) -> tuple[Package, ObjectRef]:
        """Packs and puts a source, unless it is unchanged.

        Returns the package and a reference to it.
        """
        with self._lock:
            key = self._key(source)
            reference = self._references[key]
        return Package(key, reference.task_id()), reference

    def _key(self, source: Source | Package) -> str:
        if isinstance(source, Source):
            return self._pack(source)
        if source.hash not in self._references:
            if source.hash in self._sources:
                return self._pack(self._sources[source.hash])  # Its files as they are now.
            self._references[source.hash] = source.reference(self._session)
        return source.hash

    def _pack(self, source: Source) -> str:
        found = packing.entries(source)
        before = self._packed.get(source)
        if before is not None and before[0] == found:
            return before[1]
        data = packing.pack(source, found)
        key = packing.digest(data)
        if key not in self._references:
            # A new reference: the one from the put would keep all the bytes in this process.
            put = self._session.put_raw(data)
            self._references[key] = Package(key, put.task_id()).reference(self._session)
        self._packed[source] = found, key
        self._sources[key] = source
        return key


def _cache_of(session: Session) -> PackageCache:
    cache = session.packages
    if cache is None or cache.number != session.native.number:
        cache = session.packages = PackageCache(session, cache)
    return cache
