"""Bayesian compression: networks without the units whose multipliers are noise, in as few bits as they need.

Louizos, Ullrich and Welling (2017) put a prior on groups of weights under which whole units become superfluous, remove
them, and keep of each weight the bits that its posterior leaves. Here the smaller networks are built, saved and timed,
and the pruning of single weights, by variational dropout, by noise, by a Laplace posterior and by magnitude, is beside.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.compression import Compressed, compress, prune, unit_noise
from torchbayes.compression.plain import plain_of
from torchbayes.data import Data
from torchbayes.report import Picture, Table, looks
from torchbayes.report.style import INK, house_style, legend_above, new_figure, panel_title
from torchbayes_experiments import Experiment, Findings, Headline, Part, Results, below, load_or_compute, pivot, tidy
from torchbayes_experiments.shared.classifiers import best_device
from torchbayes_experiments.verdicts import mean_and_error

# names that results, tables and figures share
GNJ, GHS = "group normal-Jeffreys", "group horseshoe"
DROPOUT, NORMAL, LAPLACE, SURGEON, MODE = "variational dropout", "VI, by noise", "Laplace", "surgeon", "magnitude"
GROUPS = (GNJ, GHS)
SINGLE = (DROPOUT, NORMAL, LAPLACE, SURGEON, MODE)
DENSE, CONVOLUTIONAL = "LeNet-300-100", "LeNet-5"

# of Louizos, Ullrich and Welling (2017): test error in percent, and how many times fewer weights and bits
Published = namedtuple("Published", ["error", "rate", "bits"])
PUBLISHED = {
    (DENSE, GNJ): Published(1.8, 9, 36),
    (DENSE, GHS): Published(1.8, 9, 23),
    (CONVOLUTIONAL, GNJ): Published(1.0, 108, 361),
    (CONVOLUTIONAL, GHS): Published(1.0, 156, 419),
    (CONVOLUTIONAL, DROPOUT): Published(1.0, 63, 228),
}

ROUNDING = 1e-4  # relative difference of outputs in float32
LOST = 0.5  # points of error that pruning may cost, and that rounding may
_FIRST = math.exp(-1.5)  # signal to noise at log α = 3, where variational dropout prunes
_PLAIN = "plain"  # the fits of the plain network, of which three ways of pruning are scored


@dataclass(frozen=True)
class NetworkRecipe:
    """Fits of one network."""

    network: str = "mlp"  # by name; `hidden` are the units of `mlp`
    hidden: tuple[int, ...] = (300, 100)
    epochs: int = 20  # of variational inference; `single` where single weights are pruned, `mode` of the plain network
    single: int = 20
    mode: int = 10


@dataclass(frozen=True)
class CompressionRecipe:
    """Settings of all fits."""

    dense: NetworkRecipe = NetworkRecipe()
    convolutional: NetworkRecipe | None = None  # of LeNet-5; it is left out if None
    data: str = "mnist"
    train_size: int | None = None
    lr: float = 1e-2  # of Adam, of variational inference, whose standard deviations begin at `initial_scale`
    initial_scale: float = 0.01
    prior_scale: float = 0.1  # of the weights of the plain network, and of `NORMAL`
    # of single weights and of units that are kept along a curve
    shares: tuple[float, ...] = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
    draws: int = 10
    rows: int = 256  # test rows of a forward pass that is timed, `repeats` times
    repeats: int = 15


QUICK = CompressionRecipe()
SMALL = replace(QUICK, convolutional=NetworkRecipe("lenet", (), epochs=10, single=6, mode=6))
_LONG = NetworkRecipe(epochs=200, single=200, mode=50)
PAPER = replace(QUICK, dense=_LONG, convolutional=replace(_LONG, network="lenet", hidden=()), lr=1e-3)


def run(recipe: CompressionRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return network -> method -> what `scored` returns; every fit leaves a file, and an interrupted run continues."""
    data, results = tb.data.load(recipe.data, train_size=recipe.train_size, seed=seed), dict[str, Any]()
    networks = {DENSE: recipe.dense} | ({CONVOLUTIONAL: recipe.convolutional} if recipe.convolutional else {})
    for number, (name, settings) in enumerate(networks.items()):
        results[name] = {}
        for place, fitted in enumerate((*GROUPS, DROPOUT, NORMAL, _PLAIN)):
            compute = partial(scored, recipe, settings, fitted, data=data, seed=seed)
            results[name] |= load_or_compute(directory / f"network_{number}_{place}.json", compute)
    return results


