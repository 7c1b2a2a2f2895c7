"""Fast geometric ensembling: an ensemble for the price of one network (Garipov et al. 2018; Huang et al. 2017).

Independent networks, FGE and snapshot ensembles are compared at budgets of one, two and three units, where a unit is
the number of epochs that one network needs. What FGE spends on no second network it spends on walking along a valley of
the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchbayes as tb
from torchbayes.methods.cycles.base import kept
from torchbayes.methods.schedules import Progress
from torchbayes.report import Picture, Table, figures, looks
from torchbayes.report.style import INK, QUIET, house_style, legend_above, new_figure
from torchbayes_experiments import (
    Experiment,
    Findings,
    Headline,
    Part,
    Results,
    Rows,
    below,
    load_or_compute,
    pivot,
    tidy,
)
from torchbayes_experiments.shared.classifiers import METRICS, classifier, mean_metrics, metrics_of

INDEPENDENT, FAST, SNAPSHOTS = KINDS = ("independent networks", "FGE", "snapshot ensemble")
PUBLISHED = {  # Garipov et al. 2018, CIFAR-100: accuracy in per cent at 1, 2 and 3 units
    "VGG-16": {INDEPENDENT: (72.5, 74.8, 75.6), FAST: (74.6, 76.1, 76.6)},
    "PreResNet-164": {INDEPENDENT: (78.4, 80.5, 81.6), FAST: (80.3, 81.3, 81.7)},
    "WRN-28-10": {INDEPENDENT: (80.8, 82.4, 83.0), FAST: (82.3, 82.9, 83.2)},
}


@dataclass(frozen=True)
class FastRecipe:
    """Settings of the three kinds of ensemble. A unit of budget is one run of `epochs`."""

    data: str = "fashion_mnist"
    network: str = "lenet"
    train_size: int | None = 10_000  # number of training rows, drawn with seed 0; None for all
    units: int = 3  # M, the largest budget: runs of each kind
    # standard deviation of every weight's normal prior; s² = 1/(λN) for weight decay λ on N rows
    prior_scale: float = 0.2
    epochs: int = 40  # of a unit: what one network needs, on its published schedule
    batch_size: int = 128
    # of all kinds; the rate of an independent network falls to 1 % of lr
    optimizer: tb.SGD = tb.SGD(lr=0.05, momentum=0.9)  # noqa: RUF009  (frozen)
    burn_in: float = 0.7  # share of an FGE run before its cycles
    cycle: int | None = 2  # epochs of a cycle of FGE; None for a tenth of what follows burn-in
    high_lr: float = 0.05  # highest rate of FGE's cycles
    low_lr: float = 0.005  # lowest rate of FGE's cycles
    cycles: int = 5  # cosine cycles of a run of snapshots
    test_rows: int | None = None  # number of test images, the first ones; None for all
    largest_error: float = 0.11  # of an independent network on the test images, in a fair comparison
    # how the runs are computed; fixed, because a plan chosen by measurement may round differently in each run
    plan: str = "native"

    def independent(self) -> tb.MAP:
        return tb.MAP(self.units, self.epochs, self.batch_size, self.optimizer, tb.PiecewiseLinear(), self.plan)

    def fast(self) -> tb.FGE:
        cycles = (self.cycle, self.burn_in, self.high_lr, self.low_lr)
        return tb.FGE(self.units, self.epochs, self.batch_size, self.optimizer, *cycles, plan=self.plan)

    def snapshots(self) -> tb.Snapshots:
        return tb.Snapshots(self.units, self.epochs, self.batch_size, self.optimizer, self.cycles, plan=self.plan)


PAPER = FastRecipe(
    data="cifar10",
    network="preresnet20",
    train_size=None,
    prior_scale=(3e-4 * 50_000) ** -0.5,
    epochs=200,
    optimizer=tb.SGD(lr=0.1, momentum=0.9),
    burn_in=0.8,
    low_lr=0.01,
    largest_error=0.18,
    plan="loop",
)


def run(recipe: FastRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Return `kinds`: kind -> what `scores` returns; `path`: what `path_of` returns; `largest_error` of the recipe.

    All kinds start from the same initialisations; `independent`, in `path`, are metrics of the first such network.
    """
    data = tb.data.load(recipe.data, train_size=recipe.train_size)
    prior = tb.priors.Normal(recipe.prior_scale)
    model = classifier(recipe.network, data.input_shape, data.num_classes, prior=prior)
    test = tb.data.Pair(*(rows[: recipe.test_rows] for rows in data.test))
    methods = {INDEPENDENT: recipe.independent(), FAST: recipe.fast(), SNAPSHOTS: recipe.snapshots()}
    averages: dict[str, tb.Predictive] = {}
    for kind, method in methods.items():
        home = directory / kind.replace(" ", "_")
        watch = () if kind == SNAPSHOTS else (watched(model, test, home / "epochs"),)
        posterior = tb.fit(model, data.train, method, seed=seed, directory=home, resume=True, callbacks=watch)
        averages[kind] = tb.predict(posterior, test.inputs)
    alone, moving = (seen(directory / kind.replace(" ", "_") / "epochs") for kind in (INDEPENDENT, FAST))
    return {
        "kinds": {kind: scores(average, test.targets, recipe.units) for kind, average in averages.items()},
        "path": path_of(averages[FAST], test.targets, recipe.fast(), ends=moving) | {"independent": alone},
        "largest_error": recipe.largest_error,
    }


