"""Layers whose units share multipliers, so that whole units can prove superfluous (Louizos et al. 2017).

    dense layer    y = W (z ∘ x) + b           one multiplier z_i for each input
    convolution    y_o = z_o (W_o * x) + b_o   one for each filter

The multipliers are weights of the network, and W ~ N(0, 1) are the layer's weights without them: the weights z W of a
group have the standard deviation |z|. Layers keep W as their own weight, so that `VI` gives their outputs separate
noise for each row ("local", "flipout"), and only the few multipliers are drawn.

    GroupNormalJeffreys    p(z) ∝ 1/|z|
    GroupHorseshoe         z = s λ,    λ ~ C⁺(0, 1) for each group,    s ~ C⁺(0, scale) for each layer

A half-Cauchy number is the ratio of two independent half-normal numbers, |n|/|d|. Their logarithms are the parameters:
with a normal q of these, z is log-normal, and the divergence has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeGuard

import numpy as np
import torch
from torch import Generator, Tensor, nn

from torchbayes.checks import seen
from torchbayes.model.initialisation import copied
from torchbayes.model.layout import matches
from torchbayes.model.origin import Given, made_by
from torchbayes.model.priors.noise import LogInverseChi
from torchbayes.model.priors.scales import Scaled, changed
from torchbayes.model.priors.sparse import LogUniform
from torchbayes.model.priors.univariate import Normal, Prior, PriorLike, SampledPrior, normals
from torchbayes.native.process import undisturbed
from torchbayes.settings import Checked

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYER = "layer."


class Moments(NamedTuple):
    """What a posterior says of multipliers."""

    mean: Tensor  # E z
    variance: Tensor  # Var z
    noise: Tensor  # the larger, the more superfluous a group
    # below its lower end no group of the layer is superfluous, above its upper end every group
    window: tuple[float, float]


class GroupPrior(Protocol):
    """A prior of groups of weights that share multipliers."""

    def laws(self) -> dict[str, Prior]:
        """Return the prior of each parameter of the multipliers, by its name in the layer."""
        ...

    def start(self, groups: int) -> dict[str, Tensor]:
        """Return parameters for which all multipliers are 1."""
        ...

    def multipliers(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return z, one for each group."""
        ...

    def moments(self, mean: Mapping[str, Tensor], variance: Mapping[str, Tensor]) -> Moments:
        """Return the moments of z where the parameters are independent and normal."""
        ...


@dataclass(frozen=True)
class GroupNormalJeffreys(GroupPrior):
    """w = z W with p(z) ∝ 1/|z| and W ~ N(0, 1), for the weights of each unit: the group normal-Jeffreys prior.

    It prefers no size of weights, and under q(z) = N(μ, αμ²) its divergence depends on α alone: a unit whose α is large
    carries next to no information. Like `LogUniform` it is improper, and for `VI` alone. `with_multipliers` puts it on
    a network. Source: Louizos, Ullrich and Welling (2017), but with the exact divergence instead of their fit to it.
    """

    def laws(self) -> dict[str, Prior]:
        return {"multiplier": LogUniform()}

    def start(self, groups: int) -> dict[str, Tensor]:
        return {"multiplier": torch.ones(groups)}

    def multipliers(self, parameters: Mapping[str, Tensor]) -> Tensor:
        return parameters["multiplier"]

    def moments(self, mean: Mapping[str, Tensor], variance: Mapping[str, Tensor]) -> Moments:
        """Return the moments of z; its noise is log α = log Var z/(E z)², superfluous between −2 and 3."""
        m, v = mean["multiplier"], variance["multiplier"]
        return Moments(m, v, v.log() - m.square().clamp_min(torch.finfo(m.dtype).tiny).log(), window=(-2.0, 3.0))