def model_of(recipe: CompressionRecipe, settings: NetworkRecipe, fitted: str, *, data: Data) -> tb.Model:
    widths = {"hidden": settings.hidden} if settings.hidden else {}
    net = tb.networks.build(settings.network, data.input_shape, data.num_classes, **widths).to(best_device())
    if fitted in GROUPS:
        groups = tb.priors.GroupNormalJeffreys() if fitted == GNJ else tb.priors.GroupHorseshoe()
        made = tb.priors.with_multipliers(net, groups)
        return tb.Model(made.network, tb.likelihoods.Categorical(), made.prior)
    normal = tb.priors.Normal(recipe.prior_scale)
    prior = {"*.weight": tb.priors.LogUniform(), "*": normal} if fitted == DROPOUT else normal
    return tb.Model(net, tb.likelihoods.Categorical(), prior)


def scored(
    recipe: CompressionRecipe, settings: NetworkRecipe, fitted: str, *, data: Data, seed: int
) -> dict[str, dict[str, Any]]:
    """Fit once, and score each way of pruning what was fitted.

    method -> `error` of the model average and `mean_error` of the network at the means, in percent; `curve`, pairs of
    weights kept and error of that; and `compressed`, what `described` returns.
    """
    model = model_of(recipe, settings, fitted, data=data)

    def scores(posterior: tb.Posterior, pruned: Callable[..., dict[str, Any]] = _single) -> dict[str, Any]:
        average = tb.evaluate(posterior, data.test, draws=recipe.draws * posterior.members).metrics["accuracy"]
        errors = {"error": 100 * (1 - average), "mean_error": error_of(plain_of(posterior).network, data)}
        return errors | pruned(recipe, posterior, data)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tb.ProblemWarning)
        if fitted == _PLAIN:
            method = tb.MAP(epochs=settings.mode, optimizer=tb.Adam(1e-3))
            mode = tb.fit(model, data.train, method, seed=seed, callbacks=())
            laplace = tb.fit(model, data.train, tb.Laplace(structure="kronecker"), start=mode, seed=seed)
            surgeon = partial(_single, surgeon=True)
            return {MODE: scores(mode), LAPLACE: scores(laplace), SURGEON: scores(laplace, surgeon)}
        epochs, pruned = (settings.epochs, _units) if fitted in GROUPS else (settings.single, _single)
        vi = tb.VI(
            epochs=epochs,
            optimizer=tb.Adam(recipe.lr),
            initial_scale=recipe.initial_scale,
            kl_weight=tb.WarmUp(),  # the divergence is phased in over the first third
        )
        return {fitted: scores(tb.fit(model, data.train, vi, seed=seed, callbacks=()), pruned)}


def _units(recipe: CompressionRecipe, posterior: tb.Posterior, data: Data) -> dict[str, Any]:
    """Return the scores of pruning units."""
    smaller = partial(compress, posterior, data.train)
    noise, small = unit_noise(posterior), smaller(rounded=False)
    pooled = torch.cat([units.flatten() for units in noise.values()]).sort().values
    thresholds = [float(pooled[min(len(pooled) - 1, round(share * len(pooled)))]) for share in recipe.shares]
    curve = [_point(smaller(threshold=threshold, rounded=False), data) for threshold in thresholds]
    return {
        "curve": [*curve, _point(small, data)],
        "noise": {name: [round(float(n), 3) for n in units] for name, units in noise.items()},
        "compressed": described(recipe, posterior, small, rounded=smaller(), data=data),
    }


