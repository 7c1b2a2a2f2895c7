"""Occam's razor by the evidence: width and prior scale of a network for regression (MacKay 1992, Immer et al. 2021).

    log p(D) ≈ log p(D|w*) + log [ p(w*) (2π)^{D/2} det(P)^{−1/2} ]

The second term is the log Occam factor; the factor is the fraction of the prior's volume that remains after the data.
Every network is trained to a mode under its own prior. Its noise scale is the one with the highest evidence: `tune`
proposes one at the mode, the network is trained again, and the step is halved if the evidence has not risen, because
`tune` does not know the curvature at the new mode. The evidence is that of one mode; log(2^H H!) for its mirror images
is reported beside it. Statements about the prior do not depend on that term, statements about the width do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import torchbayes as tb
from torchbayes.report import Picture, Table, looks
from torchbayes.report.style import INK, QUIET, house_style, new_figure
from torchbayes_experiments import Experiment, Findings, Headline, Results, below, load_or_compute, pivot, tidy
from torchbayes_experiments.shared.modes import Pair, climb_regression, laplace, log_symmetries
from torchbayes_experiments.streams import Purpose, mix
from torchbayes_experiments.verdicts import mean_and_error, ranks_agree, two_standard_errors

Grid = Mapping[str, np.ndarray]  # `widths` (A,), `scales` (B,), and numbers (A, B)
MARGIN = 0.05  # nats per row of test NLL that the evidence may lose against the best scale of the grid
_SMALLEST = 0.05  # a smaller step of the log noise scale is not taken


@dataclass(frozen=True)
class OccamRecipe:
    """The grid, and how long each of its networks is trained."""

    data: str = "uci_energy"  # a UCI regression set; seed s takes its split s
    widths: tuple[int, ...] = (2, 5, 10, 20, 50)  # numbers of hidden tanh units, in rising order
    # standard deviations of every weight's normal prior, in rising order
    scales: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    noise: float = 0.3  # initial noise scale, in standard deviations of the targets
    rounds: int = 8  # maximum number of noise scales tried
    steps: int = 200  # maximum number of steps of each climb
    tolerance: float = 0.05  # a climb ends where the predicted gain of a Gauss-Newton step is below this, in nats


@dataclass(frozen=True)
class Fitted:
    """A network at a mode under a prior and a noise scale."""

    posterior: tb.LaplacePosterior
    noise: float  # scale, in standard deviations of the targets
    promise: float  # predicted gain of a further Gauss-Newton step, in nats
    is_mode: bool  # False if the posterior reports that it is not at a mode

    @property
    def log_evidence(self) -> float:
        """Log evidence of the one mode, in nats."""
        return float(self.posterior.log_evidence()[0])


def run(recipe: OccamRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return `widths`, `scales`, and for each number that `scores` returns its values on the grid, (widths, scales)."""
    data = tb.data.load(recipe.data, split=seed % tb.data.num_splits(recipe.data))
    train, test = ((pair.inputs.double(), pair.targets.double()) for pair in (data.train, data.test))

    def compute(width: int) -> dict[str, Any]:
        start = mix(Purpose.GRID, seed, width)
        fits = [best_noise(recipe, train, width=width, scale=scale, seed=start) for scale in recipe.scales]
        return {"scores": [scores(fitted, test) for fitted in fits]}

    grid = [load_or_compute(directory / f"width_{w}.json", compute, w)["scores"] for w in recipe.widths]
    numbers = {key: [[each[key] for each in row] for row in grid] for key in grid[0][0]}
    return {"widths": list(recipe.widths), "scales": list(recipe.scales), **numbers}


def best_noise(recipe: OccamRecipe, data: Pair, *, width: int, scale: float, seed: int) -> Fitted:
    """Return a network at a mode, under the noise scale with the highest evidence among those tried."""

    def model(noise: float) -> tb.Model:
        network = tb.networks.mlp(data[0].shape[1], 1, hidden=(width,), activation="tanh").double()
        return tb.Model(network, tb.likelihoods.Gaussian(noise), tb.priors.Normal(scale))

    def at_mode(noise: float, start_D: Tensor) -> Fitted:
        known = model(noise)
        mode, promise = climb_regression(known, data, start_D, steps=recipe.steps, tolerance=recipe.tolerance)
        posterior, is_mode = laplace(known, data, mode)
        return Fitted(posterior, noise, promise, is_mode)

    def proposed(fitted: Fitted) -> float:
        """Return the step of the log noise scale that maximises the evidence at this mode, at most a factor of 2."""
        tuned = tb.tune(fitted.posterior, prior="model", noise=True)
        return float(np.clip(math.log(tuned.noise_scale), -math.log(2), math.log(2)))

    best = at_mode(recipe.noise, model(recipe.noise).starting_weights([seed])[0][0])
    step = proposed(best)
    for _ in range(recipe.rounds - 1):
        if abs(step) < _SMALLEST:
            break
        tried = at_mode(best.noise * math.exp(step), best.posterior.mean_MD[0])
        best, step = (tried, proposed(tried)) if tried.log_evidence > best.log_evidence else (best, step / 2)
    return best


