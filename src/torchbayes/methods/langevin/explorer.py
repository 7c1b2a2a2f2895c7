"""The sampler that goes on from the networks of an ensemble, if none is given: microcanonical Langevin dynamics."""

from __future__ import annotations

from torchbayes.methods.langevin.unadjusted import MCLMC


def explorer() -> MCLMC:
    """Return MCLMC with steps that are as long as networks bear, and a burn-in that gets from the modes to the bulk.

    The energy errors are far above those of exact moments. The mass is not learned, because a chain that is still on
    its way gives no variances.
    """
    return MCLMC(steps=10000, burn_in=6000, thin=40, mass="unit", energy_error=0.1)