def _single(recipe: CompressionRecipe, posterior: tb.Posterior, data: Data, *, surgeon: bool = False) -> dict[str, Any]:
    """Return the scores of pruning single weights, by the surgeon or not."""
    pruned = partial(prune, posterior, data.train)
    curve = [_point(pruned(keep=share, surgeon=surgeon, rounded=False), data) for share in recipe.shares]
    if not any(isinstance(segment.prior, tb.priors.LogUniform) for segment in posterior.model.prior.segments):
        return {"curve": curve}
    small, rounded = (pruned(least=_FIRST, rounded=r) for r in (False, True))
    compressed = described(recipe, posterior, small, rounded=rounded, data=data)
    return {"curve": [*curve, _point(small, data)], "compressed": compressed}


def error_of(network: nn.Module, data: Data) -> float:
    """Return the test error of a network in percent."""
    with torch.no_grad():
        guesses = torch.cat([network(rows.to(best_device())).argmax(-1).cpu() for rows in data.test.inputs.split(1000)])
    return 100 * float((guesses != data.test.targets).double().mean())


def _point(small: Compressed, data: Data) -> list[float]:
    return [small.num_kept, error_of(small.network, data)]


def described(
    recipe: CompressionRecipe, posterior: tb.Posterior, small: Compressed, *, rounded: Compressed, data: Data
) -> dict[str, Any]:
    """Return errors in percent, rates, bytes, layers and speed of a compressed network, before and after rounding."""
    rows = data.test.inputs[: recipe.rows].to(best_device())
    with TemporaryDirectory() as folder:
        size = rounded.save(Path(folder, "compressed.safetensors")).stat().st_size
    return {
        "error": error_of(small.network, data),
        "rounded_error": error_of(rounded.network, data),
        "rate": small.rate,
        "bits": rounded.rate_with_bits,
        "bytes": size,
        "before": 4 * small.num_weights,
        "layers": {name: list(sizes) for name, sizes in small.layers.items()},
        "difference": small.difference,
        "faster": speed(plain_of(posterior).network, small.network, rows, repeats=recipe.repeats),
        "thresholds": dict(small.thresholds),
        "stayed": list(small.stayed),
    }


def speed(whole: nn.Module, small: nn.Module, rows: Tensor, *, repeats: int) -> float:
    """Return the time of a forward pass of one network over that of another, of medians, taken in turn."""

    def seconds(network: nn.Module) -> float:
        began = time.perf_counter()
        network(rows)
        return time.perf_counter() - began

    with torch.no_grad():
        taken = [[seconds(whole), seconds(small)] for _ in range(repeats + 1)][1:]
    return statistics.median(t[0] for t in taken) / statistics.median(t[1] for t in taken)


COLUMNS = {"average": "error, average", "error": "pruned", "rounded_error": "rounded", "rate": "weights"}
COLUMNS |= {"bits": "bits", "bytes": "bytes on disk", "faster": "faster"}
DIGITS = dict.fromkeys(COLUMNS.values(), ".2f") | {
    "weights": ".1f",
    "bits": ".0f",
    "bytes on disk": ",.0f",
    "faster": ".1f",
}


def summarise(results: Results) -> Findings:
    parts = (part for network in results[0] for method in GROUPS for part in _parts(results, network, method))
    tables = (table for network in results[0] for table in _tables(results, network))
    pictures = (draw(results, network) for network in results[0] for draw in (_curves, _histograms))
    return Findings.of(parts, tables, pictures)


