"""Our side of the conversation with peers: start them, and time them and our own code in turn.

All processes are alive at once, but only one works at a time. Each takes as many cores as it likes: `OMP_NUM_THREADS`
bounds those of PyTorch, but not those of JAX. To compare on fewer cores, start the benchmark under `taskset`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from benchmarks.harness import Timing, Work
from benchmarks.peers.load import Neighbours

ROOT = Path(__file__).resolve().parents[2]
Clock = Callable[[int], float]  # units of work -> seconds they took


class Peer:
    """One way of a peer to do the work of a case, in a process of its own. A context manager: starts and closes it.

    Attributes:
        values: what both sides must agree on, such as log densities of the chains at the starting weights, in nats;
            empty before the start.
    """

    def __init__(self, way: str, case: str, *, where: Path = ROOT / ".peers", patience: float = 600.0) -> None:
        """Name the peer.

        Args:
            way: FAMILY/WAY, such as "jax/blackjax": the environment below `where`, and what its server is asked for.
            case: name of the case.
            where: where setup.sh made the environments.
            patience: seconds after which an answer is given up.

        Raises:
            FileNotFoundError: if the environment is not there.
        """
        family, _, name = way.partition("/")
        python = where.absolute() / family / "bin" / "python"  # not resolved: the link is what makes the environment
        if not python.exists():
            raise FileNotFoundError(
                f"there is no environment {python}. Make it by `benchmarks/peers/setup.sh {where}`."
            )
        self.values: list[float] = []
        self._command = [str(python), "-m", f"benchmarks.peers.{family}_peer", name, case]
        self._name, self._patience = f"{way} on {case}", patience
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The id of the process.

        Raises:
            RuntimeError: if it is not running.
        """
        if self._process is None:
            raise RuntimeError(f"{self._name} is not running. Start it first.")
        return self._process.pid

    def start(self) -> Self:
        """Start the process, and wait until it is built and warm.

        Returns:
            The peer.

        Raises:
            RuntimeError: if it fails.
        """
        # open as long as the process lives
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        try:
            word, *values = self._answer().split()
            if word != "ready":
                raise RuntimeError(f"{self._name} should say that it is ready; got {word!r}.")
            self.values = [float(value) for value in values]
        except BaseException:
            self.close()
            raise
        return self

    def time(self, units: int) -> float:
        """Return the seconds that so many units of work took, by the peer's own clock.

        Raises:
            RuntimeError: if the peer is not running, or fails.
        """
        return self._ask(f"go {units}")

    def memory(self) -> float:
        """Return the peak resident memory of the peer's process so far, in MiB.

        Raises:
            RuntimeError: if the peer is not running, or fails.
        """
        return self._ask("memory")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            try:
                self._process.communicate(timeout=20)  # ends its input
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            self._errors.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: str) -> float:
        """Return the answer to a request.

        Raises:
            RuntimeError: if the peer is not running, or fails.
        """
        if self._process is None or self._process.stdin is None:
            raise RuntimeError(f"{self._name} is not running. Start it first.")
        with suppress(BrokenPipeError):  # it has died; the missing answer says why
            print(request, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        """Return the next line.

        Raises:
            RuntimeError: if there is none within the patience.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        guard = threading.Timer(self._patience, self._process.kill)
        guard.start()
        line = self._process.stdout.readline()
        guard.cancel()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            last = self._errors.read().strip().splitlines()[-5:]
            raise RuntimeError(
                "\n".join([
                    f"{self._name} gave no answer within {self._patience:g} s, or died; exit status {code}.",
                    *last,
                ])
            )
        return line


def clock(work: Work) -> Clock:
    """Return the clock of a function of this process that does one unit of the work."""

    def seconds(units: int) -> float:
        start = time.perf_counter()
        for _ in range(units):
            work()
        return time.perf_counter() - start

    return seconds


class Race(NamedTuple):
    """What `alternate` measured.

    Attributes:
        timings: one per way, seconds per unit.
        others: the most cores that other processes used during a block that was kept.
    """

    timings: list[Timing]
    others: float


def alternate(
    clocks: Mapping[str, Clock],
    *,
    ours: Sequence[int] = (),
    rounds: int = 7,
    block: float = 0.3,
    others: float = 0.2,
    patience: float = 60.0,
) -> Race:
    """Time each way in turn, round by round, in alternating order, while the machine is quiet.

    Args:
        clocks: name -> seconds of so many units; warm.
        ours: process ids of the peers.
        rounds: number of rounds.
        block: seconds that a timed block lasts at least.
        others: a block during which other processes used more cores than this is measured again.
        patience: seconds in all to spend on waiting and repeating; then blocks are kept as they come.

    Returns:
        Timings, and how quiet it was.
    """
    neighbours, worst = Neighbours(ours), 0.0
    units = {name: max(1, round(block / max(seconds(1), 1e-7))) for name, seconds in clocks.items()}
    timed: dict[str, list[float]] = {name: [] for name in clocks}
    for number in range(rounds):
        for name in list(clocks)[:: -1 if number % 2 else 1]:
            while True:
                patience -= neighbours.wait(others, patience)
                start = time.perf_counter()
                seconds, used = clocks[name](units[name]), neighbours.cores()
                if used <= others or patience <= 0:
                    break
                patience -= time.perf_counter() - start  # a peer that does a share of the work says more seconds
            timed[name].append(seconds / units[name])
            worst = max(worst, used)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return Race([Timing(name, seconds) for name, seconds in timed.items()], worst)
