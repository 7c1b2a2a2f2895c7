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

_LEAST = 1.0  # nats: narrower gaps are not one of a histogram with two humps
_ITERATIONS, _TOLERANCE = 200, 1e-6


def signal_to_noise(plain: Plain) -> dict[str, Tensor]:
    """Return |E w| / √Var w of the weights that may be pruned, by parameter; of a point |w|."""
    found = {}
    for name in plain.matrices:
        size = plain.network.get_parameter(name).detach().abs()
        found[name] = size / plain.variance[name].sqrt() if name in plain.variance else size
    return found if plain.variance else {name: size for name, size in found.items()}


def gap(noise: Tensor, window: tuple[float, float] = (0.0, 8.0)) -> float:
    """Return the middle of the widest gap between neighbouring noises of units: from there on they are superfluous.

    It is looked for where noise and signal are of an order of magnitude: units with more signal than noise stay, and
    those whose noise is e⁴ times as large as they are go. Where no gap is wider than a nat, it is the lower end, as if
    there were no histogram.

    Args:
        noise: of the units of a layer.
        window: where gaps are looked for.

    Returns:
        The threshold.
    """
    low, high = window
    inside = noise[(noise > low) & (noise < high)].sort().values
    edges = torch.cat([noise.new_tensor([low]), inside, noise.new_tensor([high])])
    wide = edges.diff()
    at = int(wide.argmax())
    return float(edges[at] + 0.5 * wide[at]) if float(wide[at]) > _LEAST else low
