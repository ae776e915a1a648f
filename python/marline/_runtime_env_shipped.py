"""Runtime environments as they travel: packed and put where work is submitted, read where it runs."""

from __future__ import annotations

import hashlib
import json
import threading

from marline import _native, _package
from marline._native import ObjectRef
from marline._package import Entry
from marline._runtime_env import SCHEME, Package, RuntimeEnv, Shipped, Source


def ship(env: RuntimeEnv, session: _native.Session) -> Shipped:
    """Packs and puts what is not in the session yet."""
    store, references = _store_of(session), []

    def package(source: Source | Package) -> Package:
        put, reference = store.put(source)
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
    return Shipped(
        RuntimeEnv(env.env_vars, folder, modules),
        f"{SCHEME}/{key}",
        json.dumps(description).encode(),
        references,
    )


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
