"""The page about one fit: what was fitted to what, its metrics on the test rows, and its training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from torch import Tensor

from torchbayes.assess.baselines import baselines, described, r_squared, warnings_of
from torchbayes.assess.columns.dependence import importance
from torchbayes.assess.columns.table import TablePredictor, predictor_of
from torchbayes.assess.evaluate import Evaluation, evaluate
from torchbayes.assess.intervals import Numbers, predicted_numbers
from torchbayes.catalogue.config import CONFIG, read_config
from torchbayes.catalogue.methods import classes, entry_with
from torchbayes.catalogue.problem import Setup
from torchbayes.data import Data
from torchbayes.driver.log import read_log
from torchbayes.posteriors import Posterior
from torchbayes.posteriors.functions import Functions
from torchbayes.predictive.linearised import preferred
from torchbayes.predictive.predict import Source
from torchbayes.report import figures
from torchbayes.report.columns import dependence, importance_table, left_out, uncertain_table
from torchbayes.report.evaluation import Section, class_names, class_rows, classification, regression, transforms
from torchbayes.report.html import Picture, save_pictures, write_report
from torchbayes.report.live import Judged, content_of, number_rows
from torchbayes.report.surfaces import band_over, surface_over
from torchbayes.report.tables import Table
from torchbayes.report.words import capital, chosen_by_rows, chosen_scales, likelihood_of, prior_of, with_settings

_LOGGED = {"epoch": ("nll", "loss"), "step": ("log_likelihood", "log_density")}  # logged by optimisers, by samplers


@dataclass(frozen=True)
class Fitted:
    """A fit, judged on rows that it has not seen."""

    label: str  # of the method
    data: Data
    posterior: Posterior
    functions: Functions | Source  # what predicts
    inputs: Tensor  # of the test rows, as the model takes them
    evaluation: Evaluation  # of the test rows
    baselines: Mapping[str, Evaluation]  # of predictors that need no network, by name, on the same rows
    numbers: Numbers | None  # predicted and observed numbers; None for classes
    table: TablePredictor | None  # where rows are those of a table


@dataclass(frozen=True)
class FittedRun(Fitted):
    """A fit of the command line."""

    run: Path  # its directory
    setup: Setup
    settings: Mapping[str, Any]  # its configuration
    records: list[dict[str, Any]]  # its log

    @property
    def method(self) -> Mapping[str, Any]:
        """Settings of the method."""
        return self.settings["method"].get("init_args") or {}


def judged(
    label: str,
    data: Data,
    posterior: Posterior,
    *,
    functions: Functions | Source,
    rows: Any,
    target_scale: float,
    table: TablePredictor | None,
) -> Fitted:
    """Judge a fit on its test rows, a pair as its model takes it; baselines take those of the data."""
    evaluation = evaluate(functions, rows, target_scale=target_scale)
    numbers = predicted_numbers(functions, rows) if evaluation.probs is None else None
    others = baselines(posterior.model, data.train, data.test, target_scale=target_scale)
    return Fitted(label, data, posterior, functions, rows[0], evaluation, others, numbers=numbers, table=table)


def label_of(kind: type | str, posterior: Posterior) -> str:
    """Return the label of a method in the catalogue, or the name of its class."""
    known = classes().get(kind) if isinstance(kind, str) else kind
    entry = None if known is None else entry_with(known, posterior.members)
    return entry.label if entry is not None else kind if isinstance(kind, str) else kind.__name__


def evaluated(run: Path, setup: Setup, posterior: Posterior, *, draws: int | None = None, seed: int = 0) -> FittedRun:
    """Evaluate a fit on its test rows.

    `draws` functions are drawn, a multiple of the members; if None, the posterior's default, and Laplace is linearised.
    """
    functions, data, settings = preferred(posterior, draws, seed=seed), setup.data, read_config(run / CONFIG)
    module, _, name = str(settings["method"]["class_path"]).rpartition(".")
    label = label_of(name, posterior) if module == "torchbayes" else name
    fitted = judged(
        label, data, posterior, functions=functions, rows=tuple(data.test), target_scale=setup.target_scale,
        table=predictor_of(functions, data),
    )  # fmt: skip
    return FittedRun(**vars(fitted), run=run, setup=setup, settings=settings, records=read_log(run))


_MEANINGS = {
    "accuracy": ("higher", "share of rows whose most probable class is the true one"),
    "nll": ("lower", "negative log likelihood (nats per row): confident mistakes cost most"),
    "brier": ("lower", "squared distance of the probabilities to what happened, 0 to 2"),
    "ece": ("lower", "how far confidence and accuracy are apart, in 15 bins of equal width"),
    "ece_mass": ("lower", "the same, in 20 bins of equally many rows"),
    "entropy": (None, "mean doubt of the predictions (nats); {most:.3g} if all classes were equally likely"),
    "mutual_information": (None, "what of it the drawn functions disagree about, and more data would remove"),
    "aurc": ("lower", "mean error rate of the most confident rows, over all shares of the rows that may be kept"),
    "nll_gaussian": ("lower", "the same, of Gaussians with the predicted means and variances"),
    "rmse": ("lower", "root mean square error of the predicted means, in {unit}"),
    "mae": ("lower", "mean absolute error of the predicted means, in {unit}"),
    "R²": ("higher", "share of the variance of these targets that the predicted means explain"),
    "crps": ("lower", "distance of the predicted distribution to the target, in {unit}"),
    "coverage": ("near 0.95", "share of targets inside their central 95 % interval"),
}


def metric_table(fitted: Fitted) -> Table:
    """Return the metrics on the test rows, each with its meaning and which way is better."""
    evaluation, data, rows = fitted.evaluation, fitted.data, []
    intervals = evaluation.intervals() if len(evaluation.log_prob) > 1 else {}
    values = _with_r_squared(evaluation)
    others = {name: _with_r_squared(other) for name, other in fitted.baselines.items()}
    largest_entropy = math.nan if evaluation.probs is None else math.log(evaluation.probs.shape[-1])
    for name, value in values.items():
        better, meaning = _MEANINGS.get(name, (None, ""))
        if name == "mutual_information" and not (
            isinstance(fitted.functions, Functions) and fitted.functions.draws > 1
        ):
            meaning = (
                "what of it the averaged networks disagree about; 0 where there is one, or one mode in closed form"
            )
        if name == "nll" and fitted.numbers is not None:
            meaning = "negative log density of the targets (nats per row): confident mistakes cost most"
        ends = "{:.4g} to {:.4g}".format(*intervals[name]).replace("-", "−") if name in intervals else None
        meaning = meaning.format(most=largest_entropy, unit=data.target_unit)
        rows.append([name, value, ends, *(other.get(name) for other in others.values()), better or "–", meaning])
    return Table(
        ["metric", "value", "95 % interval", *others, "better", "meaning"],
        rows,
        f"{len(evaluation.log_prob):,} test rows; intervals by the Bayesian bootstrap over them. {described(others)}",
        formats=dict.fromkeys(["value", *others], ".4f"),
    )


def _with_r_squared(evaluation: Evaluation) -> dict[str, float]:
    """Return the metrics, with R² after the mean absolute error where there are numbers."""
    explained = r_squared(evaluation)
    values: dict[str, float] = {}
    for name, value in evaluation.metrics.items():
        values[name] = value
        if name == "mae" and explained is not None:
            values["R²"] = explained
    return values


def lead(fitted: FittedRun) -> list[str]:
    """Return paragraphs on what was fitted to what, how it predicts, and its known problems."""
    setup, posterior, problem = fitted.setup, fitted.posterior, fitted.setup.problem
    data = setup.data
    task = f"a classification into {data.num_classes} classes" if data.num_classes else f"a {data.task}"
    source = data.source if data.source.startswith(data.name) else f"{data.name} ({data.source})"
    parts = [
        f"Data: {source}, {task} with {len(data.train.inputs):,} training and "
        f"{len(data.test.inputs):,} test rows. {' '.join([*data.notes, ''])}"
        f"Network: {with_settings(problem.network, problem.network_settings)}, {setup.model.layout.size:,} weights. "
        f"Likelihood: {likelihood_of(problem)}. Prior of the weights: {prior_of(problem)}."
        + (f" Temperature: {problem.temperature:g} (1 is Bayes)." if problem.temperature != 1 else ""),
        f"{_length(fitted)} {predicts(fitted)}",
    ]
    parts[-1] = " ".join(filter(None, [parts[-1], chosen_by_rows(fitted.run), chosen_scales(posterior)]))
    if posterior.problems:
        parts.append(f"Warning: this posterior should not be trusted: {'; '.join(posterior.problems)}.")
    parts += warnings_of(fitted.evaluation, fitted.baselines)
    if posterior.chain_length is not None:
        parts.append(f"Whether the chains have converged is what torchbayes diagnose {quote(str(fitted.run))} tells.")
    return parts


def _length(fitted: FittedRun) -> str:
    """Return a sentence on the run: how many members, how long, from where."""
    method, members = fitted.method, fitted.posterior.members
    unit = "chain" if "chains" in method else "mode" if fitted.settings.get("start") else "member"
    sentence = f"Method: {fitted.label}, {'one' if members == 1 else members} {unit}{'s' if members > 1 else ''}"
    sentence += f", {method['epochs']:,} epochs" if isinstance(method.get("epochs"), int) else ""
    sentence += f", {method['steps']:,} steps" if isinstance(method.get("steps"), int) else ""
    sentence += f", of which {method['burn_in']:,} are burn-in" if isinstance(method.get("burn_in"), int) else ""
    start = fitted.settings.get("start")
    return f"{sentence}{f', started at the fit in {start}' if start else ''}, seed {fitted.settings.get('seed', 0)}."


def predicts(fitted: Fitted) -> str:
    """Return a sentence on what the predictions average."""
    if not isinstance(fitted.functions, Functions):
        return "Predictions are those of the network linearised at the mode, in closed form."
    draws = fitted.functions.draws
    return "Predictions are those of one network." if draws == 1 else f"Predictions are averages over {draws} networks."


def sections(fitted: Fitted, *, along: bool = True) -> Section:
    """Return tables and pictures of the test rows and the columns of a table; `along` draws the mean along these."""
    data, label, numbers, table = fitted.data, fitted.label, fitted.numbers, fitted.table
    known = table is not None and len(data.test.targets) == len(table.rows)
    drops = importance(table, data.test.targets) if table is not None and known else {}
    methods = {label: Judged(fitted.evaluation, numbers, fitted.functions)}
    content = content_of(data, table if known else None, first=drops)
    if fitted.evaluation.probs is not None:
        tables, drawn, remarks = classification(label, data, fitted.evaluation, table=table)
        drawn = class_rows(methods, class_names(data, fitted.evaluation.probs), fitted.inputs, content=content) | drawn
    elif numbers is not None:
        tables, drawn, remarks = regression(label, data, numbers)
        if "predicted" in drawn:
            rows = number_rows(methods, data, fitted.inputs, content=content)
            drawn["predicted"] = replace(drawn["predicted"], live=rows)
        uncertain = None if table is None else uncertain_table(table, data, numbers)
        tables = tables if uncertain is None else [*tables, uncertain]
    else:
        tables, drawn = [], {}
        remarks = ["The targets are neither classes nor numbers of the shape of the predictions, so none are drawn."]
    tables, drawn = list(tables), dict(drawn) | transforms(label, fitted.evaluation)
    if drops and table is not None:
        tables.append(importance_table(drops))
        drawn |= dependence(label, data, table, drops=drops) if along else {}
    return Section(tables, drawn, [*remarks, *(left_out(data) if table is None else [])])


def run_sections(fitted: FittedRun) -> Section:
    """Return those of any fit, and pictures of an input space of one or two dimensions, and of the training."""
    data, numbers, whole = fitted.data, fitted.numbers, dict[str, Picture]()
    if numbers is not None and data.input_shape == (1,) and numbers.is_finite and numbers.mean.shape[1] == 1:
        whole["band"] = band_over(data, {fitted.label: fitted.functions})
    if fitted.evaluation.labels is not None and data.input_shape == (2,) and data.num_classes == 2:
        whole["surface"] = surface_over(data, {fitted.label: fitted.functions})
    tables, drawn, remarks = sections(fitted, along=not whole)
    drawn |= whole
    trained = _training(fitted)
    if trained is None:
        start = fitted.settings.get("start")
        remarks.append(
            "There is no curve of its training: "
            + (f"the fit began at {start}, which has a report of its own." if start else "its log has too few lines.")
        )
    else:
        drawn["training"] = trained
    return Section(tables, drawn, remarks)


def _training(fitted: FittedRun) -> Picture | None:
    """Return curves of what the log holds; None if there is no curve to draw."""
    for at, names in _LOGGED.items():
        keys = [name for name in names if sum(name in record for record in fitted.records) > 1]
        if keys:
            return _curves(fitted, keys, over=at)
    return None


def _curves(fitted: FittedRun, keys: list[str], *, over: str) -> Picture:
    sampler = over == "step"
    meaning = (
        "Chains that have settled wander around one level."
        if sampler
        else "The loss is the negative log density, with that of the prior, divided by the number of rows."
    )
    meaning_of_lines = " Thin: each of them; thick: their mean." if fitted.posterior.members > 1 else ""
    return Picture(
        "Along the chains" if sampler else "Training",
        figures.training_curves({fitted.label: fitted.records}, keys, x=over),
        f"{fitted.label} on the training rows. {meaning}{meaning_of_lines}",
        alt=f"Curves of {' and '.join(keys)} against the {over}.",
    )


def write_fit(directory: Path, fitted: FittedRun, also: Section | None = None) -> Path:
    """Write `report.html` and its pictures, replacing earlier ones, and another section first; return its path."""
    tables, drawn, remarks = run_sections(fitted)
    if also is not None:
        tables, drawn, remarks = [*also.tables, *tables], {**also.pictures, **drawn}, [*also.remarks, *remarks]
    return write_report(
        directory / "report.html",
        title=f"{capital(fitted.label)} on {fitted.setup.data.name}",
        lead="\n\n".join([*lead(fitted), " ".join(remarks)]),
        tables=[metric_table(fitted), *tables],
        figures=save_pictures(directory, drawn),
        settings=fitted.settings,
    )
