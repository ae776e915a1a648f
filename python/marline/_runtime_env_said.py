"""What a user says of a runtime environment, checked."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from marline._errors import InvalidError
from marline._runtime_env import RuntimeEnv, Source

_KEYS = ("env_vars", "excludes", "py_modules", "working_dir")
_INSTALL = "install it in the Python that workers run (marline worker --python PROGRAM)"
_CONTAIN = "start the worker inside of it"
_INSTEAD = {"pip": _INSTALL, "uv": _INSTALL, "conda": _INSTALL, "container": _CONTAIN, "image_uri": _CONTAIN}


def understood(said: Any) -> RuntimeEnv:
    """What was meant."""
    if not isinstance(said, Mapping):
        raise InvalidError(f"runtime_env is a dict, not {type(said).__name__}")
    for key in said:
        if key not in _KEYS:
            instead = f": {_INSTEAD[key]}" if key in _INSTEAD else _meant(key)
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


def _meant(key: Any) -> str:
    from marline._typo import meant

    return meant(str(key), _KEYS)


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
