"""Compares large values in Marline with Ray, a plain copy and a plain socket.

`object_rows` has the contestants, questions and goals. `object_shapes` and `object_pull` measure.
`contest` and its helpers are those of the Python benchmark (`run.py`).
"""

from __future__ import annotations

import sys

import contest
from object_rows import CONTESTANTS, QUESTIONS

if __name__ == "__main__":
    sys.exit(contest.main(contest.Benchmark("objects", __doc__, CONTESTANTS, QUESTIONS, 3)))
