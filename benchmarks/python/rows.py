"""The questions and goals of the Python benchmark, and how figures answer a question.

A `Question` names a figure of Marline and those of its rivals. `answer` collects the values of all
turns in a `Row`, which gives medians and ratios. Nothing here measures or prints.
"""

from __future__ import annotations

import dataclasses
import statistics

from figures import Figures

# By contestant: the figures of each of its turns, in order.
Rounds = dict[str, list[Figures]]

OURS = "Marline"
RAY = "Ray"
DASK = "Dask"
POOL = "ProcessPoolExecutor"
FLOORS = "floors"
# Marline again, measured in turn with the floors, in many short-lived processes; and with
# everything on one core.
BESIDE = "Marline beside the floor"
ONE_CORE = "Marline on one core"
SOCKET = "Unix socket"
PIPE = "pipe"

# By unit: how many microseconds it has. Units that are no times have 1.
UNITS = {"µs": 1.0, "ms": 1e3, "/s": 1.0, "MiB": 1.0, "bytes": 1.0, "": 1.0}


@dataclasses.dataclass(frozen=True)
class Question:
    """A row of the result: which figures it compares, and the goal."""

    shape: str
    metric: str
    figure: str
    unit: str
    # By name in the table: the contestant and the figure to compare with.
    rivals: dict[str, tuple[str, str]]
    # The rival or number for which the goal is stated, by its name in the table.
    against: str = ""
    # The least ratio that reaches the goal. 0 if there is no goal.
    goal: float = 0.0
    # The number, if `against` is a number and no contestant.
    asked: float | None = None
    # The contestant whose figure is `ours`.
    contestant: str = OURS

    @property
    def better(self) -> str:
        return "higher" if self.unit == "/s" else "lower"


@dataclasses.dataclass
class Row:
    """The answer to a question: the values of all turns, of ours and of each measured rival."""

    question: Question
    ours: list[float]
    rivals: dict[str, list[float]]

    def ratio(self) -> float | None:
        """Returns how many times better ours is than `against`, or None if it was not measured."""
        other = self.rivals.get(self.question.against)
        if not other or not self.ours:
            return None
        return times_better(self.question.better, statistics.median(self.ours), statistics.median(other))

    def ratios(self) -> list[float]:
        """Returns the ratio of each turn, for as many turns as both have."""
        other = self.rivals.get(self.question.against, [])
        better = self.question.better
        return [times_better(better, here, there) for here, there in zip(self.ours, other, strict=False)]

    @property
    def state(self) -> str:
        """Returns `reached`, `missed`, `not measured`, or `none` if there is no goal."""
        if self.question.goal == 0:
            return "none"
        ratio = self.ratio()
        if ratio is None:
            return "not measured"
        return "reached" if ratio >= self.question.goal else "missed"

    def as_json(self) -> dict[str, object]:
        question = self.question
        return {
            "shape": question.shape,
            "metric": question.metric,
            "unit": question.unit,
            "better": question.better,
            "ours": statistics.median(self.ours),
            "rivals": {name: statistics.median(values) for name, values in self.rivals.items()},
            "against": question.against,
            "goal": question.goal,
            # Every row has a number: 0 if there is nothing to compare with.
            "ratio": self.ratio() or 0.0,
        }


def times_better(better: str, ours: float, theirs: float) -> float:
    return theirs / ours if better == "lower" else ours / theirs


def answer(question: Question, rounds: Rounds) -> Row | None:
    """Returns the row for a question, or None if ours was not measured.

    A contestant that ran must have every figure that a question names. A missing figure is a
    mistake in the benchmark, and raises KeyError.
    """
    per = UNITS[question.unit]
    ours = [turn[question.figure] / per for turn in rounds.get(question.contestant, [])]
    if not ours:
        return None
    rivals = {}
    for name, (contestant, figure) in question.rivals.items():
        values = [turn[figure] / per for turn in rounds.get(contestant, [])]
        if values:
            rivals[name] = values
    if question.asked is not None:
        rivals[question.against] = [question.asked] * len(ours)
    return Row(question, ours, rivals)


def same(figure: str, *names: str) -> dict[str, tuple[str, str]]:
    """Returns rivals that have the figure under the same name."""
    return {name: (name, figure) for name in names}


