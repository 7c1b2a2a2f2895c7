"""Time several ways of doing the same work in turn, so that a noisy machine is noisy to all of them alike."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of one way of doing the work.

    Attributes:
        name: what was timed.
        seconds: one figure per round.
    """

    name: str
    seconds: list[float]

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)


def race(
    ways: dict[str, Work],
    *,
    rounds: int = 15,
    warmup: int = 3,
    block: float = 0.05,
    counted: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time each way in turn, round by round, in alternating order.

    Args:
        ways: name -> function that does one unit of the work.
        rounds: number of rounds.
        warmup: calls before timing.
        block: seconds that a timed block lasts at least.
        counted: whether functions do any number of units, and return it.
        clock: returns seconds. Beside other work the time that this process was running, `time.process_time`, is less
            noisy on one thread.

    Returns:
        One timing per way, seconds per unit.
    """
    repeats = {}
    for name, work in ways.items():
        for _ in range(warmup):
            work()
        start = clock()
        work()
        repeats[name] = max(1, round(block / max(clock() - start, 1e-7)))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            start, units = clock(), 0
            for _ in range(repeats[name]):
                done = ways[name]()
                units += int(done) if counted else 1  # type: ignore[call-overload]
            seconds[name].append((clock() - start) / units)
    return [Timing(name, s) for name, s in seconds.items()]


def report(title: str, timings: list[Timing], baseline: str, note: str = "") -> dict[str, float]:
    """Print a table of medians and ratios to the baseline.

    Args:
        title: what the work is.
        timings: as `race` gave them.
        baseline: the way that the others are compared with.
        note: a line below the table.

    Returns:
        name -> median of baseline / median of name: above 1 is faster than the baseline.
    """
    base = next(t for t in timings if t.name == baseline)
    table = Table(title=f"{title} ({torch.get_num_threads()} threads)", caption=note or None)
    for column in ("way", "median ms", "min ms", f"times faster than {baseline}"):
        table.add_column(column, justify="left" if column == "way" else "right")
    ratios = {}
    for timing in timings:
        ratios[timing.name] = base.median / timing.median
        table.add_row(
            timing.name, f"{timing.median * 1e3:.3f}", f"{min(timing.seconds) * 1e3:.3f}", f"{ratios[timing.name]:.2f}"
        )
    Console().print(table)
    return ratios


def peak_memory() -> float:
    """Return the peak resident memory of this process so far, in MiB.

    Not that of `resource.getrusage`, in which a process begins with the peak of the one that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def memory_now() -> float:
    """Return the resident memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20
