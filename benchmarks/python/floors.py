"""Measures the floors of the machine in a process without Marline. `python floors.py --out FILE`

Marline is compared with floors that are measured in the same process in turn with it (`shapes.py`).
The floors here show how much the choice of cores changes them: both ends on one core, on two cores,
and as the kernel chooses.
"""

from __future__ import annotations

import os
import platform

import figures
from echo import Echo


def pinned(recorder: figures.FigureRecorder, name: str, here: int, there: int) -> None:
    """Measures the socket with each end on a given core."""
    free = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {here})
    echo = Echo("socket", there)
    recorder.one_at_a_time(name, echo.there_and_back, 2000)
    echo.end()
    os.sched_setaffinity(0, free)


def main() -> None:
    options = figures.arguments().parse_args()
    recorder = figures.FigureRecorder(options.scale)
    ends = {"socket": Echo("socket"), "pipe": Echo("pipe")}
    recorder.in_turns({name: end.there_and_back for name, end in ends.items()}, 2000)
    for end in ends.values():
        end.end()
    cores = sorted(os.sched_getaffinity(0))
    pinned(recorder, "socket on one core", cores[0], cores[0])
    pinned(recorder, "socket on two cores", cores[0], cores[-1])
    figures.write(options.out, platform.python_version(), recorder.figures)


if __name__ == "__main__":
    main()
