"""Functions that are given at each call, not declared once: they are known by their pickled code.

A function that means something else than before (its object changed, or a variable that it uses) is
another one; one that is the same goes to the cluster once.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable
from typing import Any

from marline._options import Options
from marline._pickle import dumps_code
from marline._remote import RemoteFunction

# So many are known at a time; the one that was not used for longest goes first.
MAX_FUNCTIONS = 256


class Codes:
    """The functions that were given, as remote ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[tuple[str, str], RemoteFunction] = collections.OrderedDict()

    def remote(self, function: Callable[..., Any], options: Options) -> RemoteFunction:
        """The remote form of a function."""
        if options.name is None:
            options = options._replace(name=name_of(function))
        code = dumps_code(function)
        # What options hold cannot always be hashed: their text tells them apart.
        key = code.key, repr(options)
        with self._lock:
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = RemoteFunction(function, options)
                known._code = code
                if len(self._known) > MAX_FUNCTIONS:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
        return known


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is to be called: a remote function stands for the one that it was made of."""
    return function.__marline_remote__ if isinstance(function, RemoteFunction) else function


def name_of(function: Callable[..., Any]) -> str:
    """What a task is called that calls a function."""
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else name
