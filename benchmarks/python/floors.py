"""What the machine itself can do, in a process that knows nothing of Marline: `python floors.py --out FILE`.

The floors that ours is measured against are taken beside it (`shapes.py`). These here say how far the
kernel's choice of a core moves them: both ends on one core, each on its own, and as the kernel likes.
"""

from __future__ import annotations

import os
import platform

import figures
from echo import Echo


def pinned(clock: figures.Clock, name: str, here: int, there: int) -> None:
    """Both ends where they are told to be."""
    free = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {here})
    echo = Echo("socket", there)
    clock.one_at_a_time(name, echo.there_and_back, 2000)
    echo.end()
    os.sched_setaffinity(0, free)


def main() -> None:
    told = figures.arguments().parse_args()
    clock = figures.Clock(told.scale)
    ends = {"socket": Echo("socket"), "pipe": Echo("pipe")}
    clock.in_turns({name: end.there_and_back for name, end in ends.items()}, 2000)
    for end in ends.values():
        end.end()
    cores = sorted(os.sched_getaffinity(0))
    pinned(clock, "socket on one core", cores[0], cores[0])
    pinned(clock, "socket on two cores", cores[0], cores[-1])
    figures.write(told.out, platform.python_version(), clock.figures)


if __name__ == "__main__":
    main()
