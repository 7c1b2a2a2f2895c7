"""How busy other processes keep the machine while something is timed: read from /proc, on Linux alone.

A second busy process on few cores slows a program that uses all of them several times, some libraries far more than
others: threads that wait for each other at a barrier suffer most. A ratio measured at the same time is meaningless.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def _machine() -> float:
    """Return the CPU seconds that all processes have used."""
    fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS  # without idle and waiting for disks


def _process(pid: int) -> float:
    """Return the CPU seconds that one process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Neighbours:
    """A stopwatch of the cores that processes other than ours use.

    Attributes:
        known: whether this system tells.
    """

    def __init__(self, ours: Sequence[int]) -> None:
        """Name our processes, and start."""
        self.known = Path("/proc/stat").exists()
        self._ours = (os.getpid(), *ours)
        self._at = self._read()

    def _read(self) -> tuple[float, float]:
        others = _machine() - sum(_process(pid) for pid in self._ours) if self.known else 0.0
        return others, time.perf_counter()

    def cores(self) -> float:
        """Return the cores that others have used since the last call: 0 where this is not known."""
        (before, start), self._at = self._at, self._read()
        return max(0.0, self._at[0] - before) / max(self._at[1] - start, 1e-3)

    def wait(self, most: float, patience: float) -> float:
        """Wait until others use at most so many cores, and return the seconds that took; give up after `patience`."""
        start = time.perf_counter()
        self.cores()
        while time.perf_counter() - start < patience:
            time.sleep(0.25)
            if self.cores() <= most:
                break
        return time.perf_counter() - start
