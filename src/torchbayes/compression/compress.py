"""Two ways to a smaller network: pruning units whose multipliers are noise, and pruning single weights."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.checks import check_entries, check_flags, check_numbers, check_positive, check_share, optional
from torchbayes.compression.compressed import Compressed, point_of
from torchbayes.compression.follow import follow
from torchbayes.compression.plain import Plain, filled, gap, plain_of
from torchbayes.compression.rounding import Rounding
from torchbayes.compression.units import smaller
from torchbayes.model.model import Model
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import ProblemWarning


@undisturbed
def unit_noise(posterior: Posterior) -> dict[str, Tensor]:
    """Return the noise of the units of each layer with multipliers, by which `compress` prunes.

    Under a `GroupNormalJeffreys` prior it is log α = log Var z/(E z)², under a `GroupHorseshoe` minus the logarithm
    of the mode of z.

    Args:
        posterior: a Gaussian one, of one member, of a network from `priors.with_multipliers`.

    Returns:
        Layer -> one number for each of its inputs (linear layers) or filters (convolutions).

    Raises:
        TypeError: if it is of another kind.
        ValueError: if no layer has multipliers, or there are several members.
    """
    return {name: of.noise for name, of in _with_groups(posterior).groups.items()}


@undisturbed
def compress(
    posterior: Posterior,
    data: Any,
    *,
    threshold: float | Mapping[str, float] | None = None,
    rounded: bool = True,
) -> Compressed:
    """Return the network without the units whose multipliers are noise, its weights in as few bits as they need.

    Units of a layer are pruned if their noise (`unit_noise`) is at least a threshold, which lies in the widest gap of
    its histogram. Weights are their posterior means, E z E W. Units without effect are then taken out, layer by
    layer, and linear layers take only those inputs that count (`units`). The outputs of the smaller network are, up
    to rounding, those of the full-size one with zeros for the pruned weights. This is checked, and what would change
    them stays. Its weights are rounded so that it costs at most 1/24 nat each (`rounding`).
    Source: Louizos, Ullrich and Welling (2017), "Bayesian compression for deep learning".

    Args:
        posterior: a Gaussian one, of one member, such as `VI` gives, of a network from `priors.with_multipliers`.
        data: as for `fit`; a few rows are used to follow units and to compare outputs.
        threshold: noise from which on units are pruned, of all layers or by layer. If None the histogram decides,
            between −2 and 3 under `GroupNormalJeffreys`, and 1.5 to 4 above the smallest under `GroupHorseshoe`.
        rounded: whether weights are rounded.

    Returns:
        The compressed network.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if no layer has multipliers, there are several members, or a threshold names an unknown layer.
    """
    check_flags(rounded=rounded)
    plain = _with_groups(posterior)
    original, thresholds, pruned = filled(plain.network, {}), _thresholds(plain, threshold), 0
    for name, z in plain.groups.items():
        weight = plain.network.get_parameter(f"{name}.weight")
        axis = 1 if weight.shape[1] == len(z.noise) and isinstance(plain.network.get_submodule(name), nn.Linear) else 0
        gone = (z.noise >= thresholds[name]).nonzero()[:, 0]
        with torch.no_grad():
            weight.index_fill_(axis, gone, 0.0)
        pruned += len(gone)
    small = _made(posterior.model, plain, data, original=original, thresholds=thresholds, rounded=rounded)
    if threshold is None and not pruned:
        warnings.warn(
            "no unit of any layer is noise, so none is pruned: the divergence has not acted yet, or the network needs "
            "them all. Train longer or with a larger learning rate, and look at `unit_noise`.",
            ProblemWarning,
            stacklevel=2,
        )
    return small


@undisturbed
def prune(
    posterior: Posterior,
    data: Any,
    *,
    keep: float | None = None,
    least: float | None = None,
    surgeon: bool = False,
    rounded: bool = True,
) -> Compressed:
    """Return the network without the weights that are least certain to differ from zero.

    Weights of matrices and filters are ranked over all layers by |E w| / √Var w, as Bayes by backprop, sparse
    variational dropout and the optimal brain surgeon rank them (`plain`); those of a point, which has no variance,
    by |w|. Biases and the parameters of norms stay. Units that are left without effect are taken out, as by
    `compress`.
    Source: Blundell et al. (2015), section 5.1; Hassibi and Stork (1993); Graves (2011).

    Args:
        posterior: a Gaussian one or a point, of one member.
        data: as for `fit`; a few rows are used.
        keep: share of the weights that stays, or
        least: the signal to noise |E w| / √Var w of a weight that stays: e^{−3/2} is the threshold log α = 3 of
            sparse variational dropout.
        surgeon: whether the weights that stay become their posterior expectation given that the others are zero.
            It takes solves with the covariance, and changes nothing where weights are independent.
        rounded: whether weights are rounded, where their variances are known.

    Returns:
        The compressed network.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if there are several members, neither or both of share and threshold are given, one is out of
            range, or the network has multipliers.
    """
    check_flags(rounded=rounded, surgeon=surgeon)
    optional(check_share, keep=keep)
    optional(check_positive, least=least)
    if (keep is None) == (least is None):
        raise ValueError(
            f"give either `keep` or `least`; got {keep} and {least}. keep=0.1 keeps a tenth of the weights."
        )
    plain = plain_of(posterior)
    if plain.groups:
        raise ValueError("`posterior` has multipliers, by which whole units are pruned. Call `compress`.")
    original, noise = filled(plain.network, {}), plain.signal_to_noise()
    flat = torch.cat([of.flatten() for of in noise.values()])
    pruned = flat < (0.0 if least is None else least)
    if keep is not None:
        pruned[flat.argsort(stable=True)[: round((1 - keep) * len(flat))]] = True
    parts = pruned.split([of.numel() for of in noise.values()])
    gone = {name: mask.view(of.shape) for (name, of), mask in zip(noise.items(), parts, strict=True)}
    if surgeon:
        follow(posterior, plain, gone)
    with torch.no_grad():
        for name, mask in gone.items():
            plain.network.get_parameter(name).masked_fill_(mask, 0.0)
    return _made(posterior.model, plain, data, original=original, thresholds={}, rounded=rounded)


def _with_groups(posterior: Posterior) -> Plain:
    """Return the plain network of a posterior; a ValueError if it is a point or has no multipliers."""
    plain = plain_of(posterior)
    if not plain.groups:
        raise ValueError(
            "no layer of the network has multipliers. Fit a network from `priors.with_multipliers`, or prune single "
            "weights by `prune`."
        )
    if not plain.variance:
        raise ValueError("a point does not say which multipliers are noise. Fit by VI.")
    return plain


def _thresholds(plain: Plain, threshold: float | Mapping[str, float] | None) -> dict[str, float]:
    """Return the threshold of each layer; a ValueError if one is of no layer."""
    gaps = {name: gap(of.noise, of.window) for name, of in plain.groups.items()}
    if isinstance(threshold, Mapping):
        if unknown := [name for name in threshold if name not in gaps]:
            raise ValueError(
                f"`threshold` names `{unknown[0]}`, which is no layer with multipliers; they are {', '.join(gaps)}."
            )
        check_entries({f"threshold[{name!r}]": value for name, value in threshold.items()}, check_numbers)
        return {**gaps, **{name: float(value) for name, value in threshold.items()}}
    optional(check_numbers, threshold=threshold)
    return gaps if threshold is None else dict.fromkeys(gaps, float(threshold))


def _made(
    model: Model, plain: Plain, data: Any, *, original: nn.Module, thresholds: Mapping[str, float], rounded: bool
) -> Compressed:
    """Return the compressed network of a plain one with zeros for pruned weights."""
    num_weights = sum(plain.network.get_parameter(name).numel() for name in plain.random)
    small = smaller(plain.network, model, data, random=plain.random, original=original)
    parameters = dict(small.network.named_parameters())
    num_kept = sum(int((parameters[name] != 0).sum()) for name in plain.random)
    roundings: dict[str, Rounding] = {}
    if rounded:
        for name, variance in small.surgery.tensors(plain.variance).items():
            if rounding := Rounding.of(parameters[name].detach(), variance):
                roundings[name] = rounding
                parameters[name].data.copy_(rounding.apply(parameters[name].detach()))
    posterior = point_of(small.network, model, plain.learned, names=plain.random)
    return Compressed(
        posterior,
        small.surgery,
        roundings,
        num_weights,
        num_kept,
        thresholds,
        small.stayed,
        small.difference,
        small.change,
    )
