"""What is said of a name that there is not: what may have been meant."""

from __future__ import annotations

from collections.abc import Iterable


def meant(name: str, known: Iterable[str]) -> str:
    """A question, if one that there is looks like it."""
    import difflib  # Only for those who need it.

    like = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f" (is {like[0]!r} meant?)" if like else ""


def no_method(class_name: str, name: str, methods: Iterable[str]) -> AttributeError:
    """What is said of a method that an actor has not; it may be an attribute."""
    public = [method for method in methods if not method.startswith("_")]
    return AttributeError(
        f"actor {class_name} has no method {name!r}{meant(name, public)}: attributes cannot be read from "
        "outside, write a method that returns it"
    )


def no_attribute(class_name: str, name: str) -> AttributeError:
    """What is said to whoever sets an attribute of an actor."""
    return AttributeError(
        f"{name!r} of actor {class_name} cannot be set from outside: write a method that sets it"
    )
