"""ConcreteDropout: dropout whose rates are learned with the weights (Gal, Hron and Kendall 2017).

    z_j = 1 − σ((logit p + logit u_j)/t),   u_j ~ U(0, 1),   t = 0.1        (in training, so that p has a gradient)
    −ELBO / N = nll + (1/N) Σ_layers [ l²/(2(1 − p)) ‖W‖² − K H(p) ],   H(p) = −p log p − (1 − p) log(1 − p)

for inverted dropout, f = W (z/(1 − p) ∘ x), with the prior N(0, l⁻²) of the weights that act on a kept unit, and K
units, or channels, of a layer. P(z > ½) = 1 − p for every t. The weight terms and the entropy fall as 1/N beside the
likelihood, and the rate falls with them: with more data less is dropped. For a model of temperature T the likelihood
and the prior are divided by T, and the entropy is not. Predictions use masks of zeros and ones, the limit of small t.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.methods.finite import clone
from torchbayes.methods.optimise.descent import Descent, Scheduled, Trajectory
from torchbayes.methods.optimise.settings import Training
from torchbayes.methods.protocol import Shelf
from torchbayes.methods.variational.objective import ByMembers
from torchbayes.model.dropout import check_dropout, rates
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.priors.univariate import Normal
from torchbayes.native.recomputation import activations_kept
from torchbayes.posteriors.layers.dropout import DropoutPosterior, folds
from torchbayes.posteriors.layers.dropout import Fold as Layer
from torchbayes.randomness.seeds import Purpose, generator

TEMPERATURE = 0.1
State = Trajectory


@dataclass(frozen=True)
class ConcreteDropout(Training, Scheduled, Descent):
    """MC dropout that learns the rate of each dropout layer, starting from the layer's own rate.

    For plain stacks of layers, nn.Sequential, whose nn.Dropout stands right beside linear layers, or nn.Dropout2d
    beside convolutions, under a normal prior N(0, s²) of their weights, s = 1/l. The rates are in the posterior.

    Attributes:
        epochs: passes over the data; None lets held-out rows choose them, by training at the layers' own rates.
        optimizer: update rule and learning rate of weights and of logits of rates, on the scale of the mean loss.
    """

    plan = "loop"
    by_draws = True

    def check(self, model: Model) -> None:
        super().check(model)
        learnable(model)

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        """Return the trajectory of each member's weights, followed by the logits of its rates."""
        learnable(density.model)
        logits_L = torch.tensor(rates(density.model.network), dtype=torch.float64).logit().to(weights_MD)
        parameters_ME = torch.cat([weights_MD, logits_L.expand(len(weights_MD), -1)], 1)
        return super().begin(density, parameters_ME, buffers, seeds=seeds, steps_per_epoch=steps_per_epoch)

    def target(self, density: LogDensity, state: State) -> Rated:
        return Rated(density.model, density.num_data)

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> DropoutPosterior:
        """Return the members' networks under random masks at the learned rates."""
        size = density.model.layout.size
        weights_MD, logits_ML = state.weights_MD[:, :size].clone(), state.weights_MD[:, size:].double()
        posterior = DropoutPosterior(density.model, weights_MD, logits_ML.sigmoid(), buffers_M=state.buffers or None)
        return replace(posterior, statistics_known=True)


def learnable(model: Model) -> list[Layer]:
    """Return the dropout layers of a model with the weights that they act on.

    Raises ValueError if their rates cannot be learned.
    """
    check_dropout(model.network)
    layers = folds(model.network)
    if layers is None:
        raise ValueError(
            "rates are learned in nn.Sequential networks whose nn.Dropout layers stand right beside linear layers, or "
            "nn.Dropout2d beside convolutions; the dropout of this network acts elsewhere. Use MCDropout, at fixed "
            "rates."
        )
    if not all(0 < rate < 1 for rate in rates(model.network)):
        raise ValueError("a rate of 1 cannot be learned from. Begin with rates below 1, such as 0.1.")
    weighed = [model.layout.slices[name] for layer in layers for name in (layer.weight, layer.bias) if name]
    for segment in model.prior.segments:
        within = any(segment.where.start < w.stop and w.start < segment.where.stop for w in weighed)
        if within and (not isinstance(segment.prior, Normal) or segment.prior.loc != 0):
            raise ValueError(
                f"rates are learned under a normal prior around 0 of the weights beside dropout; got {segment.prior}. "
                f"Use priors.Normal(), or MCDropout, at fixed rates."
            )
    return layers


