"""Reads the docstrings of the package as the site shows them: an extension of griffe.

Examples (`>>>`) become code blocks. Comments (`#:`) above a field become its description.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

EXAMPLE = re.compile(r"(?m)^>>> .*(?:\n.+)*(?:\n\n>>> .*(?:\n.+)*)*")
ROLE = re.compile(r":\w+:`~?([^`]+)`")


def as_markdown(text: str) -> str:
    """Returns a docstring with its examples in fences."""
    text = ROLE.sub(r"`\1`", text)
    return EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", text)


class Docstrings(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if isinstance(obj, Attribute) and obj.docstring is None and obj.lineno:
            comment = comment_above(obj)
            if comment:
                obj.docstring = Docstring(comment, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def comment_above(attribute: Attribute) -> str:
    """Returns the `#:` comment above an attribute."""
    lines = attribute.lines_collection[attribute.filepath]
    words: list[str] = []
    for line in reversed(lines[: attribute.lineno - 1]):
        stripped = line.strip()
        if not stripped.startswith("#:"):
            break
        words.insert(0, stripped[2:].strip())
    return " ".join(words)
