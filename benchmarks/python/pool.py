"""The standard library's figures: `ProcessPoolExecutor` with two processes. `python pool.py --out FILE`"""

from __future__ import annotations

import platform
from concurrent.futures import ProcessPoolExecutor

import figures
import footprint


def noop() -> None: ...


def double(x: int) -> int:
    return 2 * x


def main() -> None:
    told = figures.arguments().parse_args()
    clock = figures.Clock(told.scale)
    pool: list[ProcessPoolExecutor] = []

    def start() -> None:
        pool.append(ProcessPoolExecutor(2))
        pool[0].submit(noop).result()

    clock.once("first result", start)
    executor = pool[0]

    def tasks(count: int) -> None:
        for future in [executor.submit(noop) for _ in range(count)]:
            future.result()

    def mapped(items: int) -> None:
        assert sum(1 for _ in executor.map(double, range(items), chunksize=1000)) == items

    tasks(100)
    footprint.take(clock)
    clock.one_at_a_time("task", lambda: executor.submit(noop).result(), 3000)
    clock.many("tasks 1000", tasks, 1000)
    clock.many("tasks 10000", tasks, 10_000)
    clock.many("map", mapped, 200_000)
    executor.shutdown()
    figures.write(told.out, platform.python_version(), clock.figures)


if __name__ == "__main__":
    main()