def _parts(results: Results, network: str, method: str) -> Iterator[Part]:
    mark = PUBLISHED[network, method]
    keys = (*list(COLUMNS)[1:], "before", "difference")
    small = {key: np.array([r[network][method]["compressed"][key] for r in results]) for key in keys}
    means = np.array([r[network][method]["mean_error"] for r in results])
    magnitude = [_against(r[network], method) for r in results]
    statements = {
        f"error at most the published {mark.error} %": (small["rounded_error"], mark.error),
        f"at least {mark.rate:g} times fewer weights": (-small["rate"], -mark.rate),
        f"at least {mark.bits:g} times fewer bits": (-small["bits"], -mark.bits),
        f"pruning costs less than {LOST} points": (small["error"] - means, LOST),
        f"rounding costs less than {LOST} points": (small["rounded_error"] - small["error"], LOST),
        "the smaller network has the same outputs": (small["difference"], ROUNDING),
        f"its file is at least {mark.bits / 2:g} times smaller": (-small["before"] / small["bytes"], -mark.bits / 2),
        "its forward pass is faster": (-small["faster"], -1.0),
        "at as many weights it errs less than pruning by magnitude": (magnitude, 0.0),
    }
    yield from (below(f"{network}, {method}: {text}", *tested) for text, tested in statements.items())


def _tables(results: Results, network: str) -> Iterator[Table]:
    methods = (*GROUPS, DROPOUT)
    seeds = [{m: r[network][m]["compressed"] | {"average": r[network][m]["error"]} for m in methods} for r in results]
    layers = {method: " ".join(f"{i}→{o}" for i, o in seeds[0][method]["layers"].values()) for method in methods}
    marks = {m: f"{p.error} %, {p.rate:g}, {p.bits:g}" for (name, m), p in PUBLISHED.items() if name == network}
    yield pivot(
        tidy(seeds, "method", "measure", lists=()),
        "method",
        "measure",
        keep=COLUMNS,
        digits=DIGITS,
        beside={"layers": layers.get, "published": lambda method: marks.get(method, "–")},
        caption=f"{network}: test errors in percent of the model average, of the pruned network and of that with "
        "rounded weights; how many times fewer weights and bits; the file; how many times faster a forward pass is; "
        "what is left of the layers (seed 0); and the published error, weights and bits.",
    )
    body = [
        [method, *(mean_and_error(values) for values in zip(*points, strict=True))]
        for method in (*GROUPS, *SINGLE)
        for points in zip(*(result[network][method]["curve"] for result in results), strict=False)
    ]
    weights = f"{results[0][network][GROUPS[0]]['compressed']['before'] // 4:,} weights"
    caption = (
        f"{network}, {weights}: test error in percent by the weights that are kept. The last row of the two group "
        f"priors and of variational dropout is the threshold that the method chooses."
    )
    yield Table(["method", "weights kept", "error"], body, caption, formats={"weights kept": ",.0f", "error": ".2f"})


def _against(fits: Mapping[str, Any], method: str) -> float:
    """Return the error less that of the plain network at as many weights, interpolated in their logarithm."""
    kept, error = fits[method]["curve"][-1]
    weights, errors = zip(*sorted(fits[MODE]["curve"]), strict=True)
    return error - float(np.interp(np.log(kept), np.log(weights), errors))


