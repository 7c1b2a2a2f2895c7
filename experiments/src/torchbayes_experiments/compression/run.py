"""What `compression` computes for one seed."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.compression import Compressed, compress, prune, unit_noise
from torchbayes.compression.plain import plain_of
from torchbayes.data import load
from torchbayes.data.base import Data
from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.priors import GroupHorseshoe, GroupNormalJeffreys, LogUniform, Normal, with_multipliers
from torchbayes.posteriors import Posterior, ProblemWarning
from torchbayes.selection import fit
from torchbayes_experiments.compression.recipe import (
    DROPOUT,
    GHS,
    GNJ,
    GROUPS,
    LAPLACE,
    MODE,
    NORMAL,
    SURGEON,
    CompressionRecipe,
    NetworkRecipe,
)
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import best_device

_FIRST = math.exp(-1.5)  # signal to noise at log α = 3, where variational dropout prunes
_PLAIN = "plain"  # the fits of the plain network, of which three ways of pruning are scored


def run(recipe: CompressionRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit and prune every network by every method.

    Args:
        recipe: the settings.
        seed: of rows, starts and noise.
        directory: of this seed; every fit leaves a file, so that an interrupted run continues.

    Returns:
        network -> method -> what `scored` returns.
    """
    data, found = load(recipe.data, train_size=recipe.train_size, seed=seed), dict[str, Any]()
    for number, (name, own) in enumerate(recipe.networks().items()):
        found[name] = {}
        for place, fitted in enumerate((*GROUPS, DROPOUT, NORMAL, _PLAIN)):
            compute = partial(scored, recipe, own, fitted, data=data, seed=seed)
            found[name] |= load_or_compute(directory / f"network_{number}_{place}.json", compute)
    return found


def model_of(recipe: CompressionRecipe, own: NetworkRecipe, fitted: str, *, data: Data) -> Model:
    """Return the model that a fit is of.

    Args:
        recipe: the settings.
        own: of the network.
        fitted: which.
        data: its inputs have the network's shape.
    """
    widths = {"hidden": own.hidden} if own.hidden else {}
    net = networks.build(own.network, data.input_shape, data.num_classes, **widths).to(best_device())
    if fitted in GROUPS:
        made = with_multipliers(net, {GNJ: GroupNormalJeffreys(), GHS: GroupHorseshoe()}[fitted])
        return Model(made.network, Categorical(), made.prior)
    normal = Normal(recipe.prior_scale)
    return Model(net, Categorical(), {"*.weight": LogUniform(), "*": normal} if fitted == DROPOUT else normal)


def scored(
    recipe: CompressionRecipe, own: NetworkRecipe, fitted: str, *, data: Data, seed: int
) -> dict[str, dict[str, Any]]:
    """Fit once, and score each way of pruning what was fitted.

    Args:
        recipe: the settings.
        own: of the network.
        fitted: which fit.
        data: training and test rows.
        seed: of the fit.

    Returns:
        method -> `error` of the model average and `mean_error` of the network at the means, in percent; `curve`, pairs
        of weights kept and error of that; and `compressed`, what `described` returns.
    """
    model = model_of(recipe, own, fitted, data=data)
    about: dict[str, Any] = {"seed": seed, "callbacks": ()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProblemWarning)
        if fitted == _PLAIN:
            mode = fit(model, data.train, recipe.single(own.mode), **about)
            laplace = fit(model, data.train, Laplace(structure="kronecker"), start=mode, seed=seed)
            ways = {MODE: (mode, False), LAPLACE: (laplace, False), SURGEON: (laplace, True)}
            return {name: _single(recipe, p, data, by=f) for name, (p, f) in ways.items()}
        method = recipe.variational(own.epochs if fitted in GROUPS else own.single)
        posterior = fit(model, data.train, method, **about)
        score = _units if fitted in GROUPS else partial(_single, by=False)
        return {fitted: score(recipe, posterior, data)}


