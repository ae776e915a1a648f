"""A plugin for mypy: ``plugins = ["marline.mypy"]``.

By itself, mypy does not see how a decorator changes a class. With the plugin, a class with
``@marline.remote`` has ``remote`` and ``options``. They accept any arguments, since a reference may
stand for each one.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import ARG_STAR, ARG_STAR2, Argument, Var
from mypy.plugin import ClassDefContext, Plugin
from mypy.plugins.common import add_method_to_class
from mypy.types import AnyType, TypeOfAny

_DECORATORS = ("marline.remote", "marline._api.remote.remote")


class MarlinePlugin(Plugin):
    """The plugin. See the module."""

    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        return _add_methods if fullname in _DECORATORS else None


def _add_methods(context: ClassDefContext) -> bool:
    """Adds ``remote`` and ``options`` to a class. Returns false if mypy has to call again later."""
    handle = context.api.named_type_or_none("marline._api.actors.ActorHandle")
    actor_class = context.api.named_type_or_none("marline._api.actors.ActorClass")
    if handle is None or actor_class is None:
        return False
    anything = AnyType(TypeOfAny.explicit)
    args = Argument(Var("args", anything), anything, None, ARG_STAR)
    kwargs = Argument(Var("kwargs", anything), anything, None, ARG_STAR2)
    for name, takes, gives in (("remote", [args, kwargs], handle), ("options", [kwargs], actor_class)):
        add_method_to_class(context.api, context.cls, name, takes, gives, is_classmethod=True)
    return True


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls."""
    return MarlinePlugin
