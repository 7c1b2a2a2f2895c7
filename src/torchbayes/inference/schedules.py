"""Learning-rate schedules: pure functions of the share of the run that is done."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    """lr(t) = lr."""

    def factor(self, done: float) -> float:
        """Return the factor on the learning rate when a share `done` in [0, 1) of the run is over."""
        del done
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """lr(t) = lr · [final + (1 − final)(1 + cos πt)/2] (Loshchilov and Hutter 2017, without restarts).

    Attributes:
        final: the last factor.
        warmup: share of the run in which the rate first rises linearly from 0.
    """

    final: float = 0.0
    warmup: float = 0.0

    def factor(self, done: float) -> float:
        """Return the factor on the learning rate when a share `done` in [0, 1) of the run is over."""
        if done < self.warmup:
            return done / self.warmup
        rest = (done - self.warmup) / (1 - self.warmup)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * rest)) / 2


@dataclass(frozen=True)
class PiecewiseLinear:
    """The schedule of the SWAG paper (Maddox et al. 2019): constant, a linear fall, constant.

    lr(t) = lr for t ≤ ½ end, falls linearly to final · lr at 0.9 end, and stays there. With SWA and SWAG `end` is the
    share of the run before averaging starts and `final` the ratio of the averaging rate to lr.

    Attributes:
        final: last factor.
        end: share of the run over which the fall is spread.
    """

    final: float = 0.01
    end: float = 1.0

    def factor(self, done: float) -> float:
        """Return the factor on the learning rate when a share `done` in [0, 1) of the run is over."""
        share = done / self.end if self.end > 0 else 1.0
        if share <= 0.5:
            return 1.0
        return 1.0 - (1.0 - self.final) * min((share - 0.5) / 0.4, 1.0)


Schedule = Constant | Cosine | PiecewiseLinear
