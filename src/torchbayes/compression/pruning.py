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

_LEAST = 0.5  # nats


def signal_to_noise(plain: Plain) -> dict[str, Tensor]:
    """Return |E w| / √Var w of the weights that may be pruned, by parameter; of a point |w|."""
    found = {}
    for name in plain.matrices:
        size = plain.network.get_parameter(name).detach().abs()
        found[name] = size / plain.variance[name].sqrt() if name in plain.variance else size
    return found


def gap(noise: Tensor, window: tuple[float, float]) -> float:
    """Return the noise from which on units are superfluous: the middle of the widest gap in a histogram's window.

    Outside of the window a unit is clearly needed or clearly superfluous; in it the histogram decides. Where neighbours
    are nowhere half a nat apart there is no gap, and the threshold is the middle of the window.

    Args:
        noise: of the units of a layer.
        window: as of `Moments.window`.

    Returns:
        The threshold.
    """
    low, high = window
    inside = noise[(noise > low) & (noise < high)].double().sort().values
    edges = torch.cat([inside.new_tensor([low]), inside, inside.new_tensor([high])])
    widths = edges.diff()
    at = int(widths.argmax())
    return float(edges[at] + 0.5 * widths[at]) if float(widths[at]) > _LEAST else 0.5 * (low + high)
