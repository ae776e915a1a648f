"""Measures the standard library's `ProcessPoolExecutor` with two processes.

`python pool.py --out FILE`
"""

from __future__ import annotations

import platform
from concurrent.futures import ProcessPoolExecutor

import figures
import footprint


def noop() -> None: ...


def double(x: int) -> int:
    return 2 * x


def main() -> None:
    options = figures.arguments().parse_args()
    recorder = figures.FigureRecorder(options.scale)
    pool: list[ProcessPoolExecutor] = []

    def start() -> None:
        pool.append(ProcessPoolExecutor(2))
        pool[0].submit(noop).result()

    recorder.once("first result", start)
    executor = pool[0]

    def tasks(count: int) -> None:
        for future in [executor.submit(noop) for _ in range(count)]:
            future.result()

    def mapped(items: int) -> None:
        assert sum(1 for _ in executor.map(double, range(items), chunksize=1000)) == items

    tasks(100)
    footprint.take(recorder)
    recorder.one_at_a_time("task", lambda: executor.submit(noop).result(), 3000)
    recorder.many("tasks 1000", tasks, 1000)
    recorder.many("tasks 10000", tasks, 10_000)
    recorder.many("map", mapped, 200_000)
    executor.shutdown()
    figures.write(options.out, platform.python_version(), recorder.figures)


if __name__ == "__main__":
    main()