@dataclass(frozen=True)
class Rated(ByMembers):
    """The bound as a loss of weights and logits of rates."""

    def terms(self, parameters_E: Tensor, rows: Batch, *, buffers: Buffers, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        model, layers = self.model, learnable(self.model)
        weights_D, logits_L = parameters_E[: model.layout.size], parameters_E[model.layout.size :]
        views, source = model.split(weights_D.detach())[0], generator(Purpose.CONCRETE, seed, device=weights_D.device)
        with model.network.training():
            # asked first because it may run the network, which would use up random numbers of the masks
            model.network.ask(views, rows.inputs, clone(buffers))
            with _masking(model, layers, logits_L, source=source):
                fit = model.log_likelihood(weights_D, rows, buffers).sum(dtype=torch.float64)
        return fit, model.log_prior(_kept(model, layers, weights_D, logits_L)), _entropy(layers, logits_L)


def concrete_mask(logit: Tensor, shape: Sequence[int], *, source: torch.Generator) -> Tensor:
    """Return z = 1 − σ((logit p + logit u)/t), with u from a generator."""
    uniform = torch.rand(*shape, dtype=logit.dtype, device=logit.device, generator=source)
    tiny = torch.finfo(logit.dtype).eps
    return torch.sigmoid(-(logit + uniform.clamp(tiny, 1 - tiny).logit()) / TEMPERATURE)


@contextmanager
def _masking(model: Model, layers: Sequence[Layer], logits_L: Tensor, *, source: torch.Generator) -> Iterator[None]:
    """Let dropout layers multiply by concrete masks inside the `with`."""

    def drop(layer: Layer, logit: Tensor, module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x, positions = args[0], args[0].ndim - 1 - len(layer.shape)  # all positions of a row have the same mask
        mask = concrete_mask(
            logit, (len(x), *[1] * positions, *layer.shape), source=source
        )  # the same at all positions
        return x * (mask / torch.sigmoid(-logit)).to(x.dtype)

    modules: list[Any] = [model.network.module.get_submodule(layer.dropout) for layer in layers]
    by_layer = zip(modules, layers, logits_L, strict=True)
    handles = [module.register_forward_hook(partial(drop, layer, logit)) for module, layer, logit in by_layer]
    try:
        for module in modules:
            module.training = False  # only the hook drops
        with activations_kept():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _kept(model: Model, layers: Sequence[Layer], weights_D: Tensor, logits_L: Tensor) -> Tensor:
    """Return weights W/√(1 − p) beside dropout: their normal prior is that of W with l²/(1 − p)."""
    factor_D = torch.ones_like(weights_D)
    for layer, logit in zip(layers, logits_L, strict=True):
        for name in (layer.weight, layer.bias):
            if name is not None:
                span, ones = model.layout.slices[name], torch.ones_like(factor_D)
                ones[span] = torch.sigmoid(-logit).rsqrt()
                factor_D = factor_D * ones
    return weights_D * factor_D


def _entropy(layers: Sequence[Layer], logits_L: Tensor) -> Tensor:
    """Return Σ K H(p) in nats."""
    units_L = torch.tensor([layer.shape[0] for layer in layers]).to(logits_L)
    p_L, soft = logits_L.sigmoid(), torch.nn.functional.softplus
    return (units_L * (p_L * soft(-logits_L) + (1 - p_L) * soft(logits_L))).sum()