def watched(model: tb.Model, test: tb.data.Pair, folder: Path) -> Callable[[tb.Event], None]:
    """Return a callback that writes the metrics of the first run's network after every epoch, and keeps the files."""

    def callback(event: tb.Event) -> None:
        def compute() -> dict[str, Any]:
            buffers_M = {name: buffer[:1] for name, buffer in event.state.buffers.items()}
            first = tb.Point(model, event.state.weights_MD[:1], buffers_M=buffers_M or None, statistics_known=True)
            metrics = metrics_of(tb.predict(first, test.inputs), test.targets)
            return {"epoch": event.epoch, "step": event.step, **metrics}

        load_or_compute(folder / f"{event.epoch:04}.json", compute)

    return callback


def seen(folder: Path) -> list[dict[str, Any]]:
    """Return what `watched` wrote, in the order of the epochs."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]


def path_of(
    average: tb.Predictive, targets: torch.Tensor, method: tb.FGE, *, ends: Sequence[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return records with an `epoch` along the first run of FGE; row s of its average is of run s mod M.

    `rates`: the learning rate; `ends`: metrics at the end of every epoch; `kept`: those of the networks kept;
    `average`: those of the average of all networks kept until then.
    """
    per_epoch, total = ends[0]["step"], ends[-1]["step"]
    steps = np.unique(np.linspace(0, total - 1, 20 * len(ends) + 1).round().astype(int)).tolist()
    epochs = [step / per_epoch for step in kept(method, total, per_epoch)]
    rows = range(0, average.draws, method.members)
    rates = [method.rate(Progress(step, total, per_epoch)) for step in steps]
    return {
        "rates": [{"epoch": (step + 1) / per_epoch, "lr": rate} for step, rate in zip(steps, rates, strict=True)],
        "ends": list(ends),
        "kept": [{"epoch": e, **metrics_of(average, targets, [row])} for e, row in zip(epochs, rows, strict=True)],
        "average": [{"epoch": e, **metrics_of(average, targets, [*rows[: k + 1]])} for k, e in enumerate(epochs)],
    }


def scores(average: tb.Predictive, targets: torch.Tensor, runs: int) -> dict[str, Any]:
    """Return the metrics of one kind at every budget, and of its networks alone; row s is of run s mod M.

    `networks`: kept in a run; `budgets`: of 1, 2, ..., M runs, the mean over all choices of so many; `last`: of the
    last network of a run, and `each`: of a network, means over runs; `within`, `between`: see `disagreements`.
    """
    rows = range(average.draws)

    def mean(choices: Sequence[Sequence[int]]) -> dict[str, float]:
        return mean_metrics([metrics_of(average, targets, [*choice]) for choice in choices])

    within, between = disagreements(average.outputs_SBK.argmax(-1), runs)
    return {
        "networks": average.draws // runs,
        "budgets": [
            mean([[row for row in rows if row % runs in chosen] for chosen in combinations(range(runs), budget)])
            for budget in range(1, runs + 1)
        ],
        "last": mean([[row] for row in rows[-runs:]]),
        "each": mean([[row] for row in rows]),
        "within": within,
        "between": between,
    }


def disagreements(labels_SB: torch.Tensor, runs: int) -> tuple[float | None, float | None]:
    """Return on which share of the images two networks name different classes, mean over pairs of one run, and of two.

    Network s is of run s mod M; None where there is no such pair.
    """
    shares: dict[bool, list[float]] = {True: [], False: []}
    for first, second in combinations(range(len(labels_SB)), 2):
        share = (labels_SB[first] != labels_SB[second]).to(torch.float64).mean()
        shares[first % runs == second % runs].append(float(share))
    within, between = (float(np.mean(shares[same])) if shares[same] else None for same in (True, False))
    return within, between


def summarise(results: Results) -> Findings:
    budgets = [
        {kind: dict(enumerate(scores["budgets"], 1)) for kind, scores in result["kinds"].items()} for result in results
    ]
    rows = tidy(budgets, "kind", "budget", "metric").only(kind=KINDS)
    return Findings.of(_parts(results, rows), _tables(results, rows), _pictures(results, rows))