def scores(fitted: Fitted, test: Pair) -> dict[str, float]:
    """Return the numbers of one network.

    `log_evidence` of one mode and `log_likelihood` at it; `symmetries`, log(2^H H!); `train_nll` at the mode, and
    `test_nll` and `test_rmse` of the linearised predictive, each per row; `effective`, the number of weights that the
    data determine, Σ (1 − Σ_ii / s²) (MacKay 1992); `noise`; `promise`; `is_mode`. Targets are standardised.
    """
    posterior = fitted.posterior
    metrics = tb.evaluate(tb.Linearised(posterior), test).metrics
    log_likelihood = float(posterior.log_likelihood_M[0])
    kept = posterior.gaussian.covariance.diagonal()[0] / posterior.model.prior.stds().square().double()
    return {
        "log_evidence": fitted.log_evidence,
        "log_likelihood": log_likelihood,
        "symmetries": log_symmetries(posterior.model.layout.sizes[1]),
        "train_nll": -log_likelihood / posterior.num_data,
        "test_nll": metrics["nll"],
        "test_rmse": metrics["rmse"],
        "effective": float((1 - kept).sum()),
        "noise": fitted.noise,
        "promise": fitted.promise,
        "is_mode": float(fitted.is_mode),
    }


def summarise(results: Results) -> Findings:
    seeds = [{name: np.array(values, dtype=np.float64) for name, values in r.items()} for r in results]
    parts = (
        below(each[0][0], [float(value) for _, value, _ in each], each[0][2], precondition=number == 0)
        for number, each in enumerate(zip(*map(_numbers, seeds), strict=True))
    )
    tables = (table(seeds) for table in (_width_table, _choice_table, _scale_table))
    return Findings.of(parts, tables, map(draw, [seeds]))


def at_best(grid: Grid, name: str, *, by: str = "log_evidence", highest: bool = True) -> np.ndarray:
    """Return a number at the prior scale that another one chooses for each width, (widths,)."""
    places = grid[by].argmax(1) if highest else grid[by].argmin(1)
    return np.take_along_axis(grid[name], places[:, None], 1)[:, 0]


def regret(grid: Grid, *, by: str, highest: bool) -> np.ndarray:
    """Return the test NLL at the scale that a number chooses, minus the lowest on the grid, (widths,)."""
    return at_best(grid, "test_nll", by=by, highest=highest) - grid["test_nll"].min(1)


def _numbers(grid: Grid) -> list[tuple[str, Any, float]]:
    """Return the statement of each part, the number of one seed, and the bound."""
    (low, *_, high), (narrow, *_, wide) = grid["scales"], grid["widths"]
    evidence, best, train = grid["log_evidence"], at_best(grid, "log_evidence"), at_best(grid, "train_nll")
    first, last = (np.max(evidence[:, end] - evidence[:, 1:-1].max(1)) for end in (0, -1))
    lost, occam = regret(grid, by="log_evidence", highest=True), best - at_best(grid, "log_likelihood")
    less = lost - regret(grid, by="train_nll", highest=False)
    ranks = ranks_agree(evidence.ravel(), grid["test_nll"].ravel())
    away = np.mean((grid["is_mode"] < 1) | (grid["promise"] > 1))
    nearest = "below the highest between, at the width where it is nearest"
    by_width = "rank correlation of width and training NLL, each width under the prior that the evidence chooses"
    return [
        ("share of networks that are not at a mode (warned, or 1 nat to gain by a Newton step)", away, 0.05),
        (f"evidence at prior scale {low:g} {nearest}", first, 0),
        (f"evidence at prior scale {high:g} {nearest}", last, 0),
        ("test NLL lost by choosing the prior scale by the evidence, mean over widths", lost.mean(), MARGIN),
        ("the same, minus what choosing it by the training NLL loses", less.mean(), 0),
        ("rank correlation of evidence and test NLL over the grid", ranks, -0.5),
        (by_width, ranks_agree(grid["widths"], train), -0.8),
        (f"log Occam factor of {wide:g} units below that of {narrow:g}", occam[-1] - occam[0], 0),
        (f"evidence of {wide:g} units below the highest of the narrower networks", best[-1] - best[:-1].max(), 0),
    ]


