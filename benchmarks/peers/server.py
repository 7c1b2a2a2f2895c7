"""The peer's side of the conversation: lines of text, so that a peer needs nothing but its own libraries.

ready V_1 ... V_M    printed when all is built and warm; numbers that show that both sides do the same, such as the log
                     densities of the M chains at the starting weights
go N                 read: do N units of work; S is printed, the seconds they took
memory               read: the peak resident memory of this process so far is printed, in MiB
(end of input)       read: stop
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence

Run = Callable[[int], None]


def serve(values: Sequence[float], run: Run, *, warmup: int = 2, factor: float = 1.0) -> None:
    """Warm up, and answer until the input ends.

    Args:
        values: what both sides must agree on, such as log densities at the starting weights.
        run: does so many units of work, and returns when they are done.
        warmup: units of work to warm up by.
        factor: how many times larger a unit is than what `run` does; the seconds are multiplied by it.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not look like an answer
    for _ in range(warmup):
        run(1)
    print("ready", *values, file=answers, flush=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=answers, flush=True)
            continue
        units = int(line.removeprefix("go "))
        start = time.perf_counter()
        run(units)
        print(factor * (time.perf_counter() - start), file=answers, flush=True)
