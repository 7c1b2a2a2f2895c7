"""The density of a model whose minibatch gradient another program has computed.

A foreign training loop leaves the gradient of its loss, the mean negative log likelihood ℓ of a minibatch. The
gradient of the tempered log joint density follows without another pass through the network:

    ∇log p_T(w, D) = [ −N ∇ℓ + ∇log p(w) ] / T

and with `tempering="likelihood"` only the first term is divided by T.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbayes.density.dynamics import Value
from torchbayes.model.model import Model, Scales
from torchbayes.model.network import Buffers


class GivenGradient:
    """Stands in the place of a `LogDensity` in one step of a method that takes one gradient in a step.

    The loss itself is not known, so that log likelihoods are 0.

    Attributes:
        model: the model.
        num_data: N.
    """

    def __init__(self, model: Model, num_data: int) -> None:
        """Bind a model to its data size; `give` comes before each step."""
        self.model, self.num_data = model, num_data
        self._gradient_MD, self._buffers = torch.empty(0), Buffers()

    def give(self, gradient_MD: Tensor, buffers: Buffers) -> None:
        """Take ∇ℓ at the weights where the next step evaluates the density, and the network's buffers after the pass.

        The buffers are copied to those of a step that lets the network change them, as in training mode.
        """
        self._gradient_MD, self._buffers = gradient_MD, buffers

    def __call__(self, weights_MD: Tensor, batch: None = None) -> Value:
        """Return log density and gradient of each member, as a `LogDensity` does but for the log likelihood."""
        return self._scaled(Scales(1.0, 1.0), weights_MD, torch.empty_like(weights_MD))

    def nll(
        self,
        weights_MD: Tensor,
        batch: None = None,
        *,
        buffers: Buffers | None = None,
        seeds: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Value:
        """Return the mean negative log likelihood, here 0, and its gradient, as `LogDensity.nll` does."""
        del seeds  # of masks, which the other program has drawn
        for name, buffer in (buffers or {}).items():
            buffer.copy_(self._buffers[name])
        factors = Scales(-self.model.temperature / self.num_data, 0.0)
        return self._scaled(factors, weights_MD, torch.empty_like(weights_MD) if out is None else out)

    def prior_stds(self) -> Tensor:
        """Return the standard deviation of the tempered prior of every weight, float64 (D,); infinite if improper."""
        return self.model.prior.stds() * self.model.scales(1, 1).prior ** -0.5

    @torch.no_grad()
    def _scaled(self, factors: Scales, weights_MD: Tensor, gradient_MD: Tensor) -> Value:
        """Return the log density with factors on its parts, and write its gradient."""
        scales = self.model.scales(self.num_data, 1)  # of a single row, as the loss is a mean over rows
        torch.mul(self._gradient_MD, -factors.likelihood * scales.likelihood, out=gradient_MD)
        nothing_M = weights_MD.new_zeros(len(weights_MD), dtype=torch.float64)
        if not factors.prior:
            return Value(nothing_M, gradient_MD, nothing_M)
        self.model.prior.add_gradient_(gradient_MD, weights_MD, factors.prior * scales.prior)
        log_prior_M = factors.prior * scales.prior * self.model.log_prior(weights_MD)
        return Value(log_prior_M.double(), gradient_MD, nothing_M)
