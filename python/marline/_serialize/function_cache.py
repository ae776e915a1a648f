"""A cache of remote functions for ``Executor`` and ``Context``.

Both get a plain function with each call. A function is identified by its pickled code. So a
function whose object or variables have changed is a new one, and an unchanged function is sent to
the cluster once.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable
from typing import Any

from marline._api.options import Options
from marline._api.remote import RemoteFunction
from marline._serialize.pickling import dumps_code

# The most functions in a cache. The one that was not used for the longest time is removed first.
MAX_FUNCTIONS = 256


class FunctionCache:
    """The remote forms of recently used functions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[tuple[str, str], RemoteFunction] = collections.OrderedDict()

    def remote(self, function: Callable[..., Any], options: Options) -> RemoteFunction:
        """Returns the remote form of a function with these options."""
        if options.name is None:
            options = options._replace(name=name_of(function))
        code = dumps_code(function)
        # Values of options cannot always be hashed, so their text is part of the key.
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


def unwrap_remote(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the plain function of a remote function; any other callable as it is."""
    return function.__marline_remote__ if isinstance(function, RemoteFunction) else function


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a task that calls a function."""
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else name