def fixed(shape: str, metric: str, figure: str, unit: str, asked: float, *rivals: str) -> Question:
    """Returns a question whose goal is a number."""
    words = f"{asked:,.0f} per second" if unit == "/s" else f"{asked:,.0f} {unit or shape}"
    return Question(shape, metric, figure, unit, same(figure, *rivals), words, 1.0, asked)


def versus(shape: str, metric: str, figure: str, unit: str, *rivals: str, goal: float = 0.0) -> Question:
    """Returns a question whose goal is stated for the first rival."""
    return Question(shape, metric, figure, unit, same(figure, *rivals), rivals[0] if rivals else "", goal)


def beside(metric: str, kind: str, goal: float) -> Question:
    """Returns a question about one call at a time, measured in turn with the floors.

    The floors that were measured in a process without Marline are shown for comparison.
    """
    rivals = {
        SOCKET: (BESIDE, "socket beside p50"),
        PIPE: (BESIDE, "pipe beside p50"),
        "socket in a process of its own": (FLOORS, "socket p50"),
        "socket on one core": (FLOORS, "socket on one core p50"),
        "socket on two cores": (FLOORS, "socket on two cores p50"),
    }
    return Question("floor", metric, f"{kind} beside p50", "µs", rivals, SOCKET, goal, contestant=BESIDE)


def on_one_core(metric: str, kind: str) -> Question:
    """Returns the question of `beside` on one core, where the kernel has no choice."""
    rivals = {SOCKET: (ONE_CORE, "socket beside p50"), PIPE: (ONE_CORE, "pipe beside p50")}
    figure = f"{kind} beside p50"
    return Question("floor/one core", metric, figure, "µs", rivals, SOCKET, contestant=ONE_CORE)


QUESTIONS = [
    versus("start", "import", "import", "ms", RAY),
    versus("start", "init to first result", "first result", "ms", RAY, DASK, POOL, goal=25),
    versus("task", "there and back, p50", "task p50", "µs", RAY, DASK, goal=12),
    versus("task", "there and back, p95", "task p95", "µs", RAY, DASK),
    beside("task, there and back, p50", "task", 0.5),
    on_one_core("task, there and back, p50", "task"),
    versus("pool", "task, there and back, p50", "task p50", "µs", POOL, goal=1),
    versus("tasks", "1,000 at a time", "tasks 1000 rate", "/s", RAY, DASK),
    versus("tasks", "10,000 at a time", "tasks 10000 rate", "/s", RAY, goal=15),
    versus("pool", "tasks, 10,000 at a time", "tasks 10000 rate", "/s", POOL, goal=1),
    versus("pool", "map, 200,000 items by 1,000", "map rate", "/s", POOL, goal=1),
    versus("call", "there and back, p50", "call p50", "µs", RAY, DASK, goal=8),
    versus("call", "there and back, p95", "call p95", "µs", RAY, DASK),
    beside("call, there and back, p50", "call", 0.625),
    on_one_core("call, there and back, p50", "call"),
    versus("calls", "10,000 at a time", "calls 10000 rate", "/s", RAY, DASK, goal=10),
    versus("calls", "of an actor with async methods", "calls async rate", "/s", RAY),
    versus("calls", "of an actor with four threads", "calls threads rate", "/s", RAY),
    versus("calls", "two callers, two actors", "calls n:n rate", "/s", RAY),
    versus("actor", "created until it answers, p50", "actor p50", "ms", RAY, DASK, goal=50),
    versus("actors", "8 at a time", "actors 8 rate", "/s", RAY),
    fixed("actors", "100 at a time", "actors 100 rate", "/s", 100),
    versus("restart", "killed until it answers, p50", "restart p50", "ms", RAY, goal=5),
    fixed("object", "put 1 KB, p50", "put p50", "µs", 10, RAY, DASK),
    fixed("object", "get 1 KB, p50", "get p50", "µs", 10, RAY, DASK),
    versus("idle", "memory with the driver", "idle MiB", "MiB", RAY, DASK, POOL, goal=8),
    versus("idle", "memory without the driver", "idle MiB without the driver", "MiB", RAY, DASK, POOL),
    fixed("processes", "idle, without the driver", "idle processes", "", 4, RAY, DASK, POOL),
]
