"""The last layer of a network, and normal distributions of its weights, independent from output to output.

With its inputs φ (and a 1 for the bias) and q(w_k) = N(w̄_k, S_k) for each output k, the outputs of a row are normal
with the means W̄ φ and the variances φᵀ S_k φ. With u = σ ∘ φ and the standard deviations σ as units,

    diagonal    S = diag(σ²)                              φᵀ S φ = |u|²
    dense       S = R Rᵀ,  R = diag(σ) (I + A)            φᵀ S φ = |(I + A)ᵀ u|²,    A strictly upper triangular
    low_rank    S = diag(σ) (I + Fᵀ F) diag(σ)            φᵀ S φ = |u|² + |F u|²

The parameters log σ, A and F have no units. They are stored as tenths of themselves, so that a step of Adam, which is
as long in every direction, goes ten times as far in them as in a weight. Their gradient has no noise by which that
could do harm, and a run that is long enough for the weights is then long enough for their spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchbayes.curvature.layers import Call, linear_by
from torchbayes.linalg import Blocks, Dense, Diagonal, LowRankPlusDiagonal, Structure
from torchbayes.methods.variational.target import is_normal
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.model.precision import widened
from torchbayes.randomness.seeds import Purpose, generator

Covariance = Literal["dense", "diagonal", "low_rank"]
_UNIT = 10.0
_ADVICE = "Use VI, IVON or Laplace, which take any network"


class Parts(NamedTuple):
    """Covariances of all outputs."""

    log_scale_KI: Tensor  # log σ
    rest: Tensor  # R (K, I, I) of "dense"; F (K, R, I) of "low_rank", with R = 0 of "diagonal"


@dataclass(frozen=True, eq=False)
class LastLayer:
    """A linear layer whose outputs are those of the network, under normal distributions of its weights."""

    name: str  # of the module
    grid_KI: Tensor  # positions of its weights in the flat vector, with its biases as a last column; int64
    prior_mean_KI: Tensor  # of the normal priors, float64
    prior_std_KI: Tensor
    bias: bool  # whether there is that column
    transposed: bool  # whether weights have a column for each output, as `Conv1D` of GPT-2 has
    covariance: Covariance  # of the weights of each output
    rank: int  # R, rows of F

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of log scales and of other parameters."""
        outputs, inputs = self.grid_KI.shape
        beside = {"diagonal": 0, "dense": inputs * (inputs - 1) // 2, "low_rank": self.rank * inputs}
        return outputs * inputs, outputs * beside[self.covariance]

    def start(self, scale: float, noise_MP: Tensor) -> Tensor:
        """Return parameters (M, P) with σ = `scale` for all weights and next to no correlation.

        F is small noise rather than zero, where its slope would vanish.
        """
        num_scales, num_others = self.sizes
        log_scale_MP = torch.full_like(noise_MP[:, :num_scales], math.log(scale) / _UNIT)
        size = 0.1 / math.sqrt(self.rank) / _UNIT if self.covariance == "low_rank" else 0.0
        return torch.cat([log_scale_MP, size * noise_MP[:, num_scales : num_scales + num_others]], dim=1)

    def parts(self, parameters_P: Tensor) -> Parts:
        """Return the covariances that parameters stand for."""
        outputs, inputs = self.grid_KI.shape
        log_scale, beside = (parameters_P * _UNIT).split([*self.sizes])
        log_scale_KI = log_scale.view(outputs, inputs)
        if self.covariance != "dense":
            return Parts(log_scale_KI, beside.view(outputs, -1, inputs))
        rows, columns = torch.triu_indices(inputs, inputs, offset=1, device=beside.device)
        unit_KII = torch.eye(inputs, dtype=beside.dtype, device=beside.device).repeat(outputs, 1, 1)
        unit_KII[:, rows, columns] = beside.view(outputs, -1)
        return Parts(log_scale_KI, log_scale_KI.exp().unsqueeze(-1) * unit_KII)

    def spread(self, parts: Parts, features: Tensor) -> Tensor:
        """Return φᵀ S_k φ, (..., K), of features (..., I)."""
        inputs = F.pad(features, (0, 1), value=1.0) if self.bias else features
        if self.covariance == "dense":
            return torch.einsum("...i,kij->...kj", inputs, parts.rest).square().sum(-1)
        turned = torch.einsum("...i,kri->...kr", inputs, parts.rest * parts.log_scale_KI.exp().unsqueeze(1))
        return inputs.square() @ (2 * parts.log_scale_KI).exp().mT + turned.square().sum(-1)

    def variance(self, parts: Parts) -> Tensor:
        """Return the variance of every weight, (K, I)."""
        if self.covariance == "dense":
            return parts.rest.square().sum(-1)
        return (2 * parts.log_scale_KI).exp() * (1 + parts.rest.square().sum(1))

    def log_prior(self, weights_D: Tensor) -> Tensor:
        """Return log p of the layer's weights at the flat vector, float64 (), in nats."""
        distance_KI = (weights_D[self.grid_KI].double() - self.prior_mean_KI) / self.prior_std_KI
        norm = self.prior_std_KI.log().sum() + 0.5 * math.log(2 * math.pi) * distance_KI.numel()
        return -0.5 * distance_KI.square().sum() - norm

    def entropy(self, parts: Parts) -> Tensor:
        """Return H(q), float64 (), in nats."""
        log_scale_KI = parts.log_scale_KI.double()
        total = log_scale_KI.sum() + 0.5 * math.log(2 * math.pi * math.e) * log_scale_KI.numel()
        if self.covariance != "low_rank":
            return total
        factor_KRI = parts.rest.double()
        inner_KRR = factor_KRI @ factor_KRI.mT + torch.eye(self.rank, dtype=torch.float64, device=factor_KRI.device)
        return total + torch.linalg.cholesky_ex(inner_KRR).L.diagonal(dim1=1, dim2=2).log().sum()

    def structure(self, parameters_MP: Tensor, size: int) -> Structure:
        """Return the covariance of all D (`size`) weights, 0 outside the layer."""
        parts = [self.parts(parameters_P) for parameters_P in parameters_MP]
        others = torch.ones(size, dtype=torch.bool, device=self.grid_KI.device)
        others[self.grid_KI.flatten()] = False
        order_D = torch.cat([others.nonzero()[:, 0], self.grid_KI.flatten()])
        fixed = [Diagonal(parameters_MP.new_zeros(len(parts), int(others.sum())))] if others.any() else []
        factors, blocks = torch.stack([fields.rest for fields in parts]), list[Structure]()
        if self.covariance == "diagonal":
            blocks = [Diagonal(torch.stack([self.variance(fields).flatten() for fields in parts]))]
        elif self.covariance == "dense":
            blocks = [Dense(root_MII.clone()) for root_MII in factors.unbind(1)]
        else:
            scale_MKI = torch.stack([fields.log_scale_KI.exp() for fields in parts])
            by_output = zip(scale_MKI.square().unbind(1), (factors * scale_MKI.unsqueeze(2)).unbind(1), strict=True)
            blocks = [LowRankPlusDiagonal(variance_MI.clone(), factor.clone()) for variance_MI, factor in by_output]
        return Blocks(order_D, (*fixed, *blocks))


def last_layer(model: Model, covariance: Covariance, *, rank: int) -> LastLayer:
    """Return the last layer of a network: the last linear one, in the order in which the network holds its modules.

    It may be of any class that turns out to compute x Wᵀ + b or x W + b. Whether the network returns what that layer
    gives is checked when rows go through it (`outputs_of`). Raises ValueError if there is no such layer with random
    weights of its own, or their prior is not normal.
    """
    network, names = model.network, {*model.network.layout.names}
    name, module, axis = _last_linear(network.module)
    prefix = f"{name}." if name else ""
    parameters = [n for n, p in module._parameters.items() if p is not None]
    if module._forward_hooks or module._forward_pre_hooks:
        raise ValueError(f"the last layer `{name}` has hooks, which may change what it computes. {_ADVICE}.")
    weight = module.weight
    uses = sum(p is weight for m in network.module.modules() for p in m._parameters.values())
    if f"{prefix}weight" not in names or uses != 1 or any(prefix + n in network.mask.indices for n in parameters):
        raise ValueError(
            f"the weights of the last layer `{name}` must all be random, and used by no other layer. {_ADVICE}, or let "
            f"`random` of the model cover the layer."
        )
    positions = model.layout.split(torch.arange(model.layout.size, device=network.device))
    bias = [positions[f"{prefix}bias"].unsqueeze(1)] if f"{prefix}bias" in names else []
    weight_KI = positions[f"{prefix}weight"].T if axis == "columns" else positions[f"{prefix}weight"]
    grid_KI = torch.cat([weight_KI, *bias], dim=1)
    _check_prior(model, grid_KI)
    means_KI, stds_KI = (moment.to(grid_KI.device)[grid_KI] for moment in (model.prior.locs(), model.prior.stds()))
    return LastLayer(name, grid_KI, means_KI, stds_KI, bool(bias), axis == "columns", covariance, rank)


def _last_linear(network: nn.Module) -> tuple[str, nn.Module, str]:
    """Return name, module and axis of the outputs ("rows" or "columns" of its weights) of the last linear layer.

    Raises ValueError if there is none, or if an nn.Linear after it computes something else.
    """
    for name, module in reversed([*network.named_modules()]):
        axis = _axis(module)
        if axis:
            return name, module, axis
        if isinstance(module, nn.Linear):
            has_weight = module._parameters.get("weight") is not None
            reason = "computes something else" if has_weight else "computes its weights from others"
            raise ValueError(f"the last layer must give x Wᵀ + b, by weights of its own; `{name}` {reason}. {_ADVICE}.")
    raise ValueError(
        f"the network has no linear layer, so that none can be its last. {_ADVICE}, or end it in an nn.Linear."
    )


def _axis(module: nn.Module) -> str | None:
    """Return which axis of a module's weights is that of its outputs, "rows" or "columns", found by random inputs.

    None if the module is not linear.
    """
    parameters = {n: p for n, p in module._parameters.items() if p is not None}
    if "weight" not in parameters or not {"weight", "bias"} >= parameters.keys() or parameters["weight"].ndim != 2:
        return None
    if type(module).forward is nn.Linear.forward:
        return "rows"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) or module._forward_hooks or module._forward_pre_hooks:
        return None
    weight = parameters["weight"]
    source = generator(Purpose.LAST_LAYER, device=weight.device)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source, device=weight.device).to(weight.dtype)

    values = {name: drawn(*parameter.shape) for name, parameter in parameters.items()}
    axes = (linear_by(module, Call(drawn(2, size), None, values)) for size in (weight.shape[1], weight.shape[0]))
    return next((axis for axis in axes if axis is not None), None)


