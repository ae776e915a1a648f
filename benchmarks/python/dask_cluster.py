"""Measures Dask: a local cluster of two processes. `python dask_cluster.py --out FILE`

Dask's actors live inside its workers, not in processes of their own. They are created faster, and
die together.
"""

from __future__ import annotations

import os
from typing import Any

import dask
import figures
import footprint
from dask.distributed import Client, LocalCluster


def noop() -> None: ...


class Actor:
    def noop(self) -> None: ...


class Session:
    """A cluster and its client. Both must be closed."""

    def __init__(self) -> None:
        self.cluster = LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            silence_logs="ERROR",
        )
        self.client = Client(self.cluster)
        self.client.submit(noop, pure=False).result()

    def tasks(self, count: int) -> None:
        self.client.gather([self.client.submit(noop, pure=False) for _ in range(count)])

    def actor(self) -> Any:
        return self.client.submit(Actor, actor=True, pure=False).result()


def main() -> None:
    options = figures.arguments().parse_args()
    recorder = figures.FigureRecorder(options.scale)
    sessions: list[Session] = []
    recorder.once("first result", lambda: sessions.append(Session()))
    session = sessions[0]
    client = session.client
    footprint.take(recorder)
    session.tasks(100)
    recorder.one_at_a_time("task", lambda: client.submit(noop, pure=False).result(), 300)
    recorder.many("tasks 1000", session.tasks, 1000)
    actor = session.actor()
    recorder.one_at_a_time("call", lambda: actor.noop().result(), 1000)
    recorder.many(
        "calls 10000", lambda count: [one.result() for one in [actor.noop() for _ in range(count)]], 1000
    )
    recorder.one_at_a_time("actor", lambda: session.actor().noop().result(), 50)
    kilobyte = os.urandom(1024)
    recorder.one_at_a_time("put", lambda: client.scatter(kilobyte, hash=False), 300)
    kept = client.scatter(kilobyte, hash=False)
    recorder.one_at_a_time("get", lambda: kept.result(), 300)
    figures.write(options.out, dask.__version__, recorder.figures)
    client.close()
    session.cluster.close()


if __name__ == "__main__":
    main()
