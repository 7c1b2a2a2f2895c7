"""The commands that use a saved posterior: `evaluate`, `report`, `predict` and `tune`."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torchbayes as tb
from torchbayes.catalogue.problem import Setup
from torchbayes.checks import as_file
from torchbayes.cli.decisions import add_cost, cost_of, deciding, rule_of
from torchbayes.cli.options import add_draws, add_open, add_run, new_parser, parse, run_of
from torchbayes.cli.terminal import point_to, print_table, say
from torchbayes.posteriors.locks import folder_in
from torchbayes.predictive.linearised import preferred


def evaluate(argv: list[str]) -> None:
    """Evaluate a saved posterior on its test set, on rows of yours or on foreign images; or published predictions."""
    parser = new_parser(evaluate)
    add_run(parser)
    parser.add_argument(
        "--predictions", type=str | None, default=None, help="npz file with arrays `probs` (rows, classes) and `labels`"
    )
    parser.add_argument(
        "--data",
        type=str | None,
        default=None,
        help="a file or folder with inputs and targets, as those of the run; or a foreign set: how well it is told "
        "from the run's own test set",
    )
    add_draws(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parse(parser, argv)
    if (chosen["run"] is None) == (chosen["predictions"] is None):
        raise ValueError("say what to evaluate: the directory of a fit, or --predictions FILE.npz (one of them).")
    published = chosen["run"] is None
    metrics, others, said = (_published(Path(chosen["predictions"])), {}, "") if published else _saved(chosen)
    if chosen["json"]:
        print(json.dumps(metrics, indent=1))
        return
    from torchbayes.report import Table

    form = _form(value for each in (metrics, *others.values()) for value in each.values())
    rows = [[name, value, *(other.get(name) for other in others.values())] for name, value in metrics.items()]
    heads = ["metric", "value", *others]
    print_table(Table(heads, rows, said, formats=dict.fromkeys(heads[1:], form)))


def _form(values: Iterable[float]) -> str:
    """Return a number format for a table: four places, unless these hide small numbers or make large ones long."""
    sizes = [abs(value) for value in values if value != 0 and math.isfinite(value)]
    return ".4f" if not sizes or (min(sizes) > 1e-3 and max(sizes) < 1e5) else ".4g"


def _published(path: Path) -> dict[str, float]:
    # metrics of published predictions
    from zipfile import is_zipfile

    import numpy as np
    import torch

    from torchbayes.data.files import read_arrays

    if not is_zipfile(as_file(path)):
        raise ValueError(f"{path} is not an npz file.")
    probs, labels = read_arrays(path, "probs", "labels")
    if probs.dtype.kind != "f" or labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise ValueError(
            f"{path} must hold `probs` in floating point and `labels` as integers (rows,); got {probs.dtype} of shape "
            f"{probs.shape} and {labels.dtype} of shape {labels.shape}. Labels that are whole numbers can be written "
            f"with .astype(int)."
        )
    predictive, labels = tb.Predictive.from_probs(torch.from_numpy(probs)), labels.astype(np.int64)
    wrong = labels[(labels < 0) | (labels >= probs.shape[-1])]
    if len(wrong):
        raise ValueError(
            f"`labels` of {path} must lie in 0..{probs.shape[-1] - 1}, as `probs` has {probs.shape[-1]} columns; got "
            f"{wrong[0]}. Relabel those rows or leave them out."
        )
    return tb.evaluate(predictive, torch.from_numpy(labels)).metrics


def _saved(chosen: dict[str, Any]) -> tuple[dict[str, float], dict[str, Mapping[str, float]], str]:
    """Return metrics on the test set or on rows of the user, or of detection.

    Those of predictors that need no network follow, by name, and what to say of them.
    """
    from torchbayes.assess.baselines import baselines, described, warnings_of
    from torchbayes.catalogue.config import load_run
    from torchbayes.catalogue.loading import is_file

    setup, posterior = load_run(Path(chosen["run"]), trust=chosen["trust"])
    data, name = setup.data, chosen["data"]
    rows = tuple(data.test)
    if name is not None and is_file(name):
        rows, name = labelled(setup, Path(name)), None
    with setup.problem.threading():
        functions = preferred(posterior, chosen["draws"], seed=chosen["seed"])
        evaluation = tb.evaluate(functions, rows, target_scale=setup.target_scale)
    if name is None or name == data.name:
        others = baselines(setup.model, setup.data.train, rows, target_scale=setup.target_scale)
        said = " ".join(filter(None, [described(others), *warnings_of(evaluation, others)]))
        return _known(evaluation.metrics), {name: other.metrics for name, other in others.items()}, said
    from torchbayes.data import out_of_distribution

    foreign = out_of_distribution(data, name, seed=chosen["seed"])[name]
    if evaluation.scores is None:
        raise ValueError(f"foreign sets are for classifiers; {chosen['run']} is a {data.task}.")
    return tb.detection(evaluation.scores, tb.uncertainty(functions, foreign.to(setup.model.network.device))), {}, ""


def _known(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics without the mutual information of a single function or closed form, which is 0."""
    return {name: value for name, value in metrics.items() if name != "mutual_information" or value > 1e-12}