def _check_prior(model: Model, grid_KI: Tensor) -> None:
    """Raise ValueError unless the prior of the weights is normal."""
    inside = torch.zeros(model.layout.size, dtype=torch.bool)
    inside[grid_KI.flatten().cpu()] = True
    for segment in model.prior.segments:
        if inside[segment.where].any() and not is_normal(segment):
            raise ValueError(
                f"the weights of the last layer must have a normal prior, by which their divergence is known; got "
                f"{segment.prior!r}. Use priors.Normal() for them, or VI, which takes any prior."
            )


class Outputs(NamedTuple):
    """Normal outputs of a network."""

    mean: Tensor  # (B, ..., K)
    features: Tensor  # inputs of the last layer, in the dtype of the weights


def outputs_of(
    model: Model, layer: LastLayer, views: Mapping[str, Tensor], *, inputs: Any, buffers: Buffers, check: bool = True
) -> Outputs:
    """Return the outputs at the means of the weights, and the features that they are linear in.

    `views` are the random weights by name. Buffers are changed in place in training mode. Raises ValueError if the
    layer is not called exactly once, or if `check` is set and the network returns something else than the layer gives.
    """
    module = model.network.module.get_submodule(layer.name)
    model.network.ask(views, inputs, buffers)  # before the calls are watched, because it may run the network
    with _watched(module) as calls:
        mean = model.network(views, inputs, buffers)
    prefix = f"{layer.name}." if layer.name else ""
    bias = views.get(f"{prefix}bias", getattr(module, "bias", None))
    if len(calls) == 1:
        features = widened(calls[0]).to(views[f"{prefix}weight"].dtype)
        if not check:
            return Outputs(mean, features)
        weight = views[f"{prefix}weight"].mT if layer.transposed else views[f"{prefix}weight"]
        made = F.linear(features, weight, None if bias is None else bias.to(features.dtype))
        low = model.network.precision.autocast or calls[0].dtype
        rounding = 1e3 * torch.finfo(low).eps  # the network may compute in low precision
        if made.numel() == mean.numel() and _same(model, made.detach().view_as(mean), mean.detach(), rounding=rounding):
            return Outputs(mean, features)
    raise ValueError(
        f"the network must return what its last linear layer `{layer.name}` gives at its only call; it returns "
        f"something else, or uses the layer {len(calls)} times. Let it return the outputs of that layer, logits in the "
        f"place of probabilities, with classes that are masked at −∞, and define it last. Or use VI, IVON or Laplace, "
        f"which take any network."
    )


def _same(model: Model, made: Tensor, outputs: Tensor, *, rounding: float) -> bool:
    """Return whether outputs are those of the layer, except for masked classes, whose probability underflows."""
    same = (made - outputs).abs() <= rounding * made.abs().max()
    if isinstance(unweighted(model.likelihood), Categorical):
        same = same | (outputs - outputs.amax(-1, keepdim=True) < math.log(torch.finfo(made.dtype).tiny))
    return bool(same.all())


@contextmanager
def _watched(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list that receives the first input of a module at each call inside the `with`."""
    inputs: list[Tensor] = []

    def hook(module: nn.Module, given: Any, named: Any, made: Any) -> None:
        inputs.append(next(iter((*given, *named.values()))))

    handle = layer.register_forward_hook(hook, with_kwargs=True)
    try:
        yield inputs
    finally:
        handle.remove()
