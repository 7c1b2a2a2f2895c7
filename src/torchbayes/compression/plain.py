"""A posterior's network as a plain module at its means, with the variances of its weights, and what of it is noise.

Weights and units are superfluous if these are small and large:

    signal to noise of a weight     |E w| / √Var w
    noise of a unit                 of its multiplier: log Var z/(E z)², or minus the logarithm of its mode

For independent weights log α = −2 log (|E w| / √Var w) is the criterion of sparse variational dropout (Molchanov et
al. 2017), and ½ (E w)² / Var w under Laplace's Var w = (H⁻¹)_ii is the saliency of the optimal brain surgeon (Hassibi
and Stork 1993): the rise of the loss if the weight is set to zero and all others follow. They follow to E(w | pruned
ones = 0) = μ − Σ_P (Σ_PP)⁻¹ μ_P, which `follow` computes for any covariance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchbayes.checks import check_kind, seen
from torchbayes.model.initialisation import copied
from torchbayes.model.model import PREFIX
from torchbayes.model.priors.multiplied import LAYER, Moments, Multiplied, replaced
from torchbayes.posteriors.posterior import Posterior

_LEAST = 0.5  # nats
_MATRIX = 2  # least number of axes of parameters that are pruned, so biases and parameters of norms stay


class Plain(NamedTuple):
    """A network without multipliers, at the means of a posterior."""

    network: nn.Module
    variance: dict[str, Tensor]  # of each random parameter, in its shape; empty for a point
    random: tuple[str, ...]  # names of the random parameters
    learned: dict[str, Tensor]  # learned parameters of the likelihood
    groups: dict[str, Moments]  # layer -> moments of its multipliers, for a network with multipliers

    def signal_to_noise(self) -> dict[str, Tensor]:
        """Return |E w| / √Var w of the weights that may be pruned, by parameter; |w| for a point."""
        sizes = {n: t.detach().abs() for n, t in self.network.named_parameters() if t.ndim >= _MATRIX}
        return {n: size / self.variance[n].sqrt() if n in self.variance else size for n, size in sizes.items()}


def plain_of(posterior: Posterior) -> Plain:
    """Return the network of a posterior at its means, with multipliers multiplied into the weights.

    For independent z and W the weights z W have the mean E z E W and the variance Var z (E W)² + (E z)² Var W + Var z
    Var W. Raises a TypeError unless it is a Gaussian or a point; a ValueError if it has several members, or only some
    elements of a parameter are random.
    """
    check_kind(Posterior, "a posterior", posterior=posterior)
    mean_D, variance_D = _moments(posterior)
    model = posterior.model
    if model.network.mask.indices:
        name_in_part = next(iter(model.network.mask.indices))
        raise ValueError(f"`{name_in_part}` is random in part, and networks are compressed whole. Give `random` globs.")
    model.network.borrowed.check()
    views, learned = model.split(mean_D)
    made = filled(model.network.module, {**views, **_statistics(posterior, views)})
    spread = {} if variance_D is None else model.layout.split(variance_D)
    variance = {name: v.clone() for name, v in spread.items() if not name.startswith(PREFIX)}
    groups: dict[str, Moments] = {}
    multipliers = set[str]()
    for name, layer in [(n, m) for n, m in made.named_modules() if isinstance(m, Multiplied)]:
        multipliers |= {f"{name}.{law}" for law in layer.rule.laws()}
        groups[name] = _multiplied_out(made, name, layer, variance)
    random = tuple(_plainly(name, groups) for name in views if name not in multipliers)
    return Plain(made, variance, random, {n: t.clone() for n, t in learned.items()}, groups)


def _plainly(name: str, groups: Mapping[str, Moments]) -> str:
    """Return the name of a parameter in the network without multipliers."""
    layer, _, parameter = name.rpartition(f".{LAYER}")
    return f"{layer}.{parameter}" if layer in groups else name


def multipliers_removed(module: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return the plain network of the same sizes as one that may have multipliers, which are dropped."""
    made = filled(module, weights)
    for layer in [layer for layer in made.modules() if isinstance(layer, Multiplied)]:
        made = replaced(made, layer, layer.plain(layer.layer.weight.detach()))
    return made


def _statistics(posterior: Posterior, views: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the buffers of the network at the means, because statistics of batch norms depend on the weights."""
    network = posterior.model.network
    buffers = {name: buffer[0] for name, buffer in (posterior.buffers_M or {}).items()} or network.buffers
    if not network.batch_norms or posterior.statistics_known:
        return buffers
    if posterior.calibration is None:
        raise ValueError(
            f"`{network.batch_norms[0]}` is a batch norm whose statistics belong to the weights, and no training data "
            f"are at hand to find those of the means. Load the posterior with `calibration=inputs`."
        )
    return network.recalibrate(views, posterior.calibration(), buffers)


def filled(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a module with other parameters and buffers, in evaluation mode."""
    made = copied(module)
    for name, tensor in tensors.items():
        put(made, name, tensor.detach().clone())
    return made.eval().requires_grad_(True)


def put(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace a parameter or buffer of a module by a tensor of any shape, wherever it is shared."""
    owner, _, attribute = name.rpartition(".")
    old: Tensor = getattr(module.get_submodule(owner), attribute)
    new = nn.Parameter(tensor) if isinstance(old, nn.Parameter) else tensor
    for submodule in module.modules():
        tensors: dict[str, Any] = submodule._parameters if isinstance(old, nn.Parameter) else submodule._buffers
        for key in [key for key, value in tensors.items() if value is old]:
            tensors[key] = new


def _moments(posterior: Posterior) -> tuple[Tensor, Tensor | None]:
    """Return means and variances, (D,), of a Gaussian or a point, of one member; no variances of a point."""
    if posterior.members != 1:
        raise ValueError(
            f"`posterior` must have one member: one network is compressed; got {posterior.members}. Fit with members=1."
        )
    if posterior.centre is posterior:
        return posterior.centre.weights_MD[0], None
    gaussian = getattr(posterior, "gaussian", None)
    if gaussian is None:
        raise TypeError(
            f"`posterior` must be a Gaussian one or a point, whose weights have a mean; got {seen(posterior)}. Fit by "
            f"VI, Laplace, SWAG or MAP."
        )
    return gaussian.mean_MD[0], gaussian.covariance.diagonal()[0]


def _multiplied_out(made: nn.Module, name: str, layer: Multiplied, variance: dict[str, Tensor]) -> Moments:
    """Replace a layer by one without multipliers, and its variances by those of the products; return z's moments."""
    laws = layer.rule.laws()
    mean = {law: getattr(layer, law).detach() for law in laws}
    spread = {law: variance.pop(f"{name}.{law}", torch.zeros_like(mean[law])) for law in laws}
    moments = layer.rule.moments(mean, spread)
    z, v = layer.along(moments.mean), layer.along(moments.variance)
    weight = layer.layer.weight.detach()
    inner = variance.pop(f"{name}.{LAYER}weight", None)
    if inner is not None:
        product = v * weight.square() + z.square() * inner + v * inner
        variance[f"{name}.weight"] = product
    replaced(made, layer, layer.plain(z * weight))
    return moments


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
