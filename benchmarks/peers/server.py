"""The peer's side of the conversation: lines of text, so that a peer needs nothing but its own libraries.

ready V_1 ... V_M    printed when all is built and warm; the log densities of the M chains at the starting weights
go N                 read: do N units of work; S is printed, the seconds they took
(end of input)       read: stop
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

Run = Callable[[int], None]


def serve(values: Sequence[float], run: Run) -> None:
    """Warm up, and answer until the input ends.

    Args:
        values: log densities of the chains at the starting weights.
        run: does so many units of work, and returns when they are done.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not look like an answer
    for _ in range(2):
        run(1)
    print("ready", *values, file=answers, flush=True)
    for line in sys.stdin:
        units = int(line.removeprefix("go "))
        start = time.perf_counter()
        run(units)
        print(time.perf_counter() - start, file=answers, flush=True)
