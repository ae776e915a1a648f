"""Error messages about unknown names, with a suggestion for the name that was meant."""

from __future__ import annotations

from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns " (is 'x' meant?)" if a known name is similar to ``name``, else an empty string."""
    import difflib  # Imported here: only error messages need it.

    like = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f" (is {like[0]!r} meant?)" if like else ""


def no_method(class_name: str, name: str, methods: Iterable[str]) -> AttributeError:
    """Returns the error for a method that an actor does not have.

    The actor may have an attribute of this name.
    """
    public = [method for method in methods if not method.startswith("_")]
    return AttributeError(
        f"actor {class_name} has no method {name!r}{suggestion(name, public)}: attributes cannot be read "
        "from outside, write a method that returns it"
    )


def no_attribute(class_name: str, name: str) -> AttributeError:
    """Returns the error for setting an attribute of an actor handle."""
    return AttributeError(
        f"{name!r} of actor {class_name} cannot be set from outside: write a method that sets it"
    )
