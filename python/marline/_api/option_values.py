"""Checks the values of options.

Options are checked where the user passes them, so that the traceback shows that line and the error
names the option. ``None`` and ``-1`` mean the same as in Ray.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from marline._api.errors import InvalidError
from marline._native import DEFAULT_MAX_UNCONSUMED, MAX_RETURNS, MAX_UNCONSUMED

# The most of any resource, and the most calls that can be counted.
MAX_AMOUNT = 1e9
NO_LIMIT = 2**32 - 1

STREAMING = "streaming"
DYNAMIC = "dynamic"

# Resources with their own option, which are rejected in `resources`.
_OWN = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns checked and converted options.

    An invalid value is a ``TypeError`` or an ``InvalidError``.
    """
    return {name: _CHECKS[name](name, value) if name in _CHECKS else value for name, value in options.items()}


class Returns(NamedTuple):
    """What a task or call returns, as the native module takes it.

    ``results``: the number of results. ``stream``: for a stream, how many items may wait to be
    taken. ``collects``: whether all items come in one result. ``durable``: for a call, whether
    large results outlive their node.
    """

    results: int = 1
    stream: int | None = None
    collects: bool = False
    durable: bool = False


ONE = Returns()


def returns_of(num_returns: int | str, max_unconsumed: int | None) -> Returns:
    """Combines two checked options."""
    if num_returns == STREAMING:
        return Returns(stream=DEFAULT_MAX_UNCONSUMED if max_unconsumed is None else max_unconsumed)
    if max_unconsumed is not None:
        raise TypeError('max_unconsumed is for a stream of items: pass num_returns="streaming", too')
    return Returns(collects=True) if isinstance(num_returns, str) else Returns(num_returns)


def checked_returns(num_returns: Any, max_unconsumed: Any, durable: Any) -> Returns:
    """Checks and combines the options of a method about its results."""
    returns = returns_of(_returns("num_returns", num_returns), _unconsumed("max_unconsumed", max_unconsumed))
    return returns._replace(durable=_bool("durable", durable))


def checked_flag(name: str, value: Any) -> bool:
    """Checks an option that is true or false."""
    return _bool(name, value)


def checked_limit(value: Any) -> float | None:
    """Checks a timeout."""
    return _limit("timeout", value)


def _wrong(name: str, value: Any, expected: str) -> Exception:
    """Returns the error for a value of the wrong type."""
    return TypeError(f"{name} must be {expected}, not {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _number(name: str, value: Any, expected: str) -> float:
    if isinstance(value, str | bytes) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise _wrong(name, value, expected)
    return float(value)


def _amount(name: str, value: Any) -> float:
    number = _number(name, value, "a number")
    if not 0 <= number <= MAX_AMOUNT:
        raise InvalidError(f"{name} must be a number from 0 up to {MAX_AMOUNT:.0e}, not {_short(value)}")
    return number


def _amount_or_none(name: str, value: Any) -> float | None:
    return None if value is None else _amount(name, value)


def _amount_or_nothing(name: str, value: Any) -> float:
    return 0.0 if value is None else _amount(name, value)


def _whole(name: str, value: Any, least: int, most: int = 2**63 - 1) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(name, value, "a whole number")
    number = operator.index(value)
    if number < least:
        raise InvalidError(f"{name} must be a whole number, {least} or more, not {_short(value)}")
    if number > most:
        raise InvalidError(f"{name} must be a whole number, {most} or less, not {_short(value)}")
    return number


def _times(name: str, value: Any) -> int:
    """Checks a number of retries or restarts; -1 is no limit."""
    return _whole(name, value, -1)


def _bytes(name: str, value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 2e9 is a common way to write a size.
    return _whole(name, value, 0)


def _bytes_or_none(name: str, value: Any) -> int | None:
    return None if value is None else _bytes(name, value)


def _folder_or_none(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not isinstance(folder := os.fspath(value), str):
        raise _wrong(name, value, "a folder, or '': then nothing goes to the disk")
    # Made absolute now: this process may change its working directory later.
    return os.path.abspath(folder) if folder else ""


def _resources(name: str, value: Any) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(name, value, 'a dict of names and numbers, such as {"disk": 2}')
    for key in value:
        if not isinstance(key, str) or not key:
            raise _wrong(f"a name in {name}", key, "a str that is not empty")
        if key in _OWN:
            raise InvalidError(f"{name} has {key!r}, which has an option of its own: {_OWN[key]}")
    return {key: _amount(f"{name}[{key!r}]", amount) for key, amount in value.items()}


def _exceptions(name: str, value: Any) -> bool | list[type[BaseException]]:
    if isinstance(value, bool):
        return value
    expected = "True, False or a list of exception classes"
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise _wrong(name, value, expected)
    classes = list(value)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise _wrong(name, value, expected)
    return classes


def _bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False")
    return value


def _text_or_none(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _wrong(name, value, "a str")
    return value


def _returns(name: str, value: Any) -> int | str:
    if isinstance(value, str):
        if value in (STREAMING, DYNAMIC):
            return value
        raise InvalidError(
            f"{name} must be a whole number, {STREAMING!r} or {DYNAMIC!r}, not {_short(value)}"
        )
    return _whole(name, value, 0, MAX_RETURNS)


def _unconsumed(name: str, value: Any) -> int | None:
    return None if value is None else _whole(name, value, 1, MAX_UNCONSUMED)


def _at_least_one(name: str, value: Any) -> int | None:
    return None if value is None else _whole(name, value, 1, NO_LIMIT)


def _pending(name: str, value: Any) -> int:
    return NO_LIMIT if value == -1 else _whole(name, value, 1, NO_LIMIT)


def _lifetime(name: str, value: Any) -> str | None:
    if value not in (None, "detached", "non_detached"):
        raise InvalidError(f"{name} must be 'detached' or 'non_detached', not {_short(value)}")
    return value  # type: ignore[no-any-return]


def _seconds_or_none(name: str, value: Any) -> float | None:
    if value is None:
        return None
    number = _number(name, value, "a number of seconds")
    if not number > 0:
        raise InvalidError(f"{name} must be a number of seconds, more than 0, not {_short(value)}")
    return number


def _limit(name: str, value: Any) -> float | None:
    """Checks a timeout in seconds. ``None`` and infinity are no limit."""
    if value is None:
        return None
    number = _number(name, value, "a number of seconds")
    if not number >= 0:
        words = "a number of seconds, 0 or more, or None for no limit"
        raise InvalidError(f"{name} must be {words}, not {_short(value)}")
    return number


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "num_cpus": _amount_or_none,
    "num_gpus": _amount_or_nothing,
    "memory": _bytes,
    "resources": _resources,
    "object_store_memory": _bytes_or_none,
    "object_spilling_directory": _folder_or_none,
    "max_retries": _times,
    "retry_exceptions": _exceptions,
    "num_returns": _returns,
    "max_unconsumed": _unconsumed,
    "timeout": _limit,
    "preemptible": _bool,
    "durable": _bool,
    "max_restarts": _times,
    "max_task_retries": _times,
    "max_concurrency": _at_least_one,
    "max_pending_calls": _pending,
    "name": _text_or_none,
    "get_if_exists": _bool,
    "lifetime": _lifetime,
    "idle_ttl": _seconds_or_none,
    "checkpoint_every": _at_least_one,
    "checkpoint_interval": _seconds_or_none,
}
