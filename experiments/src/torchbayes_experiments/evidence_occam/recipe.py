"""Settings of `evidence_occam`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OccamRecipe:
    """The grid, and how long each of its networks is trained.

    Attributes:
        data: a UCI regression set; seed s takes its split s.
        widths: numbers of hidden tanh units, in rising order.
        scales: standard deviations of every weight's normal prior, in rising order.
        noise: initial noise scale, in standard deviations of the targets.
        rounds: maximum number of noise scales tried.
        steps: maximum number of steps of each climb.
        tolerance: a climb ends where the predicted gain of a Gauss-Newton step is below this, in nats.
    """

    data: str = "uci_energy"
    widths: tuple[int, ...] = (2, 5, 10, 20, 50)
    scales: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    noise: float = 0.3
    rounds: int = 8
    steps: int = 200
    tolerance: float = 0.05


SMALL = OccamRecipe()

PAPER = OccamRecipe(widths=(2, 5, 10, 20, 50, 100, 200, 400), rounds=12, steps=1000)
