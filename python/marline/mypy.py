"""A plugin for mypy, which does not see what a decorator makes of a class: ``plugins = ["marline.mypy"]``.

A class that was made remote then has ``remote`` and ``options``. What they take is anything, as a reference
may stand for each argument.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import ARG_STAR, ARG_STAR2, Argument, Var
from mypy.plugin import ClassDefContext, Plugin
from mypy.plugins.common import add_method_to_class
from mypy.types import AnyType, TypeOfAny

_DECORATORS = ("marline.remote", "marline._remote.remote")


class MarlinePlugin(Plugin):
    """See the module."""

    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        return _add_methods if fullname in _DECORATORS else None


def _add_methods(context: ClassDefContext) -> bool:
    """Says whether it is done; if not, mypy comes again."""
    handle = context.api.named_type_or_none("marline._actor.ActorHandle")
    actor_class = context.api.named_type_or_none("marline._actor.ActorClass")
    if handle is None or actor_class is None:
        return False
    anything = AnyType(TypeOfAny.explicit)
    args = Argument(Var("args", anything), anything, None, ARG_STAR)
    kwargs = Argument(Var("kwargs", anything), anything, None, ARG_STAR2)
    for name, takes, gives in (("remote", [args, kwargs], handle), ("options", [kwargs], actor_class)):
        add_method_to_class(context.api, context.cls, name, takes, gives, is_classmethod=True)
    return True


def plugin(version: str) -> type[Plugin]:
    """What mypy asks for."""
    return MarlinePlugin
