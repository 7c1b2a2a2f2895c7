"""Bayes by backprop on MNIST: test error, pruning by signal to noise, and a regression (Blundell et al. 2015).

Networks with two hidden layers of ReLU units are trained in the ordinary way, with dropout, and by variational
inference with independent weights under a normal prior and under a mixture of a wide and a narrow one. The posterior
says of every weight how certain its sign is, and so which weights a network can do without.

Settings were chosen with seed 1000, which is none of the seeds that are run, on 10,000 training images that were not
trained on; most trials had 10 epochs. Errors on these images in %, of the average over 16 draws where there are draws:

    SGD                learning rate 0.1: 2.97, 0.3: 1.95;  dropout at 0.3: 2.27;  after 50 epochs at 0.3: 1.82 and 1.63
    normal prior       scale e⁻² with Adam at 0.001: 2.45, at 0.003: 2.88;  scale 1 at 0.003: 2.13
    mixture (1, e⁻⁶)   Adam at 0.001: 2.40 with a quarter of the weight on the wide normal, 2.28 with three quarters,
                       2.23 with a quarter and `Halving()`; at 0.003: 2.13 and 2.06, with a quarter 2.09
                       after 25 epochs, and 2.25 after 50 with noise in the layers
    other mixtures     (e⁻², e⁻⁶): 3.29, (1, e⁻⁵): 6.21

A quarter was taken of the two that held-out images do not tell apart, as then the means without 95 % of the weights
have an error of 2.08 against 2.38. A mixture has to begin at the scale of its narrow normal: from 0.02 weights do not
find it, and the error stays at 5.56. Plain SGD leaves the scales of the posterior where they begin: the error after
20 epochs is 1.93 with scales of 0.03 under the normal prior and 2.83 under the mixture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchbayes as tb
from torchbayes.report import Picture, Table
from torchbayes.report.style import INK, house_style, legend_above, looks, new_figure, panel_title, percent_axis
from torchbayes_experiments import Experiment, Findings, Part, Results, Rows, below, load_or_compute, pivot, tidy
from torchbayes_experiments.files import rounded
from torchbayes_experiments.headline import Headline
from torchbayes_experiments.shared.classifiers import best_device
from torchbayes_experiments.streams import Purpose, generator
from torchbayes_experiments.verdicts import mean_and_error, two_standard_errors

PLAIN, DROPOUT, GAUSSIAN, MIXTURE = "SGD", "dropout", "Gaussian prior", "scale mixture"
BAYES = (GAUSSIAN, MIXTURE)
NETWORK = "single network"
CURVES = {MIXTURE: "Bayes by backprop", NETWORK: NETWORK}  # methods of the regression
LOUDNESS = (-40.0, 20.0)  # dB, ends of the histogram of signal to noise

# Test errors in % on MNIST after 600 epochs, table 1 of Blundell et al. (2015): width -> method -> error.
PUBLISHED: dict[str, dict[str, float]] = {
    "400": {PLAIN: 1.83, DROPOUT: 1.51, GAUSSIAN: 1.82, MIXTURE: 1.36},
    "800": {PLAIN: 1.84, DROPOUT: 1.33, GAUSSIAN: 1.99, MIXTURE: 1.34},
    "1200": {PLAIN: 1.88, DROPOUT: 1.36, GAUSSIAN: 2.04, MIXTURE: 1.32},
}
# The same for a network of 1,200 units under the mixture without a share of its weights, table 2, from memory.
PUBLISHED_PRUNED: dict[float, float] = {0.0: 1.24, 0.5: 1.24, 0.75: 1.24, 0.95: 1.29, 0.98: 1.39}
MARGINS = {0.75: 0.1, 0.95: 0.2, 0.98: 0.3}  # points of error that removing a share of the weights may cost
OPENED, LEVEL = 2.0, 1.1  # spread beyond the training inputs over that among them: at least; of a network, at most


@dataclass(frozen=True)
class Entry:
    """A method with the prior of every weight, and the rate of dropout after each hidden layer in training."""

    method: tb.MAP | tb.VI
    prior: tb.priors.Flat | tb.priors.Normal | tb.priors.NormalMixture
    dropout: float = 0.0


@dataclass(frozen=True)
class Regression:
    """The regression in one dimension."""

    bayes: Entry
    network: Entry
    hidden: tuple[int, ...] = (100, 100)
    rows: int = 1000
    inside: tuple[float, float] = (0.0, 0.5)  # ends of the training inputs
    axis: tuple[float, float] = (-0.2, 1.2)  # ends of the inputs at which predictions are made, at `places` of them
    margin: float = 0.1  # how far beyond the training inputs an input must be to count as outside
    noise: float = 0.02
    places: int = 141
    draws: int = 300


@dataclass(frozen=True)
class BackpropRecipe:
    """The table of images, the pruned networks and the regression."""

    plain: Entry
    dropout: Entry
    gaussian: Entry
    mixture: Entry
    regression: Regression
    widths: tuple[int, ...] = (400,)  # numbers of units in each of the two hidden layers
    train_size: int = 50_000
    data: str = "mnist"
    white: float = 255 / 126  # value of a white pixel; black is 0
    draws: int = 32
    shares: tuple[float, ...] = (0.0, 0.5, 0.75, 0.95, 0.98)

    @property
    def entries(self) -> dict[str, Entry]:
        return {PLAIN: self.plain, DROPOUT: self.dropout, GAUSSIAN: self.gaussian, MIXTURE: self.mixture}


def _recipe(epochs: int, widths: tuple[int, ...], ordinary_epochs: int) -> BackpropRecipe:
    bayes = tb.VI(epochs=epochs, optimizer=tb.Adam(3e-3), estimator="weights", kl_weight=1.0)
    sgd = tb.MAP(epochs=ordinary_epochs, optimizer=tb.SGD(0.3, momentum=0.0))
    curve = tb.VI(epochs=1500, batch_size=200, optimizer=tb.Adam(5e-3), draws=2, antithetic=True, kl_weight=1.0)
    single = Entry(tb.MAP(epochs=500, batch_size=100, optimizer=tb.Adam(3e-3)), tb.priors.Flat())
    narrow = math.exp(-6)
    return BackpropRecipe(
        plain=Entry(sgd, tb.priors.Flat()),
        dropout=Entry(sgd, tb.priors.Flat(), dropout=0.5),
        gaussian=Entry(bayes, tb.priors.Normal(1.0)),
        mixture=Entry(replace(bayes, initial_scale=narrow), tb.priors.NormalMixture((1.0, narrow), (0.25, 0.75))),
        regression=Regression(Entry(curve, tb.priors.NormalMixture((1.5, 0.3), (0.75, 0.25))), single),
        widths=widths,
    )


def run(recipe: BackpropRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return `shares`; `table`: width -> method -> what `scores` returns; `regression`: what `on_the_curve` returns."""
    table: dict[str, dict[str, Any]] = {str(width): {} for width in recipe.widths}
    for width in recipe.widths:
        for name, entry in recipe.entries.items():
            home = directory / f"{width}_{name.replace(' ', '_')}"
            score = partial(_fit_and_score, recipe, entry, width, seed=seed, home=home)
            table[str(width)][name] = load_or_compute(home.with_suffix(".json"), score)
    curve = load_or_compute(directory / "regression.json", on_the_curve, recipe.regression, seed=seed)
    return {"shares": list(recipe.shares), "table": table, "regression": curve}


