"""Predictives by propagated moments: independent normal weights pushed through a fully connected ReLU network.

    f(x) ~ N( m_L(x), v_L(x) ),    y ~ N( m_L(x), v_L(x) + noise² )

with the mean and variance of every layer's outputs in closed form, as if the units of a layer were independent and
normal (Hernandez-Lobato and Adams 2015; the formulas are in `torchbayes.native.propagation`). Probabilistic
backpropagation is trained by this predictive. It takes one pass through the network and no draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.checks import holds, seen
from torchbayes.density.architecture import Architecture, architecture
from torchbayes.display import shown_by
from torchbayes.linalg.structure import is_diagonal
from torchbayes.model.likelihoods import Gaussian as GaussianLikelihood
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.model.model import Model
from torchbayes.native.build import UnavailableError
from torchbayes.native.description import Activation
from torchbayes.native.process import undisturbed_methods
from torchbayes.native.propagation import outputs_of
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.problems import warn_of
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.linearised import checked

_KNOWN = (nn.Sequential, nn.Linear, nn.ReLU, nn.Flatten, nn.Identity, nn.Dropout)
_WANTED = (
    "Moments go through a plain stack of nn.Linear layers with ReLUs between them, all of whose weights are random"
)


def rectifier_network(model: Model) -> Architecture:
    """Return the layers of a fully connected ReLU network; for another network a ValueError that names the layer."""
    module = model.network.module
    stranger = next((n for n, m in module.named_modules() if type(m) not in _KNOWN), None)
    if stranger is not None:
        problem = (
            f"`{stranger}` is a {type(module.get_submodule(stranger)).__name__}" if stranger else f"got {seen(module)}"
        )
        raise ValueError(f"{_WANTED}; {problem}. Take `networks.mlp`, or another method, such as VI().")
    try:
        network = architecture(module, model.network.layout, device=torch.device("cpu"))
    except UnavailableError as error:
        raise ValueError(f"{_WANTED}; {error}. Take `networks.mlp`, or another method, such as VI().") from error
    if network.stages or any(
        layer.activation not in {Activation.IDENTITY, Activation.RELU} for layer in network.layers
    ):
        raise ValueError(f"{_WANTED}; got {seen(module)}. Take `networks.mlp`, or another method, such as VI().")
    return network


def normal_noise(model: Model) -> GaussianLikelihood:
    """Return the likelihood of one observation; a ValueError unless it is normal noise of fixed or learned scale."""
    likelihood = unweighted(model.likelihood)
    if not isinstance(likelihood, GaussianLikelihood) or not holds(likelihood, "curvature_root"):
        raise ValueError(
            f"moments of the outputs give a closed form for normal noise alone; got {seen(likelihood)}. Use "
            f"likelihoods.Gaussian, or another method, such as VI()."
        )
    return likelihood


def flattened(network: Architecture, inputs: Any, *, axis: int) -> Tensor:
    """Return rows as float64 vectors, joining axes after `axis`; a ValueError if the network does not take them."""
    if not isinstance(inputs, Tensor) or not network.takes(inputs.shape[axis + 1 :]):
        rows = f"shape {tuple(inputs.shape[axis + 1 :])}" if isinstance(inputs, Tensor) else seen(inputs)
        raise ValueError(f"the network takes rows of {network.rows}; got rows of {rows}. Give one tensor of rows.")
    return inputs.flatten(axis + 1).double()


@undisturbed_methods
@shown_by("posterior")
@dataclass(frozen=True)
class Propagated:
    """The closed-form predictive of a Gaussian with independent weights, such as that of `PBP`.

    It takes the place of a posterior in `predict`, `stream` and `evaluate`: with M members it is the mixture of
    theirs. Computed in float64. A learned noise counts with its mean square.

    Attributes:
        posterior: a Gaussian over a diagonal, of a fully connected ReLU network with normal noise.
    """

    posterior: Gaussian

    def __post_init__(self) -> None:
        if not hasattr(self.posterior, "covariance"):
            raise TypeError(f"`posterior` must be a Gaussian one; got {seen(self.posterior)}. Fit by PBP, VI or IVON.")
        if not is_diagonal(self.posterior.covariance):
            raise ValueError(
                f"`posterior` must have independent weights; its covariance is {self.posterior.covariance.kind}. Use "
                f"predict(posterior, inputs), which draws weights."
            )
        rectifier_network(self.model)
        normal_noise(self.model)
        warn_of(self.posterior.problems)

    @property
    def model(self) -> Model:
        """The model."""
        return self.posterior.model

    def functions(self, inputs: Any, *, chunk_size: int = 1024) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the outputs of each member, each (M, B, K).

        Args:
            inputs: tensor (B, ...).
            chunk_size: rows that go through the network at once.

        Raises:
            ValueError: if the network cannot take the inputs, or there are no rows.
        """
        network, placed = rectifier_network(self.model), checked(self.model, inputs)
        rows_BI, like_MD = flattened(network, placed, axis=0), self.posterior.mean_MD
        spread_MD = self.posterior.covariance.diagonal().double()
        pairs = list(zip(like_MD.double(), spread_MD, strict=True))
        chunks = rows_BI.split(chunk_size)
        moments = [[outputs_of(network.layers, *pair, inputs_BI=chunk) for chunk in chunks] for pair in pairs]
        each = (torch.stack([torch.cat([chunk[n] for chunk in member]) for member in moments]) for n in (0, 1))
        mean_MBK, variance_MBK = (tensor.to(like_MD) for tensor in each)
        return mean_MBK, variance_MBK

    def predictive(self, inputs: Any, *, chunk_size: int = 1024) -> Predictive:
        """Return the predictive at inputs, a mixture over the members, which are its draws.

        Args:
            inputs: tensor (B, ...).
            chunk_size: rows that go through the network at once.

        Raises:
            ValueError: if the network cannot take the inputs, or there are no rows.
        """
        mean_MBK, variance_MBK = self.functions(inputs, chunk_size=chunk_size)
        locs, spreads = (self.model.split(t)[1] for t in (self.posterior.mean_MD, self.posterior.covariance.diagonal()))
        # For log s ~ N(m, v), s² has the mean exp(2 m + 2 v).
        noise = {name: (loc + spreads[name]).unsqueeze(1) for name, loc in locs.items()}
        return Predictive(mean_MBK, self.model.likelihood, noise, function_variance=variance_MBK)
