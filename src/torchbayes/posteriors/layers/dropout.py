"""Dropout as a posterior: a draw is a network with one mask for each of its dropout layers (Gal and Ghahramani 2016).

    q(W_l) = M_l diag(z_l),    z_lj ~ Bernoulli(k_l),    k_l = 1 − p_l

for weights M_l that act on units behind a dropout of rate p_l. PyTorch's inverted dropout stores W_l = k_l M_l and
divides by k_l. The average prediction over S such networks has mean (1/S) Σ f_s and, for Gaussian noise of
precision τ, covariance I/τ + (1/S) Σ f_s f_sᵀ − mean meanᵀ.

In a plain stack of layers masks are part of the weights. Where dropout acts on the inputs of a linear layer, or
nn.Dropout2d on those of a convolution, the drawn network has W diag(z/k) in the place of W; where it acts on the
outputs, diag(z/k) (W, b). Positions of a sequence in such a layer share the mask, since they share the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd  # no public base class covers every dropout

from torchbayes.checks import as_seed, check_memory
from torchbayes.model.dropout import Mask, check_dropout, dropouts, kept, rates
from torchbayes.model.model import Model
from torchbayes.model.network import Network
from torchbayes.posteriors.functions import check_weights, in_turn
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Beside, ByFields, readable
from torchbayes.posteriors.trained import Trained
from torchbayes.randomness.seeds import Purpose, mix


@readable
@dataclass(frozen=True, repr=False)
class DropoutPosterior(ByFields):
    """q = (1/M) Σ_m of the networks with weights w_m whose units are dropped at random.

    A drawn function has one mask for each call of dropout, the same for all rows of all batches; it depends on
    (seed, s) and the position in a row. In a plain stack of linear layers, and with nn.Dropout2d beside
    convolutions, masks are put into the weights, and prediction costs as much as for plain networks. Dropout in
    parts of the network without random weights is off, as in training.

    Attributes:
        weights_MD: the members' weights, with all units.
        rates_ML: probabilities of being dropped in each dropout layer, in the order of the network, float64; the
            layers' own if None.
    """

    weights_MD: Tensor
    rates_ML: Tensor | None = None

    kind = "dropout"

    def __post_init__(self) -> None:
        check_weights(self.model, "M", weights_MD=self.weights_MD)
        rates_L = torch.tensor(rates(self.model.network), dtype=torch.float64)
        if self.rates_ML is None:
            object.__setattr__(self, "rates_ML", rates_L.expand(self.members, -1).clone())
        elif self.rates_ML.shape != (self.members, len(rates_L)) or not _are_shares(self.rates_ML):
            raise ValueError(
                f"`rates_ML` must hold the rates, from 0 to 1, of the {len(rates_L)} dropout layers of the network for "
                f"each of {self.members} members; got shape {tuple(self.rates_ML.shape)}. Build the network that they "
                f"were found for."
            )

    @classmethod
    def of(cls, model: Model, networks: Trained | Sequence[Trained]) -> DropoutPosterior:
        """Return the dropout posterior of networks that were trained with dropout elsewhere. Nothing is trained.

        Args:
            model: the model of these networks; what is not random must be equal in all of them.
            networks: as for `Point.of`: a module, a state dict or the path of a checkpoint; or a list of these, one
                per member.

        Raises:
            ValueError: as `Point.of` does, or if the network has no dropout.
        """
        point = Point.of(model, networks)
        check_dropout(model.network)
        return cls(model, point.weights_MD, buffers_M=point.buffers_M, statistics_known=True)

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return weights (S, D), zero for dropped units; the members' weights where masks are not part of them."""
        draws, seed = self.check_draws(draws), as_seed(seed)
        check_memory(draws * self.weights_MD[0].nbytes, "the drawn weights", self.weights_MD.device, draws=draws)
        masked_SD = folded(self.model.network, self.weights_MD, self._masks(draws, seed))
        return in_turn(self.weights_MD, draws) if masked_SD is None else masked_SD

    def beside(self, draws: int, *, seed: int) -> Beside | None:
        """Return the masks of draws; None where they are in the weights."""
        return None if folds(self.model.network) is not None else Beside(masks_S=self._masks(draws, seed))

    def _masks(self, draws: int, seed: int) -> tuple[Mask, ...]:
        """Return the masks of draws, which depend on (seed, s) alone."""
        assert self.rates_ML is not None, "set when it was made"
        names = dropouts(self.model.network)
        of_M = [dict(zip(names, rates_L, strict=True)) for rates_L in self.rates_ML.tolist()]
        return tuple(Mask(mix(Purpose.MASKED_DRAW, seed, s), of_M[s % self.members]) for s in range(draws))


def _are_shares(values: Tensor) -> bool:
    return bool(((values >= 0) & (values <= 1)).all())


class Fold(NamedTuple):
    """A dropout layer whose mask is part of the weights."""

    dropout: str  # name of the layer
    weight: str  # name of the weight that it scales
    bias: str | None  # name of the bias that it scales too, if it acts on the outputs of the layer
    inputs: bool  # whether it acts on the inputs of the layer
    shape: tuple[int, ...]  # of the mask: units, or channels


