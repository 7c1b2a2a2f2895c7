"""Choice of the weights whose joint posterior matters most."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbayes.checks import whole
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.gaussian import Gaussian, check_gaussian
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.posteriors.problems import warn_of


@undisturbed
def subnetwork(posterior: LaplacePosterior | Gaussian, size: int) -> dict[str, Tensor]:
    """Return the weights with the largest marginal variances, as masks for `Model(random=...)`.

    For a Gaussian posterior with independent weights this choice leaves the smallest Wasserstein distance to the whole
    posterior (Daxberger et al. 2021, "Bayesian deep learning via subnetwork inference"). A diagonal Laplace posterior
    is cheap; a dense one over the subnetwork can follow, or any other method.

    Args:
        posterior: over all weights, such as a diagonal Laplace; of several members the mean variance counts.
        size: number of weights.

    Returns:
        Parameter -> bool tensor of its shape, True for the chosen elements; parameters without any are left out.

    Raises:
        ValueError: if the network has fewer weights, or its posterior is over a mask of weights already.
    """
    check_gaussian(posterior)
    whole("size", size)
    warn_of(posterior.problems)
    layout = posterior.model.network.layout
    if posterior.model.network.mask.indices:
        raise ValueError("the posterior is one over a subnetwork already. Start from one over all weights.")
    if not 1 <= size <= layout.size:
        raise ValueError(f"`size` must lie in 1..{layout.size}, the weights of the network; got {size}.")
    variance_D = posterior.gaussian.covariance.diagonal().mean(0)[: layout.size]
    chosen_D = torch.zeros(layout.size, dtype=torch.bool, device=variance_D.device)
    chosen_D[variance_D.topk(size).indices] = True
    return {name: mask for name, mask in layout.split(chosen_D).items() if mask.any()}
