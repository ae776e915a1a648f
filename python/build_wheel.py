"""The build backend: builds a wheel with the package, its native module and the binary `marline`.

Cargo builds the binary first. Then maturin does what pip asks for. `MARLINE_WHEEL_PROFILE` names the
profile of Cargo: `release` by default. The tests use `dev`, which builds in a fraction of the time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import maturin
from maturin import (  # noqa: F401 - pip asks for these by name
    build_sdist,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

ROOT = Path(__file__).resolve().parent.parent
# The folder whose files maturin installs beside `python`. It must exist for every hook, so it is
# made on import.
SCRIPTS = ROOT / "target" / "wheel" / "marline.data" / "scripts"
SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds the binary, then the wheel that contains it."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    profile = os.environ.get("MARLINE_WHEEL_PROFILE", "release")
    build = ["cargo", "build", "--profile", profile, "--quiet", "--locked", "--package", "marline-cli"]
    subprocess.run(build, cwd=ROOT, check=True)
    binary = SCRIPTS / "marline"
    shutil.copy2(target / ("debug" if profile == "dev" else profile) / "marline", binary)
    subprocess.run(["strip", str(binary)], check=False)
    config_settings = {"build-args": f"--profile {profile}", **(config_settings or {})}
    return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))
