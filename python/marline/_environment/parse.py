"""Parses and checks the ``runtime_env`` that a user passes."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from marline._api.errors import InvalidError
from marline._environment.environment import RuntimeEnv, Source

_KEYS = ("env_vars", "excludes", "py_modules", "working_dir")
_PYTHON = "the Python that workers run (marline worker --python PROGRAM)"
_PACKAGES = f"install the packages in {_PYTHON}"
_CONTAINER = "start the worker inside the container"
_INSTEAD = {
    "pip": _PACKAGES,
    "uv": _PACKAGES,
    "conda": _PACKAGES,
    "container": _CONTAINER,
    "image_uri": _CONTAINER,
}


def parse_mapping(raw: Any) -> RuntimeEnv:
    """Parses a ``runtime_env``. Raises ``InvalidError`` for an unknown key and for an invalid value."""
    if not isinstance(raw, Mapping):
        raise InvalidError(f"runtime_env must be a dict, not {type(raw).__name__}")
    for key in raw:
        if key not in _KEYS:
            instead = f": {_INSTEAD[key]}" if key in _INSTEAD else _meant(key)
            raise InvalidError(f"runtime_env has no key {key!r}{instead}. Its keys are {', '.join(_KEYS)}")
    excludes = _strings("excludes", raw.get("excludes") or ())
    folder, modules = raw.get("working_dir"), raw.get("py_modules")
    return RuntimeEnv(
        _variables(raw.get("env_vars") or {}),
        None if folder is None else _folder(folder, excludes),
        None
        if modules is None
        else tuple(_module(module, excludes) for module in _list("py_modules", modules)),
    )


def _meant(key: Any) -> str:
    from marline._api.typo import suggestion

    return suggestion(str(key), _KEYS)


def _variables(raw: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(raw, Mapping):
        raise InvalidError(f"env_vars must be a dict, not {type(raw).__name__}")
    for name, value in raw.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidError(f"names and values of env_vars must be strings: {name!r} is {value!r}")
        if not name or "=" in name or "\0" in name + value:
            raise InvalidError(f"env_vars: {name!r} is {value!r}, which cannot be in an environment")
    return tuple(sorted(raw.items()))


def _list(what: str, raw: Any) -> list[Any]:
    if isinstance(raw, str | os.PathLike) or not isinstance(raw, Iterable):
        raise InvalidError(f"{what} must be a list, not {type(raw).__name__}")
    return list(raw)


def _strings(what: str, raw: Any) -> tuple[str, ...]:
    values = _list(what, raw)
    wrong = next((value for value in values if not isinstance(value, str)), None)
    if wrong is not None:
        raise InvalidError(f"{what} must be a list of strings: {wrong!r} is not a string")
    return tuple(values)


def _folder(raw: Any, excludes: tuple[str, ...]) -> Source:
    if not isinstance(raw, str | os.PathLike):
        raise InvalidError(f"working_dir must be the path of a folder, not {type(raw).__name__}")
    return Source("working_dir", _absolute(raw), "", excludes)


def _module(raw: Any, excludes: tuple[str, ...]) -> Source:
    path = Path(_absolute(_path_of(raw)))
    if path.suffix != ".py" and path.is_file():
        raise InvalidError(
            f"py_modules: {path} is neither a folder nor a .py file. To install a package, "
            f"install it in {_PYTHON}"
        )
    # The module is found by its name in the folder to which the package is unpacked.
    prefix = "" if path.suffix == ".py" else f"{path.name}/"
    return Source("py_modules", str(path), prefix, excludes, is_module=True)


def _path_of(raw: Any) -> Any:
    """Returns the path of a module. ``raw`` is its path, or the imported module."""
    if isinstance(raw, str | os.PathLike):
        return raw
    if not isinstance(raw, types.ModuleType):
        raise InvalidError(f"py_modules must be a list of paths and modules: {raw!r} is neither")
    # A module inside a package cannot be imported without the package.
    top = sys.modules.get(raw.__name__.partition(".")[0], raw)
    paths = list(getattr(top, "__path__", [])) or [getattr(top, "__file__", None)]
    if len(paths) != 1 or not paths[0]:
        raise InvalidError(
            f"py_modules: {top.__name__} is not one folder or one .py file. Pass its path, or "
            f"install it in {_PYTHON}"
        )
    return paths[0]


def _absolute(raw: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.path.expanduser(raw))