def labelled(setup: Setup, path: Path) -> tuple[Any, ...]:
    """Return the inputs and targets of a file of the user. Raises ValueError if it has no targets."""
    from torchbayes.data.user import read_new, repeated

    new = read_new(setup.data, path)
    if new.targets is None:
        why = next((f" {note}" for note in new.notes if note.startswith("No targets")), "")
        raise ValueError(
            f"{path} has no target in every row, so there is nothing to compare predictions with.{why} "
            f"Predict there: torchbayes predict RUN {shlex.quote(str(path))}."
        )
    for note in (*new.notes, *repeated(setup.data, new.inputs)):
        say(note)
    return new.inputs, new.targets


def report(argv: list[str]) -> None:
    """Write a page about a fit: what was fitted, how good it is on its test rows, how the training went."""
    from torchbayes.catalogue.config import CONFIG, load_run
    from torchbayes.report.decisions import decided
    from torchbayes.report.fit import evaluated, metric_table, write_fit

    parser = new_parser(report)
    add_run(parser)
    parser.add_argument("--directory", type=str | None, default=None, help="where the page goes; RUN/report")
    add_cost(parser)
    add_draws(parser)
    add_open(parser)
    chosen = parse(parser, argv)
    run = run_of(chosen, "what to report on")
    home = Path(chosen["directory"] or folder_in(run, "report"))
    if (home / CONFIG).exists():
        raise ValueError(f"{home} holds a run, whose own page would be lost. Choose another --directory.")
    cost = cost_of(chosen)
    setup, posterior = load_run(run, trust=chosen["trust"])
    rule = rule_of(run, setup, chosen)
    with setup.problem.threading():
        fitted = evaluated(run, setup, posterior, draws=chosen["draws"], seed=chosen["seed"])
        section = decided(fitted, cost, rule) if rule is not None or cost is not None else None
        page = write_fit(home, fitted, section)
    print_table(metric_table(fitted))
    for table in () if section is None else section.tables:
        print_table(table)
    point_to(page, opened=chosen["open"])


def _output_of(run: Path, named: str | None, *, overwrite: bool) -> Path:
    """Return the CSV file of predictions: the one that is named, or that of the run."""
    output = run / "predictions.csv" if named is None else Path(named)
    if output.suffix.lower() != ".csv" or output.is_dir():
        raise ValueError(f"`--output` must be the name of a CSV file, such as predictions.csv; got {str(output)!r}.")
    existing = [file for file in (output, output.with_suffix(".png")) if file.exists()]
    if named is not None and existing and not overwrite:
        raise ValueError(f"{existing[0]} is there already. Add --overwrite, or choose another --output.")
    return output


def predict(argv: list[str]) -> None:
    """Predict new inputs with a saved posterior: a CSV file, and a picture."""
    from torchbayes.catalogue.config import load_run
    from torchbayes.data.user import read_new
    from torchbayes.predictive.columns import Units
    from torchbayes.predictive.written import columns_of, write_columns
    from torchbayes.report.figures.predictions import new_rows
    from torchbayes.report.style import savefig

    parser = new_parser(predict)
    add_run(parser)
    parser.add_argument("new", nargs="?", default=None, help="a file or folder of inputs, such as the run's own")
    parser.add_argument("--output", type=str | None, default=None, help="the CSV file; RUN/predictions.csv")
    parser.add_argument("--overwrite", action="store_true", help="replace what --output names, and the picture there")
    parser.add_argument("--level", type=float, default=0.95, help="share of targets that an interval should hold")
    add_cost(parser)
    add_draws(parser)
    chosen = parse(parser, argv)
    if chosen["run"] is None or chosen["new"] is None:
        raise ValueError("say which run predicts what: torchbayes predict RUN INPUTS, such as new.csv.")
    output = _output_of(run := Path(chosen["run"]), chosen["output"], overwrite=chosen["overwrite"])
    setup, posterior = load_run(run, trust=chosen["trust"])
    new = read_new(setup.data, Path(chosen["new"]))
    units = Units(setup.data.classes, setup.data.target_standardise, chosen["level"])
    with setup.problem.threading():
        functions = preferred(posterior, chosen["draws"], seed=chosen["seed"])
        columns = columns_of(functions, new.inputs, units, also=deciding(run, setup, chosen))
        test_columns = columns_of(functions, setup.data.test.inputs[:_SHOWN], units)
    write_columns(output, columns, names=new.names, digits=units.digits)
    picture = savefig(
        new_rows(
            columns,
            test_columns,
            level=chosen["level"],
            target_name=setup.data.target_label,
            units=setup.data.target_unit,
        ),
        output.with_suffix(".png"),
    )
    for note in new.notes:
        say(note)
    print(f"Predictions: {output}\nPicture: {picture}")


