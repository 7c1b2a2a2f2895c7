"""ConcreteDropout: dropout whose rates are learned with the weights (Gal, Hron and Kendall 2017).

    z_j = 1 − σ((logit p + logit u_j)/t),   u_j ~ U(0, 1),   t = 0.1        (in training, so that p has a gradient)
    −ELBO / N = nll + (1/N) Σ_layers [ l²/(2(1 − p)) ‖W‖² − K H(p) ],   H(p) = −p log p − (1 − p) log(1 − p)

for inverted dropout, f = W (z/(1 − p) ∘ x), with the prior N(0, l⁻²) of the weights that act on a kept unit, and K
units, or channels, of a layer. P(z > ½) = 1 − p for every t. The weight terms and the entropy fall as 1/N beside the
likelihood, and the rate falls with them: with more data less is dropped. For a model of temperature T the likelihood
and the prior are divided by T, and the entropy is not. Predictions use masks of zeros and ones, the limit of small t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Value
from torchbayes.methods.optimise.base import Descent, Scheduled
from torchbayes.methods.optimise.descent import Trajectory
from torchbayes.methods.optimise.settings import Training
from torchbayes.methods.protocol import Shelf
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.dropout import check_dropout, rates
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.priors.univariate import Normal
from torchbayes.native.process import differentiable
from torchbayes.posteriors.layers.dropout import DropoutPosterior
from torchbayes.posteriors.layers.folded import Fold as Layer
from torchbayes.posteriors.layers.folded import folds
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
class Rated:
    """The bound as a loss of weights and logits of rates; it stands in for a density, which knows no rates."""

    model: Model
    num_data: int  # N

    def loss(self, weights_ME: Tensor, batch: Batch, *, buffers: Buffers, seeds: Sequence[int], out: Tensor) -> Value:
        """Return the negative bound per observation (M,), and write its gradient to `out` (M, E).

        `weights_ME` are the weights of each member followed by its logits. Buffers are changed in place; the seeds are
        those of the masks. The log likelihood (M,) in the `Value` is an estimate for all rows.
        """
        model, layers = self.model, learnable(self.model)
        rows = batch_size(batch.inputs, 1)
        scales = model.scales(self.num_data, rows)
        factor = -(model.temperature if model.tempering == "joint" else 1.0) / self.num_data
        losses, fits = [], []
        for m, seed in enumerate(seeds):
            source = generator(Purpose.CONCRETE, seed, device=weights_ME.device)
            with differentiable():
                parameters_E = weights_ME[m].detach().clone().requires_grad_()
                weights_D, logits_L = parameters_E[: model.layout.size], parameters_E[model.layout.size :]
                member_buffers = {name: buffer[m] for name, buffer in buffers.items()}
                inputs = model.network.arrange(rows_of(batch.inputs, m))
                rows_m, views = Batch(inputs, rows_of(batch.targets, m)), model.split(weights_D.detach())[0]
                with model.network.training():
                    # asked first because it may run the network, which would use up random numbers of the masks
                    model.network.ask(views, inputs, {n: b.clone() for n, b in member_buffers.items()})
                    with _masking(model, layers, logits_L, source=source):
                        fit = model.log_likelihood(weights_D, rows_m, member_buffers).sum(dtype=torch.float64)
                prior, entropy = model.log_prior(_kept(model, layers, weights_D, logits_L)), _entropy(layers, logits_L)
                loss = factor * (scales.likelihood * fit + scales.prior * prior + entropy)
                out[m] = torch.autograd.grad(loss, parameters_E)[0]
            losses.append(loss.detach())
            fits.append(fit.detach() * (self.num_data / rows))
        return Value(torch.stack(losses), out, torch.stack(fits))


def concrete_mask(logit: Tensor, shape: Sequence[int], *, source: torch.Generator) -> Tensor:
    """Return z = 1 − σ((logit p + logit u)/t), with u from a generator."""
    uniform = torch.rand(*shape, dtype=logit.dtype, device=logit.device, generator=source)
    tiny = torch.finfo(logit.dtype).eps
    return torch.sigmoid(-(logit + uniform.clamp(tiny, 1 - tiny).logit()) / TEMPERATURE)


@contextmanager
def _masking(model: Model, layers: Sequence[Layer], logits_L: Tensor, *, source: torch.Generator) -> Iterator[None]:
    """Let dropout layers multiply by concrete masks inside the `with`."""

    def hook_of(layer: Layer, logit: Tensor) -> Callable[..., Tensor]:
        def hook(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            x = args[0]
            shape = (
                len(x),
                *[1] * (x.ndim - 1 - len(layer.shape)),
                *layer.shape,
            )  # the same mask at all positions of a row
            return x * (concrete_mask(logit, shape, source=source) / torch.sigmoid(-logit)).to(x.dtype)

        return hook

    modules: list[Any] = [model.network.module.get_submodule(layer.dropout) for layer in layers]
    handles = [
        module.register_forward_hook(hook_of(layer, logit))
        for module, layer, logit in zip(modules, layers, logits_L, strict=True)
    ]
    try:
        for module in modules:
            module.training = False  # only the hook drops
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
