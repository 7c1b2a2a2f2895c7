r"""Dropout masks as a part of the weights of a plain stack of layers (Gal and Ghahramani 2016).

Where dropout acts on the inputs of a linear layer, or nn.Dropout2d on those of a convolution, the drawn network is the
plain one with W diag(z/k) in the place of W; where it acts on the outputs, with diag(z/k) (W, b). Positions of a
sequence that goes through such a layer share the mask, since they share the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd  # no public base class covers every dropout

from torchbayes.model.dropout import Mask, dropouts, kept
from torchbayes.model.network import Network


class Fold(NamedTuple):
    """A dropout layer whose mask is a part of the weights.

    Attributes:
        dropout: its name.
        weight: name of the weight that it scales.
        bias: name of the bias that it scales as well, where it acts on the outputs of the layer; else None.
        inputs: whether it acts on the inputs of the layer.
        shape: of the mask: units, or channels.
    """

    dropout: str
    weight: str
    bias: str | None
    inputs: bool
    shape: tuple[int, ...]


def folds(network: Network) -> list[Fold] | None:
    """Return how the masks of all dropout layers are parts of the weights; None if they are not.

    They are in an nn.Sequential whose nn.Dropout layers stand right behind a linear layer or right before one, and
    whose nn.Dropout2d likewise beside convolutions, if the weights of that layer are random, all of them, and its own.
    """
    named = list(_leaves(network.module, ""))
    if any(part is None for _, part in named) or len({id(p) for _, p in named}) < len(named):
        return None
    parts = [(n, p) for n, p in named if p is not None and not isinstance(p, nn.Identity)]
    on, found = set(dropouts(network)), list[Fold]()
    with network.training():
        live = {n for n, p in parts if p.training}
    for at, (name, part) in enumerate(parts):
        if isinstance(part, _DropoutNd) and name in live and part.p > 0:
            fold = _fold(network, parts, at)
            if fold is None:
                return None
            found.append(fold)
    return found if {f.dropout for f in found} == on and not _random_elsewhere(network, on) else None


def _random_elsewhere(network: Network, known: set[str]) -> bool:
    """Return whether another part may draw random numbers: anything that torch.nn does not define may."""
    others = nn.RNNBase | nn.MultiheadAttention | nn.RReLU
    return any(
        not type(m).__module__.startswith("torch.nn.modules") or isinstance(m, others)
        for n, m in network.module.named_modules()
        if n not in known
    )


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module | None]]:
    """Yield the parts of nested nn.Sequential modules with their names, in the order they run; None for hooks."""
    if any(getattr(module, table, None) for table in ("_forward_hooks", "_forward_pre_hooks")):
        yield name, None
    elif type(module) is nn.Sequential:
        for child, part in module.named_children():
            yield from _leaves(part, f"{name}.{child}".lstrip("."))
    else:
        yield name, module


def _fold(network: Network, parts: Sequence[tuple[str, nn.Module]], at: int) -> Fold | None:
    """Return how the mask of a dropout layer is a part of the weights beside it; None if it is not."""
    name, part = parts[at]
    kinds: dict[type, type] = {nn.Dropout: nn.Linear, nn.Dropout2d: nn.Conv2d}
    if type(part) not in kinds:
        return None
    kind, ones = kinds[type(part)], (1, 1) if type(part) is nn.Dropout2d else ()
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
    own = [(f"{name}.{n}", p) for n, p in layer.named_parameters(recurse=False)]
    return not hasattr(layer, "parametrizations") and all(
        every.count(id(p)) == 1 and network.layout.shapes.get(n) == tuple(p.shape) for n, p in own
    )


def folded(network: Network, weights_MD: Tensor, masks_S: Sequence[Mask]) -> Tensor | None:
    """Return weights with the masks of draws in them; None where masks are no part of the weights.

    The network in evaluation mode with these weights is the drawn function.

    Args:
        network: the network.
        weights_MD: of the members; draw s is of member s mod M. Columns behind the network's are left as they are.
        masks_S: of the draws.

    Returns:
        Tensor (S, D).
    """
    found = folds(network)
    if found is None:
        return None
    weights_SD = weights_MD.new_empty(len(masks_S), weights_MD.shape[1])
    size, places = network.layout.size, network.layout.slices
    whole, members = network.layout.split(weights_SD[:, :size]), network.layout.split(weights_MD[:, :size])
    changed = {f.weight for f in found} | {f.bias for f in found if f.bias is not None}
    kept_columns = [*(where for name, where in places.items() if name not in changed), slice(size, None)]
    for s, mask in enumerate(masks_S):
        m = s % len(weights_MD)
        for where in kept_columns:
            weights_SD[s, where] = weights_MD[m, where]
        now = {name: members[name][m] for name in changed}
        for call, fold in enumerate(found):
            layer: Any = network.module.get_submodule(fold.dropout)
            keep = 1 - mask.rates.get(fold.dropout, layer.p)
            scale = kept(mask.seed, call, fold.shape, keep=keep).flatten().to(weights_MD) / (keep or 1.0)
            behind = [1] * (now[fold.weight].ndim - (2 if fold.inputs else 1))
            now[fold.weight] = torch.mul(now[fold.weight], scale.view(-1, *behind), out=whole[fold.weight][s])
            if fold.bias is not None:
                now[fold.bias] = torch.mul(now[fold.bias], scale, out=whole[fold.bias][s])
    return weights_SD