def _units(recipe: CompressionRecipe, posterior: Posterior, data: Data) -> dict[str, Any]:
    """Return the scores of pruning units."""
    noise = unit_noise(posterior)
    pooled = torch.cat([of.flatten() for of in noise.values()]).sort().values
    shares = [float(pooled[min(len(pooled) - 1, round(share * len(pooled)))]) for share in recipe.shares]
    curve = [_point(compress(posterior, data.train, threshold=t, rounded=False), data) for t in shares]
    small = compress(posterior, data.train, rounded=False)
    found = {**_errors(recipe, posterior, data), "curve": [*curve, _point(small, data)]}
    found["noise"] = {name: [round(float(n), 3) for n in of] for name, of in noise.items()}
    rounded = compress(posterior, data.train)
    return {**found, "compressed": described(recipe, posterior, small, rounded=rounded, data=data)}


def _single(recipe: CompressionRecipe, posterior: Posterior, data: Data, *, by: bool) -> dict[str, Any]:
    """Return the scores of pruning single weights, by the surgeon or not."""
    curve = [
        _point(prune(posterior, data.train, keep=share, surgeon=by, rounded=False), data) for share in recipe.shares
    ]
    found = {**_errors(recipe, posterior, data), "curve": curve}
    if any(isinstance(segment.prior, LogUniform) for segment in posterior.model.prior.segments):
        small, rounded = (prune(posterior, data.train, least=_FIRST, rounded=r) for r in (False, True))
        found["compressed"] = described(recipe, posterior, small, rounded=rounded, data=data)
        found["curve"] = [*curve, _point(small, data)]
    return found


def _errors(recipe: CompressionRecipe, posterior: Posterior, data: Data) -> dict[str, float]:
    """Return the errors of the model average and of the network at the means, in percent."""
    average = evaluate(posterior, data.test, draws=recipe.draws * posterior.members).metrics["accuracy"]
    return {"error": 100 * (1 - average), "mean_error": error_of(plain_of(posterior).network, data)}


def error_of(network: nn.Module, data: Data) -> float:
    """Return the test error of a network in percent."""
    with torch.no_grad():
        parts = data.test.inputs.split(1000)
        guesses = torch.cat([network(rows.to(best_device())).argmax(-1).cpu() for rows in parts])
    return 100 * float((guesses != data.test.targets).double().mean())


def _point(small: Compressed, data: Data) -> list[float]:
    """Return the weights that are kept, and the error."""
    return [small.num_kept, error_of(small.network, data)]


def described(
    recipe: CompressionRecipe, posterior: Posterior, small: Compressed, *, rounded: Compressed, data: Data
) -> dict[str, Any]:
    """Return what a compressed network is, before and after its weights were rounded.

    Args:
        recipe: the settings.
        posterior: what was compressed.
        small: before rounding.
        rounded: after it.
        data: test rows.

    Returns:
        errors in percent, rates, bytes on disk, inputs and outputs of layers, and time of a forward pass of the network
        in full size over that of the smaller one.
    """
    rows = data.test.inputs[: recipe.rows].to(best_device())
    return {
        "error": error_of(small.network, data),
        "rounded_error": error_of(rounded.network, data),
        "rate": small.rate,
        "bits": rounded.rate_with_bits,
        "bytes": size_on_disk(rounded),
        "before": 4 * small.num_weights,
        "layers": {name: list(sizes) for name, sizes in small.layers.items()},
        "difference": small.difference,
        "faster": speed(plain_of(posterior).network, small.network, rows, repeats=recipe.repeats),
        "thresholds": dict(small.thresholds),
        "stayed": list(small.stayed),
    }


def size_on_disk(small: Compressed) -> int:
    """Return the bytes of a compressed network's file."""
    with TemporaryDirectory() as folder:
        return small.save(Path(folder, "compressed.safetensors")).stat().st_size


def speed(whole: nn.Module, small: nn.Module, rows: Tensor, *, repeats: int) -> float:
    """Return the time of a forward pass of one network over that of another, of medians, taken in turn."""

    def seconds(network: nn.Module) -> float:
        began = time.perf_counter()
        network(rows)
        return time.perf_counter() - began

    with torch.no_grad():
        each: list[Callable[[], float]] = [partial(seconds, whole), partial(seconds, small)]
        taken = [[once() for once in each] for _ in range(repeats + 1)][1:]
    return statistics.median(t[0] for t in taken) / statistics.median(t[1] for t in taken)
