"""The engines of `marline.Context`, and which tests they run."""

from __future__ import annotations

import pytest

# The engines of `marline.Context`.
CONTEXTS = ["sync", "threads", "local", "host:port"]
CONTEXTS_ON_CLUSTERS = ["local", "host:port"]


def skip(engine: str, *engines: str, why: str) -> None:
    """Skips the test on engines that lack what it needs. docs/guides/testing.md lists these limits."""
    if engine in engines:
        pytest.skip(f"{engine}: {why}")
