r"""Which weights and units are superfluous, by what the posterior says of them.

    signal to noise of a weight     |E w| / √Var w
    noise of a unit                 of its multiplier: log Var z/(E z)², or minus the logarithm of its mode

For independent weights log α = −2 log (|E w| / √Var w) is what sparse variational dropout prunes by (Molchanov et al.
2017), and ½ (E w)² / Var w under Laplace's Var w = (H⁻¹)_ii is the saliency of the optimal brain surgeon (Hassibi and
Stork 1993): what the loss rises by where the weight is set to zero and all others follow. That they follow means
E(w | pruned ones = 0) = μ − Σ_P (Σ_PP)⁻¹ μ_P, which `follow` computes for any covariance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchbayes.compression.plain import Plain


def signal_to_noise(plain: Plain) -> dict[str, Tensor]:
    """Return |E w| / √Var w of the weights that may be pruned, by parameter; of a point |w|."""
    found = {}
    for name in plain.matrices:
        size = plain.network.get_parameter(name).detach().abs()
        found[name] = size / plain.variance[name].sqrt() if name in plain.variance else size
    return found


def between_humps(noise: Tensor, least: float) -> float:
    """Return the noise from which on units are superfluous: where the histogram of a layer divides in two.

    Of all ways to divide the numbers at a threshold it is the one whose two parts have the least variance inside them,
    with the threshold in the middle between their nearest numbers, but never below `least`, so that a layer of one hump
    keeps its units. Source: Otsu (1979), here on the numbers themselves in the place of a histogram.

    Args:
        noise: of the units of a layer.
        least: the smallest threshold.

    Returns:
        The threshold.
    """
    ranked = noise.double().sort().values
    if len(ranked) < 2:
        return least
    below = torch.arange(1, len(ranked), dtype=torch.float64, device=ranked.device)
    above, sums = len(ranked) - below, ranked.cumsum(0)
    apart = (sums[-1] - sums[:-1]) / above - sums[:-1] / below
    at = int((below * above * apart.square()).argmax())
    return max(least, float(0.5 * (ranked[at] + ranked[at + 1])))