@lru_cache(maxsize=1)
def _images(recipe: BackpropRecipe, seed: int) -> list[tb.data.Pair]:
    """Return training and test images, with pixels from 0 to `recipe.white`."""
    data, white = tb.data.load(recipe.data, train_size=recipe.train_size, seed=seed), recipe.white
    return [tb.data.Pair(data.standardise.inverse(x) * white, targets) for x, targets in (data.train, data.test)]


def _fit_and_score(recipe: BackpropRecipe, entry: Entry, width: int, *, seed: int, home: Path) -> dict[str, Any]:
    train, test = _images(recipe, seed)
    shape = tuple(train.inputs.shape[1:])
    network = tb.networks.mlp(shape, int(train.targets.max()) + 1, hidden=(width, width), dropout=entry.dropout)
    model = tb.Model(network.to(best_device()), tb.likelihoods.Categorical(), entry.prior)
    posterior: Any = tb.fit(model, train, entry.method, seed=seed, directory=home, resume=True, callbacks=())
    return scores(posterior, test, shares=recipe.shares, draws=recipe.draws, seed=seed)


def scores(
    posterior: tb.Gaussian | tb.Point, test: tb.data.Pair, *, shares: Sequence[float], draws: int, seed: int
) -> dict[str, Any]:
    """Return `error` and `nll` of the average, `mean_error` of the network of means, and what is left after pruning.

    Weights are removed in the order of |μ|/σ, of a single network |w|, lowest first. `pruned`: errors of the network
    of means without each share of its weights; `pruned_average`: those of the average over draws without them, all
    in %; `loudness`, of a posterior with a spread: the number of weights in each bin of 10 log₁₀(|μ|/σ).
    """

    def measured(source: tb.Posterior, count: int | None = None) -> tuple[float, float]:
        metrics = tb.evaluate(source, (test.inputs, test.targets), draws=count, seed=seed).metrics
        return 100 * (1 - metrics["accuracy"]), metrics["nll"]

    normal = isinstance(posterior, tb.Gaussian)
    means_MD = posterior.mean_MD if normal else posterior.weights_MD
    covariance: Any = getattr(posterior, "covariance", None)
    variance_MD = covariance.variance_MD if normal else torch.ones_like(means_MD)
    signal_D = means_MD[0].abs() / variance_MD[0].sqrt()
    masks = [kept(signal_D, share) for share in shares]
    pruned = [measured(tb.Point(posterior.model, means_MD * mask))[0] for mask in masks]
    error, nll = measured(posterior, draws if normal else None)
    of_means, _ = measured(tb.Point(posterior.model, means_MD))
    numbers: dict[str, Any] = {"error": error, "nll": nll, "mean_error": of_means, "pruned": pruned}
    if not normal:
        return numbers | {"pruned_average": pruned}
    averages = [tb.Gaussian(posterior.model, means_MD * mask, tb.linalg.Diagonal(variance_MD * mask)) for mask in masks]
    decibels = 10 * signal_D.double().clamp_min(1e-30).log10()
    counts = torch.histc(decibels.clamp(*LOUDNESS).cpu(), 120, *LOUDNESS).long().tolist()
    return numbers | {"pruned_average": [measured(average, draws)[0] for average in averages], "loudness": counts}