def folds(network: Network) -> list[Fold] | None:
    """Return how the masks of all dropout layers become part of the weights; None if they cannot.

    They can in an nn.Sequential if each nn.Dropout stands right before or behind a linear layer, and each
    nn.Dropout2d a convolution, whose parameters are all random and used nowhere else.
    """
    named = list(_leaves(network.module, ""))
    if any(layer is None for _, layer in named) or len({id(p) for _, p in named}) < len(named):
        return None
    layers = [(n, p) for n, p in named if p is not None and not isinstance(p, nn.Identity)]
    active, result = set(dropouts(network)), list[Fold]()
    with network.training():
        training = {n for n, p in layers if p.training}
    for index, (name, layer) in enumerate(layers):
        if isinstance(layer, _DropoutNd) and name in training and layer.p > 0:
            fold = _fold(network, layers, index)
            if fold is None:
                return None
            result.append(fold)
    return result if {f.dropout for f in result} == active and not _random_elsewhere(network, active) else None


def _random_elsewhere(network: Network, known: set[str]) -> bool:
    """Return whether another module may draw random numbers; any that torch.nn does not define may."""
    random_kinds = nn.RNNBase | nn.MultiheadAttention | nn.RReLU
    return any(
        not type(m).__module__.startswith("torch.nn.modules") or isinstance(m, random_kinds)
        for n, m in network.module.named_modules()
        if n not in known
    )


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module | None]]:
    """Yield the modules of nested nn.Sequential modules with names, in running order; None for one with hooks."""
    if any(getattr(module, table, None) for table in ("_forward_hooks", "_forward_pre_hooks")):
        yield name, None
    elif type(module) is nn.Sequential:
        for child, inner in module.named_children():
            yield from _leaves(inner, f"{name}.{child}".lstrip("."))
    else:
        yield name, module


def _fold(network: Network, parts: Sequence[tuple[str, nn.Module]], at: int) -> Fold | None:
    """Return how the mask of a dropout layer becomes part of the weights beside it; None if it cannot."""
    name, dropout = parts[at]
    kinds: dict[type, type] = {nn.Dropout: nn.Linear, nn.Dropout2d: nn.Conv2d}
    if type(dropout) not in kinds:
        return None
    kind, ones = kinds[type(dropout)], (1, 1) if type(dropout) is nn.Dropout2d else ()
    before: Any = parts[at - 1] if at else ("", None)
    after: Any = parts[at + 1] if at + 1 < len(parts) else ("", None)
    if type(before[1]) is kind and _own(network, *before):
        bias = f"{before[0]}.bias" if before[1].bias is not None else None
        return Fold(name, f"{before[0]}.weight", bias, False, (len(before[1].weight), *ones))
    if type(after[1]) is kind and getattr(after[1], "groups", 1) == 1 and _own(network, *after):
        return Fold(name, f"{after[0]}.weight", None, True, (after[1].weight.shape[1], *ones))
    return None


def _own(network: Network, name: str, layer: nn.Module) -> bool:
    """Return whether the parameters of a layer are its own and wholly random."""
    every = [id(p) for m in network.module.modules() for p in m._parameters.values() if p is not None]
    parameters = [(f"{name}.{n}", p) for n, p in layer.named_parameters(recurse=False)]
    return not hasattr(layer, "parametrizations") and all(
        every.count(id(p)) == 1 and network.layout.shapes.get(n) == tuple(p.shape) for n, p in parameters
    )


def folded(network: Network, weights_MD: Tensor, masks_S: Sequence[Mask]) -> Tensor | None:
    """Return weights (S, D) with the masks of draws in them; None where masks are not part of the weights.

    The network in evaluation mode with these weights is the drawn function. Draw s is of member s mod M. Columns
    behind the network's weights are copied.
    """
    folded_layers = folds(network)
    if folded_layers is None:
        return None
    weights_SD = weights_MD.new_empty(len(masks_S), weights_MD.shape[1])
    size, slices = network.layout.size, network.layout.slices
    drawn, members = network.layout.split(weights_SD[:, :size]), network.layout.split(weights_MD[:, :size])
    changed = {f.weight for f in folded_layers} | {f.bias for f in folded_layers if f.bias is not None}
    kept_columns = [*(where for name, where in slices.items() if name not in changed), slice(size, None)]
    for s, mask in enumerate(masks_S):
        m = s % len(weights_MD)
        for where in kept_columns:
            weights_SD[s, where] = weights_MD[m, where]
        now = {name: members[name][m] for name in changed}
        for call, fold in enumerate(folded_layers):
            layer: Any = network.module.get_submodule(fold.dropout)
            keep = 1 - mask.rates.get(fold.dropout, layer.p)
            scale = kept(mask.seed, call, fold.shape, keep=keep).flatten().to(weights_MD) / (keep or 1.0)
            trailing = [1] * (now[fold.weight].ndim - (2 if fold.inputs else 1))
            now[fold.weight] = torch.mul(now[fold.weight], scale.view(-1, *trailing), out=drawn[fold.weight][s])
            if fold.bias is not None:
                now[fold.bias] = torch.mul(now[fold.bias], scale, out=drawn[fold.bias][s])
    return weights_SD