def _pictures(results: Results, rows: Rows) -> Iterator[Picture]:
    panels = {
        label: {kind: scale * values for kind, values in rows.where(metric=metric).stacked("kind", "budget").items()}
        for metric, label, scale in (("accuracy", "accuracy (%)", 100), ("nll", "NLL (nats)", 1))
    }
    places, label = [*map(str, rows.names("budget"))], "budget (units: the epochs of one network)"
    yield Picture(
        "Equal budgets",
        figures.measure_curves(panels, places, label=label),
        "Accuracy and NLL on the test images of the average of all networks that a budget gives.",
    )
    yield _path_picture(results[0]["path"])


def _parts(results: Results, rows: Rows) -> Iterator[Part]:
    signs, budgets = {"accuracy": -100, "nll": 1}, rows.names("budget")  # of losses
    better = {"accuracy": "a higher accuracy (points)", "nll": "a lower NLL"}
    error, most = 1 - rows.values(kind=INDEPENDENT, budget=1, metric="accuracy"), 100 * results[0]["largest_error"]
    yield below(f"the error of an independent network is at most {most:g} %", 100 * error, most, precondition=True)
    behind = {
        (metric, budget): sign * rows.less("kind", FAST, INDEPENDENT, budget=budget, metric=metric)
        for metric, sign in signs.items()
        for budget in budgets
    }
    for (metric, budget), loss in behind.items():
        yield below(f"budget {budget}: FGE has {better[metric]} than independent networks", loss)
    for metric, label in (("accuracy", "accuracy"), ("nll", "NLL")):
        statement = f"the advantage of FGE in {label} is smaller at budget {budgets[-1]} than at 1"
        yield below(statement, behind[metric, budgets[0]] - behind[metric, budgets[-1]])
    for metric, sign in signs.items():
        last = np.array([result["kinds"][FAST]["last"][metric] for result in results])
        gained = sign * (rows.values(kind=FAST, budget=1, metric=metric) - last)
        yield below(f"a run of FGE has {better[metric]} than its last network", gained)


def _tables(results: Results, rows: Rows) -> Iterator[Table]:
    def scored(some: Rows, levels: Sequence[str], accuracy: str, title: str, caption: str) -> Table:
        labels, scale, digits = {"accuracy": accuracy}, {"accuracy": 100}, {accuracy: ".2f", "NLL": ".4f", "ECE": ".4f"}
        table = pivot(some, levels, "metric", keep=METRICS, labels=labels, scale=scale, digits=digits, caption=caption)
        return replace(table, title=title)

    runs = rows.frame["kind"].map({kind: results[0]["kinds"][kind]["networks"] for kind in KINDS})
    counted = Rows(rows.frame.assign(networks=rows.frame["budget"] * runs)).only(budget=rows.names("budget"))
    caption = (
        "Averages of all networks that a budget gives, on the test images: mean over seeds ± standard error. At a "
        "budget of fewer runs than were made the score is the mean over all choices of so many."
    )
    yield scored(counted, ("kind", "budget", "networks"), "accuracy (%)", "Equal budgets", caption)
    apart = rows.minus("kind", [(FAST, INDEPENDENT), (FAST, SNAPSHOTS), (SNAPSHOTS, INDEPENDENT)])
    caption = (
        "Paired differences at equal budgets: mean over seeds ± standard error. The first of the two is better where "
        "the accuracy is above zero, and NLL and ECE are below."
    )
    apart = Rows(apart.frame.rename(columns={"kind": "difference"}))
    yield scored(apart, ("difference", "budget"), "accuracy, points", "Differences", caption)
    yield _run_table(results)
    units = ("1 unit", "2 units", "3 units")
    yield Table(
        ["network", "kind", *units],
        [[network, kind, *values] for network, kinds in PUBLISHED.items() for kind, values in kinds.items()],
        "Published accuracies on CIFAR-100, in per cent (Garipov et al. 2018), for comparison.",
        formats=dict.fromkeys(units, ".1f"),
        title="Published",
    )


def _run_table(results: Results) -> Table:
    digits = {"accuracy of the last, %": ".2f", "accuracy of each, %": ".2f", "NLL of the last": ".4f"}
    digits |= {"NLL of each": ".4f", "disagreement within a run, %": ".2f", "disagreement between runs, %": ".2f"}

    def numbers(kind: Mapping[str, Any]) -> dict[str, float | None]:
        last, each = kind["last"], kind["each"]
        shares = [None if kind[where] is None else 100 * kind[where] for where in ("within", "between")]
        scores = [100 * last["accuracy"], 100 * each["accuracy"], last["nll"], each["nll"]]
        return dict(zip(digits, [*scores, *shares], strict=True))

    table = pivot(
        tidy([{kind: numbers(result["kinds"][kind]) for kind in KINDS} for result in results], "kind", "number"),
        "kind",
        "number",
        keep=list(digits),
        caption="Networks by themselves: the last that a run keeps, and the mean over all. Two networks disagree on "
        "the test images for which they name different classes: mean over pairs of one run, and of two runs. Mean over "
        "seeds ± standard error.",
        digits=digits,
    )
    return replace(table, title="Single networks")