def _width_table(seeds: Sequence[Grid]) -> Table:
    names = {
        "log_evidence": "log evidence",
        "symmetries": "log(2^H H!)",
        "log_likelihood": "log likelihood",
        "effective": "effective weights",
        "noise": "noise",
        "train_nll": "train NLL",
        "test_nll": "test NLL",
        "test_rmse": "test RMSE",
    }
    widths = [int(width) for width in seeds[0]["widths"]]

    def chosen(width: int) -> str:
        scales = {float(grid["scales"][grid["log_evidence"][widths.index(width)].argmax()]) for grid in seeds}
        return ", ".join(f"{scale:g}" for scale in sorted(scales))

    best = [{name: dict(zip(widths, at_best(grid, name), strict=True)) for name in names} for grid in seeds]
    return pivot(
        tidy(best, "measure", "width"),
        "width",
        "measure",
        keep={"prior scale": "prior scale"} | names,
        beside={"prior scale": chosen},
        digits=dict.fromkeys(["log evidence", "log likelihood", "effective weights", "log(2^H H!)"], ".0f"),
        better={"log evidence": "high", "test NLL": "low", "test RMSE": "low"},
        caption="Each width under the prior scale that has the highest evidence (the scales of all seeds): mean over "
        "seeds ± standard error, targets standardised. The evidence is that of one mode.",
    )


def _choice_table(seeds: Sequence[Grid]) -> Table:
    rules = {
        "highest evidence": ("log_evidence", 1),
        "lowest training NLL": ("train_nll", -1),
        "lowest test NLL (not a rule)": ("test_nll", -1),
    }
    body = []
    shapes = {"prior scale, mean over widths": seeds[0]["test_nll"].shape, "prior scale and width": (1, -1)}
    for chosen, shape in shapes.items():
        for label, (name, sign) in rules.items():
            grids = [(sign * grid[name].reshape(shape), grid["test_nll"].reshape(shape)) for grid in seeds]
            nlls = [float(np.mean(np.take_along_axis(nll, by.argmax(1)[:, None], 1))) for by, nll in grids]
            body.append([chosen, label, mean_and_error(nlls)])
    return Table(
        ["chosen", "by", "test NLL"],
        body,
        "Test NLL per row of what a rule chooses: mean over seeds ± standard error. The lowest on the grid is there "
        "to compare with.",
    )


def _scale_table(seeds: Sequence[Grid]) -> Table:
    numbers = {"log_evidence": ("log evidence", ".0f"), "test_nll": ("test NLL", ".2f")}
    body = [
        [int(width), label, *(f"{value:{digits}}" for value in np.mean([grid[name][row] for grid in seeds], axis=0))]
        for row, width in enumerate(seeds[0]["widths"])
        for name, (label, digits) in numbers.items()
    ]
    heads = ["width", "", *(f"{scale:g}" for scale in seeds[0]["scales"])]
    return Table(heads, body, "Means over seeds on the whole grid, by prior scale.")


@house_style
def draw(seeds: Sequence[Grid]) -> Picture:
    """Draw evidence and NLL against prior scale and against width."""
    figure = new_figure(8.2, 6.0)
    grid = figure.subplots(2, 2, sharex="col")
    _scale_panels(grid[:, 0], seeds)
    _width_panels(grid[:, 1], seeds)
    grid[0, 0].set(title="each width, against the prior scale", ylabel="log evidence (nats)")
    grid[0, 1].set_title("each width under the prior scale of highest evidence")
    grid[1, 0].set(xlabel="standard deviation of the prior", ylabel="NLL per row (nats)")
    grid[1, 1].set_xlabel("hidden units")
    for axes, values in zip(grid[1], (seeds[0]["scales"], seeds[0]["widths"]), strict=True):
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    return Picture(
        "Evidence, width and prior",
        figure,
        "Left, against the prior's standard deviation, one line per width: log evidence, and NLL per row of the "
        "training set at the mode (dashed) and of the test set by the linearised predictive; dots mark the highest "
        "evidence of each width. Right, against width, under the prior with the highest evidence. The evidence is that "
        "of one mode, the dotted line adds log(2^H H!) for its mirror images. Mean over seeds; bars and bands, two "
        "standard errors. Targets are standardised.",
    )


