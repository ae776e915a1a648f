"""The questions, the goals, and what follows from the figures.

A `Question` names a figure of ours and those of its rivals. `answer` makes a `Row` of it: for each, the
median over the rounds. Nothing here measures or prints.
"""

from __future__ import annotations

import dataclasses
import statistics

from figures import Figures

# What each contestant gave in each of its turns, round by round.
Rounds = dict[str, list[Figures]]

OURS = "Marline"
RAY = "Ray"
DASK = "Dask"
POOL = "ProcessPoolExecutor"
FLOORS = "floors"
# Ours again, in turns with the floors, in many short-lived processes; and with everything on one core.
BESIDE = "Marline beside the floor"
ONE_CORE = "Marline on one core"
SOCKET = "Unix socket"
PIPE = "pipe"

# How many microseconds a unit has; what is no time is as it is.
UNITS = {"µs": 1.0, "ms": 1e3, "/s": 1.0, "MiB": 1.0, "bytes": 1.0, "": 1.0}


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked, and what would be good enough."""

    shape: str
    metric: str
    figure: str
    unit: str
    # Whose figure of the same name is compared, or another one: (contestant, figure).
    rivals: dict[str, tuple[str, str]]
    against: str = ""
    # The least ratio that is good enough; 0 where none was asked for.
    goal: float = 0.0
    # What is asked for where `against` is no contestant but a number.
    asked: float | None = None
    contestant: str = OURS

    @property
    def better(self) -> str:
        return "higher" if self.unit == "/s" else "lower"


@dataclasses.dataclass
class Row:
    """The answer: a value for each turn, of ours and of each rival that was measured."""

    question: Question
    ours: list[float]
    rivals: dict[str, list[float]]

    def ratio(self) -> float | None:
        """How many times better ours is than `against`; None where that was not measured."""
        other = self.rivals.get(self.question.against)
        if not other or not self.ours:
            return None
        return times_better(self.question.better, statistics.median(self.ours), statistics.median(other))

    def ratios(self) -> list[float]:
        """The same, turn by turn; with as many as both have."""
        other = self.rivals.get(self.question.against, [])
        better = self.question.better
        return [times_better(better, here, there) for here, there in zip(self.ours, other, strict=False)]

    @property
    def state(self) -> str:
        """`reached`, `missed`, `not measured`, or `none` where nothing was asked for."""
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
            # A number in every row: 0 where there is nothing to compare with.
            "ratio": self.ratio() or 0.0,
        }


def times_better(better: str, ours: float, theirs: float) -> float:
    return theirs / ours if better == "lower" else ours / theirs


def answer(question: Question, rounds: Rounds) -> Row | None:
    """The row for a question; None if ours was not measured.

    A contestant that ran has every figure that is asked of it: one that is missing is a mistake in
    the benchmark, and a KeyError.
    """
    per = UNITS[question.unit]
    ours = [taken[question.figure] / per for taken in rounds.get(question.contestant, [])]
    if not ours:
        return None
    rivals = {}
    for name, (contestant, figure) in question.rivals.items():
        values = [taken[figure] / per for taken in rounds.get(contestant, [])]
        if values:
            rivals[name] = values
    if question.asked is not None:
        rivals[question.against] = [question.asked] * len(ours)
    return Row(question, ours, rivals)


def same(figure: str, *names: str) -> dict[str, tuple[str, str]]:
    """Rivals that have the figure by the same name."""
    return {name: (name, figure) for name in names}


def fixed(shape: str, metric: str, figure: str, unit: str, asked: float, *rivals: str) -> Question:
    """A question whose goal is a number."""
    words = f"{asked:,.0f} per second" if unit == "/s" else f"{asked:,.0f} {unit or shape}"
    return Question(shape, metric, figure, unit, same(figure, *rivals), words, 1.0, asked)


def versus(shape: str, metric: str, figure: str, unit: str, *rivals: str, goal: float = 0.0) -> Question:
    """A question whose goal is stated for the first rival."""
    return Question(shape, metric, figure, unit, same(figure, *rivals), rivals[0] if rivals else "", goal)


def beside(metric: str, kind: str, goal: float) -> Question:
    """One at a time, in turns with the floors; with those that were measured elsewhere for comparison."""
    rivals = {
        SOCKET: (BESIDE, "socket beside p50"),
        PIPE: (BESIDE, "pipe beside p50"),
        "socket in a process of its own": (FLOORS, "socket p50"),
        "socket on one core": (FLOORS, "socket on one core p50"),
        "socket on two cores": (FLOORS, "socket on two cores p50"),
    }
    return Question("floor", metric, f"{kind} beside p50", "µs", rivals, SOCKET, goal, contestant=BESIDE)


def on_one_core(metric: str, kind: str) -> Question:
    """The same, where the kernel has no choice."""
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