def kept(signal_D: torch.Tensor, share: float) -> torch.Tensor:
    """Return 0 for a share of the weights, those of the lowest signal, and 1 for the others; ties in their order."""
    mask_D = torch.ones_like(signal_D)
    mask_D[signal_D.argsort(stable=True)[: round(share * len(signal_D))]] = 0
    return mask_D


def curve(count: int, seed: int, *, of: Regression) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw rows (N, 1): x uniform, y = x + 0.3 sin(2π(x + ε)) + 0.3 sin(4π(x + ε)) + ε with ε ~ N(0, noise²)."""
    source = generator(Purpose.CURVE, seed)
    low, high = of.inside
    x = low + (high - low) * torch.rand(count, 1, generator=source, dtype=torch.float64)
    noise = of.noise * torch.randn(count, 1, generator=source, dtype=torch.float64)
    y = x + 0.3 * torch.sin(2 * torch.pi * (x + noise)) + 0.3 * torch.sin(4 * torch.pi * (x + noise)) + noise
    return x.float(), y.float()


def on_the_curve(recipe: Regression, *, seed: int) -> dict[str, Any]:
    """Return the rows `x`, `y`, the inputs `grid`, and `methods`: method -> `quartiles` (3, G) and their distance."""
    x, y = curve(recipe.rows, seed, of=recipe)
    grid = torch.linspace(*recipe.axis, recipe.places).unsqueeze(1)
    (low, high), margin = recipe.inside, recipe.margin
    near, far = (grid >= low) & (grid <= high), (grid <= low - margin + 1e-6) | (grid >= high + margin - 1e-6)
    methods: dict[str, Any] = {}
    for name, entry in ((MIXTURE, recipe.bayes), (NETWORK, recipe.network)):
        network = tb.networks.mlp((1,), 1, hidden=recipe.hidden)
        model = tb.Model(network, tb.likelihoods.Gaussian("learned"), entry.prior)
        posterior = tb.fit(model, (x, y), entry.method, seed=seed, callbacks=())
        draws = recipe.draws if isinstance(posterior, tb.Gaussian) else None
        predictive = tb.predict(posterior, grid, draws=draws, seed=seed)
        quartiles_QG = predictive.quantile(torch.tensor((0.25, 0.5, 0.75))).squeeze(-1)
        width_G = quartiles_QG[2] - quartiles_QG[0]
        methods[name] = {
            "quartiles": [rounded(line) for line in quartiles_QG],
            "inside": float(width_G[near.flatten()].mean()),
            "outside": float(width_G[far.flatten()].mean()),
        }
    return {"x": rounded(x), "y": rounded(y), "grid": rounded(grid), "methods": methods}


def summarise(results: Results) -> Findings:
    shares, widths = results[0]["shares"], list(results[0]["table"])
    rows = tidy([result["table"] for result in results], "width", "method", "metric", lists=("share",))
    # of a single network these repeat other metrics
    told = Rows(rows.frame.query("metric not in ('mean_error', 'pruned_average') or method in @BAYES"))
    spread = tidy([result["regression"]["methods"] for result in results], "curve", "metric", lists=("quartile", "x"))
    parts = [part for width in widths for part in _parts(rows.where(width=width), width, shares)]
    among, beyond = "among the training inputs over that beyond them", "beyond the training inputs over that among them"
    parts.append(below(f"curve: spread {among}, Bayes by backprop", 1 / _ratio(spread, MIXTURE), 1 / OPENED))
    parts.append(below(f"curve: spread {beyond}, single network", _ratio(spread, NETWORK), LEVEL))
    return Findings.of(parts, _tables(told, spread, shares), _pictures(rows, shares, results[0]["regression"]))


def _pictures(rows: Rows, shares: Sequence[float], curves: dict[str, Any]) -> Iterator[Picture]:
    for width in rows.names("width"):
        yield _pruning_picture(rows.where(width=width), width, shares)
    yield _curve_picture(curves)


def _ratio(spread: Rows, name: str) -> np.ndarray:
    """Return how many times as far apart the quartiles are beyond the training inputs as among them."""
    return spread.values(curve=name, metric="outside") / spread.values(curve=name, metric="inside")


def _parts(rows: Rows, width: str, shares: Sequence[float]) -> Iterator[Part]:
    def pruned(method: str, share: float) -> np.ndarray:
        return rows.values(method=method, metric="pruned", share=shares.index(share))

    for a, b in ((MIXTURE, PLAIN), (MIXTURE, GAUSSIAN), (DROPOUT, PLAIN)):
        yield below(f"{width} units: error of {a} below that of {b}", rows.less("method", a, b, metric="error"))
    for share, margin in MARGINS.items():
        said = f"{width} units: points of error that removing {100 * share:g} % of the weights costs"
        yield below(said, pruned(MIXTURE, share) - pruned(MIXTURE, 0.0), margin)
    said = f"{width} units: error without 95 % of the weights below that of SGD pruned by magnitude"
    yield below(said, pruned(MIXTURE, 0.95) - pruned(PLAIN, 0.95))


def _tables(rows: Rows, spread: Rows, shares: Sequence[float]) -> Iterator[Table]:
    labels: dict[Any, str] = {"error": "error, %", "mean_error": "error of the means, %", "nll": "NLL"}
    published = {"published error, %": lambda width, method: PUBLISHED.get(width, {}).get(method)}
    yield pivot(
        rows,
        ("width", "method"),
        "metric",
        keep=labels,
        heads=["units", "method"],
        beside=published,
        better="low",
        digits=dict.fromkeys([*labels.values(), *published], ".2f") | {"NLL": ".4f"},
        caption="Test images: mean over seeds ± standard error. Bayes by backprop predicts with the average over "
        "draws; the error of the means is that of the one network whose weights are the posterior means. Dropout "
        "predicts with all units. Published: Blundell et al. (2015), 600 epochs.",
    )
    for width in rows.names("width"):
        yield _pruned_table(rows.where(width=width), width, shares)
    keep = {"inside": "among the training inputs", "outside": "beyond them"}
    yield pivot(
        spread,
        "curve",
        "metric",
        keep=keep,
        labels=CURVES,
        beside={"ratio": lambda name: mean_and_error(_ratio(spread, name))},
        digits=dict.fromkeys(keep.values(), ".4f") | {"ratio": ".2f"},
        caption="Distance of the quartiles of the predicted target, averaged over inputs among the training inputs and "
        "at least 0.1 beyond them: mean over seeds ± standard error.",
    )


def _pruned_table(rows: Rows, width: str, shares: Sequence[float]) -> Table:
    networks: dict[Any, str] = {"pruned": "one network", "pruned_average": "average of draws"}
    table = pivot(
        rows.where(metric=list(networks)),
        ("method", "metric"),
        "share",
        heads=["removed", "predicts"],
        labels=networks | {index: f"{100 * share:g} %" for index, share in enumerate(shares)},
        digits=".2f",
        caption=f"{width} units: test error in % when a share of the weights is set to zero, mean over seeds ± "
        "standard error. With Bayes by backprop those of the lowest |μ|/σ go first, with SGD and dropout those of "
        "the lowest |w|. One network: that of the posterior means.",
    )
    return replace(table, rows=[*table.rows, ["published, 1200 units", "", *map(PUBLISHED_PRUNED.get, shares)]])


@house_style
def _pruning_picture(rows: Rows, width: str, shares: Sequence[float]) -> Picture:
    figure, methods = new_figure(7.4, 3.5), rows.names("method")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    below_share = right.twinx()
    places, handles = np.arange(len(shares)), {}
    for offset, (method, look) in enumerate(looks(methods).items()):
        errors = np.stack([rows.values(method=method, metric="pruned", share=index) for index in places], axis=1)
        at = places + 0.06 * (offset - (len(methods) - 1) / 2)  # side by side
        style = {"color": look.colour, "marker": look.marker, "linestyle": "-" if method in BAYES else (0, (4, 2))}
        handles[method] = left.errorbar(at, errors.mean(0), two_standard_errors(errors), linewidth=1.3, **style)
        if method in BAYES:
            _draw_loudness(right, below_share, rows.values("share", method=method, metric="loudness"), method, look)
    left.set_xticks(places, [f"{100 * share:g} %" for share in shares])
    left.set_yscale("log")
    ends = left.get_ylim()
    ticks = [tick for tick in (0.5, 1, 1.5, 2, 3, 5, 7, 10, 20, 30, 50, 90) if ends[0] <= tick <= ends[1]]
    left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    left.minorticks_off()
    left.set(xlabel="share of the weights removed", ylabel="test error (%), log axis")
    right.set(xlabel="signal to noise of a weight, 10 log₁₀(|μ|/σ) (dB)", ylabel="density (1/dB), thick")
    below_share.set(ylabel="share of the weights below, thin", ylim=(0, 1.02))
    below_share.grid(visible=False)
    percent_axis(below_share.yaxis)
    legend_above(figure, handles)
    return Picture(
        f"Pruning, {width} units",
        figure,
        "Left: test error without the weights of the lowest |μ|/σ (SGD and dropout: of the lowest |w|), mean over "
        "seeds with two standard errors; Bayes by backprop predicts with the one network of its posterior means. "
        "Right: where the weights of Bayes by backprop lie, and which share of them lies below; those below −40 dB, "
        "such as the weights of pixels that are always black, are in the share alone. Solid: scale mixture.",
    )


def _draw_loudness(axes: Any, share: Any, counts: np.ndarray, method: str, look: Any) -> None:
    edges = np.linspace(*LOUDNESS, len(counts) + 1)
    density = counts / counts.sum() / (edges[1] - edges[0])  # what lies beyond the ends is not drawn
    style: Any = {"color": look.colour, "linestyle": "-" if method == MIXTURE else (0, (4, 2))}
    axes.stairs(density[1:-1], edges[1:-1], linewidth=1.5, **style)
    share.plot(edges[1:], np.cumsum(counts) / counts.sum(), linewidth=0.8, **style)


@house_style
def _curve_picture(curves: dict[str, Any]) -> Picture:
    methods, grid = curves["methods"], curves["grid"]
    figure, handles = new_figure(7.2, 3.3), {}
    panels = figure.subplots(1, len(methods), sharey=True, squeeze=False)[0]
    for axes, (name, look) in zip(panels, looks(methods).items(), strict=True):
        low, middle, high = methods[name]["quartiles"]
        band = axes.fill_between(grid, low, high, color=look.colour, alpha=0.3, linewidth=0)
        handles.setdefault("between the quartiles", band)
        (handles["median"],) = axes.plot(grid, middle, color=INK, linewidth=1.3)
        (handles["training rows"],) = axes.plot(curves["x"], curves["y"], ".", color=INK, markersize=1.5, alpha=0.5)
        panel_title(axes, CURVES[name], look)
        axes.margins(x=0)
        axes.set_xlabel("input x")
    y = np.concatenate([curves["y"], *(line for lines in methods.values() for line in lines["quartiles"])])
    ends = max(y.min(), min(curves["y"]) - 1.5) - 0.1, min(y.max(), max(curves["y"]) + 2.2) + 0.1
    panels[0].set(ylabel="target y", ylim=ends)
    legend_above(figure, handles)
    caption = "Predicted target along the input, one seed: median, and between the quartiles the middle half of what is"
    return Picture("Regression", figure, f"{caption} expected.")


EXPERIMENT = Experiment(
    name="bayes_by_backprop",
    claim="Bayes by backprop with a scale mixture prior has a lower test error than SGD and than with a normal "
    "prior, three quarters of its weights and more can be removed at hardly any cost, and its predictions are "
    "uncertain where there were no data.",
    source="Blundell, Cornebise, Kavukcuoglu and Wierstra 2015, Weight uncertainty in neural networks, section 5",
    expected="Test errors on MNIST with two hidden layers of 400 units: SGD 1.83 %, dropout 1.51 %, normal prior "
    "1.82 %, scale mixture 1.36 %; with 98 % of the weights of 1,200 units removed 1.39 % instead of 1.24 % (the "
    "numbers on pruning are from memory).",
    differences="Bayes by backprop is fitted by Adam: plain SGD, as in the paper, leaves the scales of the posterior "
    "where they begin unless the training is very long. Every minibatch has the same part of the divergence, not "
    "2^(M−i) of it, and one draw; scales are parameterised by their logarithms and begin at 0.02, under the mixture "
    "at the scale of its narrow normal. Inputs are not dropped. The small scale has 400 units, and 20 epochs in the "
    "place of 600; SGD and dropout, which gain by more, have 50. For the regression the paper names neither network "
    "nor number of rows; here 100 + 100 units, 1,000 rows and noise of a learned scale.",
    recipes={"small": _recipe(20, (400,), 50), "paper": _recipe(600, (400, 800), 600)},
    cost={
        "small": "seven to nine minutes of one core for a seed",
        "paper": "at 400 units 1.6 hours of one core, at 800 units 4 to 5 hours (estimates from the cost of a step); "
        "it has not been run",
    },
    run=run,
    summarise=summarise,
    headline=Headline("test error, %", ("error, %",), where=("400",), published="published error, %"),
)