@house_style
def _curves(results: Results, network: str) -> Picture:
    """Draw the error against the weights that are left, by every method."""
    figure = new_figure(5.6, 3.9)
    axes, handles = figure.subplots(), dict[str, Any]()
    most = results[0][network][GROUPS[0]]["compressed"]["before"] // 4
    for method, look in looks((*GROUPS, *SINGLE)).items():
        plot = partial(axes.plot, color=look.colour)
        points = [np.array(result[network][method]["curve"]) for result in results]
        chosen = "compressed" in results[0][network][method]
        lines = [curve[:-1] if chosen else curve for curve in points]
        for line in lines:
            plot(*line[line[:, 0].argsort()].T, alpha=0.2, linewidth=0.7)
        mean = np.mean(lines, 0)
        (handles[method],) = plot(*mean[mean[:, 0].argsort()].T, markersize=3, marker=look.marker)
        if chosen:
            plot(*np.mean([curve[-1] for curve in points], 0), markersize=8, linestyle="", marker=look.marker)
    for mark in (mark for (name, _), mark in PUBLISHED.items() if name == network):
        (handles["published"],) = axes.plot(most / mark.rate, mark.error, "D", color=INK, markerfacecolor="white")
    axes.set(xscale="log", yscale="log", xlim=(most / 500, most), ylim=(0.5, 100))
    axes.set_yticks([0.5, 1, 2, 5, 10, 20, 50, 100], ["0.5", "1", "2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set(xlabel=f"weights left of {most:,}", ylabel="test error (%)")
    legend_above(figure, handles)
    return Picture(
        f"Pruning {network}: test error against the weights that are left",
        figure,
        "Mean over seeds, with the seeds as faint lines. Units are pruned by their multipliers, single weights by "
        "their signal to noise, under a Laplace posterior (with the others following: surgeon), or by magnitude. "
        "Large marks are where a threshold is not chosen by hand; diamonds as published.",
    )


@house_style
def _histograms(results: Results, network: str) -> Picture:
    fits, look = results[0][network], looks(GROUPS)
    layers = list(fits[GROUPS[0]]["noise"])
    figure = new_figure(2.1 * len(layers), 3.6)
    for row, method in zip(figure.subplots(2, len(layers), squeeze=False, sharex="row"), GROUPS, strict=True):
        for axes, layer in zip(row, layers, strict=True):
            noise, threshold = np.array(fits[method]["noise"][layer]), fits[method]["compressed"]["thresholds"][layer]
            axes.hist(noise, bins=40, color=look[method].colour)
            axes.axvline(threshold, color=INK, linestyle=(0, (3, 2)), linewidth=1)
            panel_title(axes, f"layer {layer}: {len(noise)} units")
        row[0].set_ylabel(method)
    figure.supxlabel("noise of a unit")
    return Picture(
        f"Noise of the units of {network}",
        figure,
        "First seed: log Var z/(E z)² under the normal-Jeffreys prior, minus the logarithm of the mode of z under "
        "the horseshoe, of the inputs of dense layers and the filters of convolutions. Units right of the dashed "
        "line are pruned.",
    )


EXPERIMENT = Experiment(
    name="compression",
    claim="Under priors of groups most units of a network are superfluous: without them, and with a few bits for each "
    "weight that is left, it is many times smaller and faster, at next to no cost in accuracy.",
    source="Louizos, Ullrich and Welling 2017, Bayesian compression for deep learning; table 1 for LeNet-5, its "
    "numbers for LeNet-300-100 from memory",
    expected="LeNet-300-100: 1.8 % error with 9 times fewer weights (both priors), 36 and 23 times fewer bits. "
    "LeNet-5: 1.0 % with 108 and 156 times fewer weights, 361 and 419 times fewer bits; sparse variational dropout "
    "63 and 228.",
    differences="The divergence of the normal-Jeffreys prior is exact in the place of a fit to it. Bits are those of "
    "fixed-point numbers whose step follows from the posterior's standard deviations; the paper counts floating-point "
    "numbers, and takes the variance. Runs are short: 20 epochs of LeNet-300-100, 10 of LeNet-5.",
    recipes={"quick": QUICK, "small": SMALL, "paper": PAPER},
    cost={
        "quick": "LeNet-300-100: ten to fifteen minutes of one core for a seed",
        "small": "with LeNet-5: three quarters of an hour of one core for a seed",
        "paper": "200 epochs of both: an hour of one GPU (an estimate); it has not been run",
    },
    run=run,
    summarise=summarise,
    headline=Headline(
        "test error of the pruned LeNet-300-100 with rounded weights, %",
        ("rounded",),
        published={method: mark.error for (network, method), mark in PUBLISHED.items() if network == DENSE},
    ),
)