def _scale_panels(column: Sequence[Any], seeds: Sequence[Grid]) -> None:
    import matplotlib as mpl
    from matplotlib.lines import Line2D

    widths, scales = seeds[0]["widths"], seeds[0]["scales"]
    means = {name: np.mean([g[name] for g in seeds], axis=0) for name in ("log_evidence", "train_nll", "test_nll")}
    dashes = (0, (3, 2))
    for place, width in enumerate(widths):
        colour = mpl.colormaps["plasma"](0.85 * place / max(len(widths) - 1, 1))
        best = means["log_evidence"][place].argmax()
        column[0].plot(scales, means["log_evidence"][place], color=colour, label=f"{width:g} units")
        column[1].plot(scales, means["test_nll"][place], color=colour)
        column[1].plot(scales, means["train_nll"][place], color=colour, linestyle=dashes, linewidth=1.0)
        for axes, name in zip(column, ("log_evidence", "test_nll"), strict=True):
            axes.plot(scales[best], means[name][place, best], "o", color=colour, markeredgecolor=INK)
    column[0].legend(loc="lower center")
    test, train = Line2D([], [], color=QUIET), Line2D([], [], color=QUIET, linestyle=dashes, linewidth=1.0)
    column[1].legend([test, train], ["test", "train"], loc="upper right", ncols=2)


def _width_panels(column: Sequence[Any], seeds: Sequence[Grid]) -> None:
    widths, drawn = seeds[0]["widths"], looks(["Laplace", "MAP", "ensemble"])

    def line(axes: Any, name: str, method: str, label: str) -> None:
        values, look = np.array([at_best(grid, name) for grid in seeds]), drawn[method]
        line_of = {"color": look.colour, "marker": look.marker, "linestyle": (0, (3, 2)) if method == "MAP" else "-"}
        axes.errorbar(widths, values.mean(0), two_standard_errors(values), label=label, **line_of)

    line(column[0], "log_likelihood", "MAP", "log likelihood at the mode")
    total = np.mean([at_best(g, "log_evidence") + at_best(g, "symmetries") for g in seeds], axis=0)
    colour = drawn["Laplace"].colour
    column[0].plot(widths, total, ":", color=colour, linewidth=1.2, label="log evidence + log(2ᴴ H!)")
    line(column[0], "log_evidence", "Laplace", "log evidence of one mode")
    line(column[1], "test_nll", "ensemble", "test")
    line(column[1], "train_nll", "MAP", "train")
    column[0].legend(loc="lower right")
    column[1].legend(loc="upper right")


EXPERIMENT = Experiment(
    name="evidence_occam",
    claim="The Laplace evidence of a network has a maximum inside the range of prior scales, and the scale it chooses "
    "predicts about as well as the best; with width the likelihood rises and the Occam factor falls.",
    source="MacKay 1992, A practical Bayesian framework for backpropagation networks; Immer, Bauer, Fortuin, Rätsch "
    "and Khan 2021, Scalable marginal likelihood estimation for model selection in deep learning",
    expected="Evidence and test error go together over priors and widths, and the evidence of networks larger than the "
    "data need falls or levels off while their training error goes on falling (figures of both papers; other "
    "data).",
    differences="UCI energy in the place of a robot arm or images; one prior scale for all weights; modes by damped "
    "Gauss-Newton steps and dense precisions, where Immer et al. optimise the prior during training with Kronecker "
    "factors.",
    recipes={
        "small": OccamRecipe(),
        "paper": OccamRecipe(widths=(2, 5, 10, 20, 50, 100, 200, 400), rounds=12, steps=1000),
    },
    cost={
        "small": "about three minutes on one core",
        "paper": "more widths and longer climbs, as no paper has these data: some hours on one core (an estimate)",
    },
    run=run,
    summarise=summarise,
    headline=Headline("test NLL, prior scale chosen by", ("test NLL",), where=("prior scale, mean over widths",)),
    unused=("starts",),
)