@house_style
def _path_picture(path: Mapping[str, Results]) -> Picture:
    """Draw the learning rate of a run of FGE above, and test errors below."""

    def errors(records: Results) -> tuple[list[float], list[float]]:
        return [each["epoch"] for each in records], [100 * (1 - each["accuracy"]) for each in records]

    figure = new_figure(6.4, 4.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
    colour, alone = looks([FAST])[FAST].colour, looks([INDEPENDENT, FAST])[INDEPENDENT].colour
    epochs, rates = zip(*((each["epoch"], each["lr"]) for each in path["rates"]), strict=True)
    top.plot(epochs, rates, color=colour, linewidth=1.2)
    top.set(ylabel="learning rate", ylim=(0, None))
    moving = sorted([*path["ends"], *path["kept"]], key=lambda each: each["epoch"])
    circles = {"marker": "o", "markerfacecolor": "white", "linestyle": "", "markersize": 5}
    lines = {
        "network of FGE": (moving, {"color": colour, "linewidth": 1.0, "alpha": 0.75}),
        "kept": (path["kept"], {"color": colour, **circles}),
        "average of those kept": (path["average"], {"color": INK, "marker": "s", "markersize": 4, "linewidth": 1.9}),
        "independent network": (path["independent"], {"color": alone, "linewidth": 1.2, "linestyle": (0, (4, 2))}),
    }
    handles = {label: bottom.plot(*errors(records), **style)[0] for label, (records, style) in lines.items()}
    for axes in (top, bottom):
        for each in path["kept"]:
            axes.axvline(each["epoch"], color=QUIET, linewidth=0.6, linestyle=(0, (1, 2)), zorder=1)
    bottom.set(xlabel="epochs", ylabel="test error (%)", xlim=(0, path["ends"][-1]["epoch"] + 0.2))
    # the axis ends where the cycles need, and two epochs before them: the first epochs are far above it
    since = path["kept"][0]["epoch"] - 2
    shown = [each for name in ("ends", "kept", "independent") for each in path[name] if each["epoch"] >= since]
    bottom.set_ylim(top=1.05 * max(errors(shown)[1]))
    bottom.locator_params(axis="x", integer=True)
    legend_above(figure, handles)
    return Picture(
        "The path of a run",
        figure,
        "The first run of FGE of the first seed: its learning rate, and the test error of the network that moves, "
        "at the ends of epochs and where a network is kept (circles), and of the average of all kept until then; "
        "and the error of an independent network that began at the same weights. The first epochs may lie above "
        "the axis.",
    )


EXPERIMENT = Experiment(
    name="fast_ensembling",
    claim="At budgets of one, two and three times the epochs of one network, fast geometric ensembles have a higher "
    "accuracy and a lower NLL than independent networks, the less so the larger the budget; and the average of a run "
    "beats its last network.",
    source="Garipov, Izmailov, Podoprikhin, Vetrov and Wilson 2018, Loss surfaces, mode connectivity, and fast "
    "ensembling of DNNs",
    expected="Accuracy on CIFAR-100 at 1, 2 and 3 units of 200 epochs: VGG-16 74.6, 76.1 and 76.6 %, and 72.5, 74.8 "
    "and 75.6 % of independent networks; PreResNet-164 80.3, 81.3 and 81.7 %, and 78.4, 80.5 and 81.6 %. The table has "
    "no NLL.",
    differences="No data augmentation; FGE goes from the optimiser's rate to the highest one of its cycles by the "
    "linear schedule of burn-in, where the paper takes a network from four fifths of an ordinary run. The small scale "
    "has LeNet on 10,000 images of Fashion-MNIST in the place of VGG-16, ResNets and CIFAR-100, units of 40 epochs, of "
    "which the cycles take three tenths, not a fifth. The paper scale has PreResNet-20 and CIFAR-10. Scores at a "
    "budget of one or two units are means over all choices of so many out of the three runs.",
    recipes={"small": FastRecipe(), "paper": PAPER},
    cost={
        "small": "eight to nine minutes of one core",
        "paper": "nine runs of PreResNet-20 of 200 epochs: it has not been run",
    },
    run=run,
    summarise=summarise,
    headline=Headline("test NLL at the budget of one network", ("NLL",), where=("1",)),
)