_SHOWN = 2000  # most test rows shown beside the new ones


def tune(argv: list[str]) -> None:
    """Choose the prior precision of a Laplace run by the evidence, and save the tuned posterior."""
    from torchbayes.catalogue.config import keep_changed, load_run
    from torchbayes.posteriors.files import CONFIG as RUN
    from torchbayes.posteriors.files import POSTERIOR

    parser = new_parser(tune)
    add_run(parser, "a fit by Laplace")
    parser.add_argument(
        "--prior", type=str, default="scalar", help="free factors: scalar, layer, weight, or model: none"
    )
    parser.add_argument("--noise", action="store_true", help="choose the noise scale too, where it is fixed")
    parser.add_argument("--on", type=str | None, default=None, help="file of held-out rows to choose by, not evidence")
    parser.add_argument("--directory", type=str | None, default=None, help="where the result goes; RUN/tuned")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result")
    chosen = parse(parser, argv)
    run = run_of(chosen, "which run to tune", "a fit by Laplace")
    directory = folder_in(run, "tuned") if chosen["directory"] is None else Path(chosen["directory"])
    setup, posterior = load_run(run, trust=chosen["trust"])
    if not posterior.of_linearised:
        raise ValueError(
            f"{run} holds a posterior of the kind {type(posterior).__name__}; what is tuned is the prior of Laplace. "
            f"Fit it around those weights: torchbayes fit --method Laplace --start {shlex.quote(str(run))} "
            f"--directory NEW."
        )
    if (directory / RUN).exists():
        raise ValueError(f"{directory} holds a run of its own, which would be lost. Choose another --directory.")
    if (directory / POSTERIOR).exists() and not chosen["overwrite"]:
        raise ValueError(f"{directory} already holds a posterior. Add --overwrite, or choose another --directory.")
    held_out = None if chosen["on"] is None else labelled(setup, Path(chosen["on"]))
    fitted = cast("tb.LaplacePosterior", posterior)
    with setup.problem.threading():
        tuned = tb.tune(fitted, prior=chosen["prior"], noise=chosen["noise"], on=held_out)
    path = keep_changed(tuned, run, directory)
    _tell(setup, fitted, tuned, evidence=held_out is None)
    print(f"Posterior: {path}")


_WORSE = 0.05  # nats of test NLL: a tuned average that is worse than its networks by more is reported


def _tell(setup: Setup, fitted: tb.LaplacePosterior, tuned: tb.LaplacePosterior, *, evidence: bool) -> None:
    """Print what tuning has changed, and whether the average is worse than the networks it is around."""
    from torchbayes.report import Table

    alone = tb.Point(fitted.model, fitted.mean_MD, buffers_M=fitted.buffers_M)
    rows = tuple(setup.data.test)
    with setup.problem.threading():
        scores = {
            name: _known(tb.evaluate(preferred(judged), rows, target_scale=setup.target_scale).metrics)
            for name, judged in {"the networks alone": alone, "as fitted": fitted, "tuned": tuned}.items()
        }
        evidences = [float(judged.log_evidence().mean()) for judged in (fitted, tuned)] if evidence else []
    form = _form([*evidences, *(value for metrics in scores.values() for value in metrics.values())])
    lines = [["log evidence (nats)", None, *evidences]] if evidences else []
    lines += [[f"test {name}", *(metrics.get(name) for metrics in scores.values())] for name in scores["tuned"]]
    print_table(Table(["", *scores], lines, formats=dict.fromkeys(scores, form)))
    before, first, after = (scores[name]["nll"] for name in ("the networks alone", "as fitted", "tuned"))
    if after > before + _WORSE:
        held_out = ", or tune on held-out rows (--on FILE --overwrite)" if evidence else ""
        alternative = f"an ensemble of networks (--method MAP --method.members 5){held_out}"
        say(
            f"Tuned, the average has a test NLL of {after:.3g}, and the networks alone have {before:.3g}: it is too "
            f"cautious, as Laplace is where rows are few beside weights. Prefer "
            f"{alternative if first > before + _WORSE else f'the posterior as fitted, which has {first:.3g}'}."
        )
