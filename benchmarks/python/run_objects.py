"""Large values in Marline against Ray, a plain copy and a plain socket, in one run.

`object_rows` says who takes part and has the questions and goals, `object_shapes` and `object_pull` are what
runs; `contest` and what it needs are those of the Python benchmark (`run.py`).
"""

from __future__ import annotations

import sys

import contest
from object_rows import CONTESTANTS, QUESTIONS

if __name__ == "__main__":
    sys.exit(contest.main(contest.Benchmark("objects", __doc__, CONTESTANTS, QUESTIONS, 3)))
