"""The options of ``Context.options()``: which exist, and which are for tasks and for actors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from marline._api.errors import InvalidError
from marline._api.options import ACTOR_OPTIONS, TASK_OPTIONS, Options
from marline._api.typo import suggestion

# A task of a context has one future, so options about several results are left out.
_FOR_TASKS = TASK_OPTIONS - {"num_returns", "max_unconsumed"}
_FOR_ACTORS = ACTOR_OPTIONS
_KNOWN = _FOR_TASKS | _FOR_ACTORS

# An actor of a context survives the loss of its worker, by default.
_ACTOR_DEFAULTS = Options(max_restarts=-1)


def check(options: Mapping[str, Any]) -> None:
    """Raises a ``TypeError`` for an unknown option, or an error for one with a wrong value."""
    for name in options:
        if name not in _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            raise TypeError(f"a context has no option {name!r}{suggestion(name, _KNOWN)}: there are {known}")
    Options().with_task_options({name: options[name] for name in options if name in _FOR_TASKS})
    Options().with_actor_options({name: options[name] for name in options if name in _FOR_ACTORS})


def for_task(options: Mapping[str, Any]) -> Options:
    """Returns the options of ``run()``.

    Fails with a ``TypeError`` for an option that is only for actors.
    """
    _reject(options, _FOR_TASKS, "run", "create_actor")
    return Options().with_task_options(options)


def for_actor(options: Mapping[str, Any]) -> Options:
    """Returns the options of ``create_actor()``.

    Fails with a ``TypeError`` for an option that is only for tasks.
    """
    _reject(options, _FOR_ACTORS, "create_actor", "run")
    checked = _ACTOR_DEFAULTS.with_actor_options(options)
    if checked.get_if_exists and checked.name is None:
        raise InvalidError("get_if_exists finds the actor by its name: give it one")
    return checked


def _reject(options: Iterable[str], known: set[str], what: str, other: str) -> None:
    for name in options:
        if name not in known:
            raise TypeError(f"the option {name!r} is for {other}(), {what}() does not have it")


def reject_option_keyword(target: Callable[..., Any], kwargs: Mapping[str, Any], what: str) -> None:
    """Raises a ``TypeError`` for a keyword that is an option and no parameter of ``target``."""
    known = _FOR_TASKS if what == "run" else _FOR_ACTORS
    for name in kwargs:
        if name in known and not _takes(target, name):
            called = getattr(target, "__name__", type(target).__name__)
            raise TypeError(
                f"{called} takes no keyword {name!r}; it is an option: "
                f"context.options({name}=...).{what}(...)"
            )


def _takes(target: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return True  # The signature is not known. The call itself fails if the keyword is wrong.
    named = parameters.get(name)
    if named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY:
        return True
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
