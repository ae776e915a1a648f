"""The contestants, questions and goals of the benchmark of large values.

`contestants` and `rows` have those of the Python benchmark.
"""

from __future__ import annotations

from contestants import Contestant
from rows import OURS, RAY, Question, fixed, same, versus

OURS_NEW = "Marline, new"
RAY_NEW = "Ray, new"
OUR_NODES = "Marline on two nodes"
RAY_NODES = "Ray on two nodes"
MEMCPY = "memcpy"
NEW_MEMORY = "memcpy into new memory"
SOCKET = "loopback socket"

CONTESTANTS = [
    Contestant(
        OURS,
        "marline",
        False,
        ["object_shapes.py", "marline"],
        600,
        set_up="`init(num_cpus=2)`, embedded; `MARLINE_STORE_MEMORY` 6 GB; the release wheel",
    ),
    Contestant(
        RAY,
        "ray",
        True,
        ["object_shapes.py", "ray"],
        900,
        needs_isolation=True,
        set_up="`init(num_cpus=2, object_store_memory=6 GB, include_dashboard=False, logging_level='ERROR')`",
    ),
    Contestant(OURS_NEW, "marline-new", False, ["object_shapes.py", "marline", "--new"], 120, turns=3),
    Contestant(
        RAY_NEW, "ray-new", True, ["object_shapes.py", "ray", "--new"], 300, needs_isolation=True, turns=3
    ),
    Contestant(
        OUR_NODES,
        "marline-nodes",
        False,
        ["object_pull.py", "marline"],
        300,
        set_up="a controller and two workers, processes of their own; 4 GB each",
    ),
    Contestant(
        RAY_NODES,
        "ray-nodes",
        True,
        ["object_pull.py", "ray"],
        600,
        needs_isolation=True,
        set_up="`ray.cluster_utils.Cluster` with two nodes; 4 GB each",
    ),
]


def unit(size: str) -> str:
    return "ms" if size in ("100 MB", "1 GB") else "µs"


def beside_memcpy(metric: str, figure: str) -> Question:
    """Compares work that copies 100 MB once with the copy alone."""
    rivals = {MEMCPY: (OURS, "memcpy p50"), **same(figure, RAY)}
    return Question("100 MB", metric, figure, "ms", rivals, MEMCPY, 0.5)


def new(size: str, metric: str, kind: str, goal: float = 0.0) -> Question:
    """Asks about the first use of memory that no process has touched."""
    figure = f"{kind} {size}, new p50"
    rivals = {RAY_NEW: (RAY_NEW, figure)}
    if size == "100 MB" and kind != "get":
        rivals[NEW_MEMORY] = (OURS_NEW, "memcpy, new p50")
    shown_in = "µs" if kind == "get" else unit(size)
    return Question(f"{size}, new", metric, figure, shown_in, rivals, RAY_NEW, goal, None, OURS_NEW)


def pull(size: str) -> Question:
    figure = f"pull {size} p50"
    rivals = {RAY_NODES: (RAY_NODES, figure), SOCKET: (OUR_NODES, f"socket {size} p50")}
    return Question(
        "pull", f"{size} from node to node", figure, unit(size), rivals, RAY_NODES, 0.0, None, OUR_NODES
    )


def of_size(size: str) -> list[Question]:
    """Returns the questions about warm use of values of one size."""
    by_reference = 10 if size == "1 MB" else 0
    return [
        versus(size, "put", f"put {size} p50", unit(size), RAY),
        versus(size, "get", f"get {size} p50", "µs", RAY),
        versus(size, "get, in a task", f"get in a task {size} p50", "µs", RAY),
        versus(size, "task with it, by reference", f"reference {size} p50", "µs", RAY, goal=by_reference),
        versus(size, "task with it, by value", f"argument {size} p50", unit(size), RAY),
        versus(size, "task that returns it", f"result {size} p50", unit(size), RAY),
    ]


QUESTIONS = [
    *of_size("1 KB"),
    *of_size("100 KB"),
    *of_size("1 MB"),
    *of_size("100 MB"),
    beside_memcpy("put", "put 100 MB p50"),
    beside_memcpy("task that returns it", "result 100 MB p50"),
    fixed("100 MB", "get a view", "get 100 MB p50", "µs", 50),
    fixed("100 MB", "get a view, in a task", "get in a task 100 MB p50", "µs", 50),
    *of_size("1 GB"),
    *(
        new(size, metric, kind, 1 if size == "100 MB" and kind in ("put", "result") else 0)
        for size in ("1 MB", "100 MB", "1 GB")
        for metric, kind in (
            ("put", "put"),
            ("get", "get"),
            ("task with it, by value", "argument"),
            ("task that returns it", "result"),
        )
    ),
    versus("fan-out", "100 MB put, read by 8 tasks", "put and eight tasks 100 MB p50", "ms", RAY),
    versus("fan-out", "100 MB read by 8 tasks", "eight tasks 100 MB p50", "ms", RAY),
    versus("generator", "small items", "items rate", "/s", RAY, goal=10),
    versus("generator", "items of 1 MB", "items of 1 MB rate", "/s", RAY, goal=10),
    pull("1 MB"),
    pull("100 MB"),
    pull("1 GB"),
    fixed("idle", "memory beside a value", "bytes beside an idle value", "bytes", 500, RAY),
]
