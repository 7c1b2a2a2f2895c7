"""Scales of groups of weights as weights of the network, so that every sampler draws them with the others.

    w_g = e^{η_g} x_g,    x_g ~ N(0, I),    p(η) the density of log √v under the law of v

is the non-centred parametrisation: x and η are independent under the prior, and no Jacobian remains. If v is IG(a, b),
log p(η) = log IG(e^{2η}; a, b) + log 2 + 2η, which is `LogInverseChi`; if √v ~ C⁺(0, A) it is `LogHalfCauchy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchbayes.checks import check_kind, seen
from torchbayes.model.initialisation import copied
from torchbayes.model.layout import matches
from torchbayes.model.origin import Given, made_by
from torchbayes.model.priors.axes import axes_of
from torchbayes.model.priors.groups import Hierarchical
from torchbayes.model.priors.univariate import Normal, PriorLike, PriorRules

NETWORK = "network."


class Scaled(NamedTuple):
    """A network whose scales are inferred, and its prior: the arguments of `Model` around the likelihood.

    Attributes:
        network: a `ScaledNetwork`, or a function that makes one.
        prior: the rules, by the names of its parameters.
    """

    network: Given
    prior: dict[str, PriorLike]


class ScaledNetwork(nn.Module):
    """A network some of whose weights are w = e^η x, with a log scale η for each group of them.

    `standard` holds x and `log_scales` holds η, by the names of the scaled parameters with `_` in the place of dots.
    These parameters of `network`, named in `derived`, are computed at every call.
    """

    def __init__(self, rules: Mapping[str, Hierarchical], network: nn.Module) -> None:
        """Copy the network, and start at its weights; `rules` are the priors of the scaled parameters by name."""
        super().__init__()
        self.network, self._rules = copied(network), dict(rules)
        named, self._grids = dict(self.network.named_parameters()), _grids(self.network, rules)
        self.standard, self.log_scales = nn.ParameterDict(), nn.ParameterDict()
        for name in rules:
            weight = named[name].detach()
            blocks, _, groups, _ = self._grids[name]
            self.standard[_key(name)] = nn.Parameter(weight.clone())
            self.log_scales[_key(name)] = nn.Parameter(weight.new_zeros(blocks * groups))
            named[name].requires_grad_(False)
        self.derived = tuple(NETWORK + name for name in rules)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the scales to those of the prior, and x to the network's weights divided by them."""
        for name, rule in self._rules.items():
            self.standard[_key(name)].copy_(self.network.get_parameter(name) / rule.scale)
            self.log_scales[_key(name)].fill_(math.log(rule.scale))

    def scaled(self) -> dict[str, Tensor]:
        """Return the weights w = e^η x by name."""
        weights = {}
        for name, grid in self._grids.items():
            standard, log_scales = self.standard[_key(name)], self.log_scales[_key(name)]
            factors = log_scales.exp().view(grid[0], 1, grid[2], 1)
            weights[name] = (standard.reshape(grid) * factors).view(standard.shape)
        return weights

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of the network under the scaled weights."""
        return functional_call(self.network, self.scaled(), args, kwargs)


def with_scales(network: Given, rules: PriorRules) -> Scaled:
    """Return a network and its prior, in which the scales of `Hierarchical` priors are weights to be inferred.

        scaled = priors.with_scales(net, {"0.weight": priors.Hierarchical(groups="columns"), "*": priors.Normal()})
        model = tb.Model(scaled.network, likelihood, scaled.prior)

    The parameters of the network are named `network.NAME`, those with a scale `standard.NAME` and `log_scales.NAME`,
    with `_` for the dots in NAME. Outputs and weights have the same distribution as under the prior with the scales
    integrated out. But samplers move through it differently, half-Cauchy scales of groups are possible, and the scales
    can be read: `model.layout.split(draws)["log_scales.0_weight"].exp()`.

    Args:
        network: the network, or a function that makes one.
        rules: one prior for all weights, or glob -> prior; some are `Hierarchical`.

    Raises:
        ValueError: if no parameter has a `Hierarchical` prior.
        TypeError: if the network is none.
    """
    table = dict(rules) if isinstance(rules, Mapping) else {"*": rules}
    module = made_by(network)
    first = {
        name: next((glob for glob in table if matches(name, glob)), "")
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    scaled_rules = {name: rule for name, glob in first.items() if isinstance(rule := table.get(glob), Hierarchical)}
    if not scaled_rules:
        raise ValueError(
            f"`rules` must give a parameter of the network a Hierarchical prior; got {seen(rules)}. Write, say, "
            f"{{'0.weight': Hierarchical(groups='columns'), '*': Normal()}}."
        )
    prior: dict[str, PriorLike] = {}
    for name, rule in scaled_rules.items():
        prior["standard." + _key(name)], prior["log_scales." + _key(name)] = Normal(), rule.log_scales()
    other_globs = {glob for name, glob in first.items() if name not in scaled_rules}
    unused = table.keys() - set(first.values())
    prior |= {NETWORK + glob: table[glob] for glob in table if glob in other_globs | unused}
    return Scaled(changed(network, module, partial(ScaledNetwork, scaled_rules)), prior)


def changed(network: Given, module: nn.Module, change: Callable[[nn.Module], nn.Module]) -> Given:
    """Return a changed `module`, or, if it comes from a function `network`, a function that changes what that makes."""
    return change(module) if isinstance(network, nn.Module) else partial(_changed, network, change)


def _grids(network: nn.Module, rules: Mapping[str, Hierarchical]) -> dict[str, tuple[int, int, int, int]]:
    """Return how parameters are cut up; ValueError if units or inputs of one are not known."""
    axes = axes_of(network, rules)
    try:
        return {name: rule.grid(axes[name]) for name, rule in rules.items()}
    except ValueError as error:
        raise ValueError(f"the `rules`: {error}") from None


def _changed(network: Callable[[], nn.Module], change: Callable[[nn.Module], nn.Module]) -> nn.Module:
    module = network()
    check_kind(nn.Module, "an nn.Module", network=module)
    return change(module)


def _key(name: str) -> str:
    return name.replace(".", "_")
