"""Which weights and units are superfluous according to the posterior.

    signal to noise of a weight     |E w| / √Var w
    noise of a unit                 of its multiplier: log Var z/(E z)², or minus the logarithm of its mode

For independent weights log α = −2 log (|E w| / √Var w) is the criterion of sparse variational dropout (Molchanov et
al. 2017), and ½ (E w)² / Var w under Laplace's Var w = (H⁻¹)_ii is the saliency of the optimal brain surgeon (Hassibi
and Stork 1993): the rise of the loss if the weight is set to zero and all others follow. They follow to E(w | pruned
ones = 0) = μ − Σ_P (Σ_PP)⁻¹ μ_P, which `follow` computes for any covariance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchbayes.compression.plain import Plain

_LEAST = 0.5  # nats


def signal_to_noise(plain: Plain) -> dict[str, Tensor]:
    """Return |E w| / √Var w of the weights that may be pruned, by parameter; |w| for a point."""
    ratios = {}
    for name in plain.matrices:
        size = plain.network.get_parameter(name).detach().abs()
        ratios[name] = size / plain.variance[name].sqrt() if name in plain.variance else size
    return ratios


def gap(noise: Tensor, window: tuple[float, float]) -> float:
    """Return the noise from which on units are superfluous: the middle of the widest gap in a histogram's window.

    Outside the window (`Moments.window`) a unit is clearly needed or clearly superfluous. If neighbours are nowhere
    half a nat apart there is no gap, and the threshold is the middle of the window.
    """
    low, high = window
    inside = noise[(noise > low) & (noise < high)].double().sort().values
    edges = torch.cat([inside.new_tensor([low]), inside, inside.new_tensor([high])])
    widths = edges.diff()
    at = int(widths.argmax())
    return float(edges[at] + 0.5 * widths[at]) if float(widths[at]) > _LEAST else 0.5 * (low + high)