@dataclass(frozen=True)
class GroupHorseshoe(Checked, GroupPrior):
    """w = s λ W with λ ~ C⁺(0, 1) for each unit, s ~ C⁺(0, scale) for each layer, W ~ N(0, 1): the group horseshoe.

    It is proper, so that samplers take it too. `with_multipliers` puts it on a network. Source: Louizos, Ullrich and
    Welling (2017).

    Attributes:
        scale: median of s, in units of the weights; the smaller, the fewer units are away from zero.
    """

    scale: float = 1e-5

    def laws(self) -> dict[str, Prior]:
        """Return the priors of the logarithms: of |n| and 1/|d| of each λ, and of s."""
        inverse = LogInverseChi(1.0, 1.0)
        return {
            "log_numerators": LogHalfNormal(1.0),
            "log_inverses": inverse,
            "layer_log_numerator": LogHalfNormal(self.scale),
            "layer_log_inverse": inverse,
        }

    def start(self, groups: int) -> dict[str, Tensor]:
        """Return zero for the groups' logarithms, and for the layer the most probable numerator with its inverse."""
        log_scale = torch.full((1,), math.log(self.scale))
        return {
            "log_numerators": torch.zeros(groups),
            "log_inverses": torch.zeros(groups),
            "layer_log_numerator": log_scale,
            "layer_log_inverse": -log_scale,
        }

    def multipliers(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return z = s λ."""
        return sum(parameters[name] for name in self.laws()).exp()  # type: ignore[union-attr]

    def moments(self, mean: Mapping[str, Tensor], variance: Mapping[str, Tensor]) -> Moments:
        """Return the moments of the log-normal z, where m and v are sums of means and variances of its logarithms.

        E z = e^{m + v/2}, Var z = (e^v − 1) e^{2m + v}; the noise is v − m, minus the logarithm of the mode of z. A
        group becomes superfluous when its mode is between e^{−1.5} and e⁻⁴ of the layer's largest.
        """
        m, v = (torch.stack(torch.broadcast_tensors(*(of[name] for name in self.laws()))).sum(0)
                for of in (mean, variance))  # fmt: skip
        least = float((v - m).min())
        window = least + 1.5, least + 4.0
        return Moments((m + 0.5 * v).exp(), torch.expm1(v) * (2 * m + v).exp(), v - m, window)


@dataclass(frozen=True)
class LogHalfNormal(Checked, SampledPrior):
    """w = log |n| with n ~ N(0, scale²): log p(w) = ½ log(2/π) + u − ½ e^{2u} with u = w − log scale.

    Attributes:
        scale: standard deviation of n; the mode is at w = log scale.
    """

    scale: float = 1.0

    @property
    def std(self) -> float:
        """Standard deviation of w, π/√8."""
        return math.pi / math.sqrt(8)

    @property
    def loc(self) -> float:
        """Mean of w, log scale − ½ (γ + log 2)."""
        return math.log(self.scale) - 0.5 * (np.euler_gamma + math.log(2))

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return ½ log(2/π) + u − ½ e^{2u}, elementwise."""
        u = weights - math.log(self.scale)
        return 0.5 * math.log(2 / math.pi) + u - 0.5 * torch.exp(2 * u)

    def add_gradient_(self, gradient: Tensor, weights: Tensor, scale: float) -> None:
        """Add scale · d log p / dw = scale (1 − e^{2u}) to `gradient` in place."""
        gradient.add_(1 - torch.exp(2 * (weights - math.log(self.scale))), alpha=scale)

    def expected_(self, mean: Tensor, variance: Tensor, *, scale: float, into: Sequence[Tensor]) -> Tensor:
        """Return Σ u − ½ e^{2u + 2v} + constants, and add to its derivatives: see `expected.py`."""
        u = mean - math.log(self.scale)
        swollen = torch.exp(2 * (u + variance))
        into[0].sub_(swollen - 1, alpha=scale)
        into[1].sub_(swollen, alpha=scale)
        return (u - 0.5 * swollen + 0.5 * math.log(2 / math.pi)).sum(-1, dtype=torch.float64)

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        return math.log(self.scale) + normals(shape, generator).abs().log()


class Multiplied(nn.Module):
    """A linear or convolutional layer whose inputs (dense) or filters (convolution) have multipliers.

    `rule` is the prior of the multipliers, which are parameters of this module. `bias` is the layer's own, held here
    because it is added after the multipliers.
    """

    bias: nn.Parameter | None
    rule: GroupPrior

    def __init__(self, layer: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d, rule: GroupPrior) -> None:
        """Take over a layer and its parameters."""
        super().__init__()
        self.layer, self.rule = layer, rule
        self.register_parameter("bias", layer._parameters["bias"])
        layer.register_parameter("bias", None)
        for name, value in rule.start(self.groups).items():  # named as in `rule.laws`
            self.register_parameter(name, nn.Parameter(value.to(layer.weight)))

    @property
    def dense(self) -> bool:
        """Whether the layer is linear, with multipliers of its inputs."""
        return isinstance(self.layer, nn.Linear)

    @property
    def groups(self) -> int:
        """How many multipliers there are."""
        return self.layer.weight.shape[1 if self.dense else 0]

    @property
    def weight(self) -> Tensor:
        """The weights with their multipliers, for code that takes the layer's weights and computes with them itself."""
        return self.along(self._multipliers()) * self.layer.weight

    def _multipliers(self) -> Tensor:
        return self.rule.multipliers({name: getattr(self, name) for name in self.rule.laws()})

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the multipliers to 1, and draw weight and bias with the layer's own initialiser."""
        for name, value in self.rule.start(self.groups).items():
            getattr(self, name).copy_(value)
        if self.bias is not None:
            self.layer.register_parameter("bias", self.bias)
            self.layer.reset_parameters()
            self.layer.register_parameter("bias", None)

    def along(self, multipliers: Tensor) -> Tensor:
        """Return multipliers in a shape in which they multiply the layer's weights."""
        shape = [1] * self.layer.weight.ndim
        shape[1 if self.dense else 0] = -1
        return multipliers.view(shape)

    def plain(self, weight: Tensor) -> nn.Module:
        """Return the layer without multipliers, with another weight."""
        made = copied(self.layer)
        made.weight = nn.Parameter(weight.clone())
        if self.bias is not None:
            made.bias = nn.Parameter(self.bias.detach().clone())
        return made

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs."""
        z, places = self._multipliers(), [1] * (self.layer.weight.ndim - 2)
        outputs = self.layer(inputs * z) if self.dense else self.layer(inputs) * z.view(-1, *places)
        return outputs if self.bias is None else outputs + self.bias.view(-1, *places)


@undisturbed
def with_multipliers(network: Given, rules: GroupPrior | Mapping[str, PriorLike | GroupPrior]) -> Scaled:
    """Return a network whose units have multipliers, and its prior: the arguments of `Model` around the likelihood.

        made = priors.with_multipliers(net, priors.GroupHorseshoe())
        model = tb.Model(made.network, likelihood, made.prior)
        posterior = tb.fit(model, data, tb.VI())
        small = tb.compression.compress(posterior, data)

    A layer named NAME becomes a `Multiplied` one: its weight is `NAME.layer.weight`, with the prior N(0, 1), and its
    multipliers are `NAME.multiplier`, or the four logarithms of a `GroupHorseshoe`. At the start they are 1, so that
    the network computes the same as before. A layer with several names has one set of multipliers.

    Args:
        network: the network, which is copied, or a function that makes one.
        rules: one group prior for all linear and convolutional layers, with Normal() for other weights; or glob ->
            prior, where a group prior is for the `weight` of such a layer.

    Raises:
        ValueError: if no weight of such a layer has a group prior, a glob with one names anything else, or the layer's
            weight is shared with another module.
        TypeError: if the network is none.
    """
    table = dict(rules) if isinstance(rules, Mapping) else {"*": rules}
    module = made_by(network)
    chosen = _chosen(module, table, whole=not isinstance(rules, Mapping))
    prior: dict[str, PriorLike] = {}
    for name, rule in chosen.items():
        prior |= {f"{name}.{own}": law for own, law in rule.laws().items()}
        prior[f"{name}.{LAYER}weight"] = Normal()
    for glob, law in rules.items() if isinstance(rules, Mapping) else [("*", Normal())]:
        if not _is_group(law):
            prior[glob] = law  # type: ignore[assignment]
    return Scaled(changed(network, module, partial(_multiplied, chosen)), prior)


def _is_group(law: object) -> TypeGuard[GroupPrior]:
    return isinstance(law, GroupNormalJeffreys | GroupHorseshoe)


def _chosen(made: nn.Module, table: Mapping[str, object], *, whole: bool) -> dict[str, GroupPrior]:
    """Return the layers that get multipliers, by name, with their prior; errors as of `with_multipliers`."""
    rules: dict[str, GroupPrior] = {}
    owners = [id(p) for m in made.modules() for p in m.parameters(recurse=False)]
    modules = dict(made.named_modules())
    for name, parameter in made.named_parameters():
        law = table.get(next((glob for glob in table if matches(name, glob)), ""))
        if not _is_group(law):
            continue
        owner, _, kind = name.rpartition(".")
        if kind != "weight" or not isinstance(modules[owner], _LAYERS):
            if whole:
                continue
            raise ValueError(
                f"`rules` give `{name}` a group prior, which is for the `weight` of linear and convolutional layers. "
                f"Give other parameters another prior, in a glob before it."
            )
        if not owner or owners.count(id(parameter)) > 1:
            raise ValueError(
                f"`{name}` {'is shared by several modules' if owner else 'belongs to the network itself'}, so that it "
                f"gets no multipliers. {'Give it another prior.' if owner else 'Put the layer into an nn.Sequential.'}"
            )
        rules[owner] = law
    if not rules:
        raise ValueError(
            f"`rules` must give the weight of a linear or convolutional layer a group prior; got {seen(table)}. Write, "
            f"say, priors.GroupHorseshoe(), or {{'*.weight': priors.GroupHorseshoe(), '*': priors.Normal()}}."
        )
    return rules


def replaced(network: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Return a network, changed in place, with the module `new` under all names of `old`."""
    for parent in list(network.modules()):
        for name in [name for name, child in parent._modules.items() if child is old] if parent is not new else ():
            setattr(parent, name, new)
    return new if network is old else network


def _multiplied(chosen: Mapping[str, GroupPrior], network: nn.Module) -> nn.Module:
    """Return a copy of a network whose layers are replaced."""
    made = copied(network)
    for layer, rule in [(made.get_submodule(name), rule) for name, rule in chosen.items()]:
        assert isinstance(layer, _LAYERS)
        made = replaced(made, layer, Multiplied(layer, rule))
    return made
