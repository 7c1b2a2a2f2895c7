"""Networks for one data set, compared by their evidence: what `torchbayes evidence` runs.

Each network is trained, its prior chosen by the evidence; then come its evidence and test scores, a table and files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.catalogue.config import entries, write_config
from torchbayes.catalogue.imports import path_of
from torchbayes.catalogue.models import GROUPS
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import usual_plan
from torchbayes.checks import check_choice, check_name, plain
from torchbayes.comparison.rounds import best_round, train_in_rounds
from torchbayes.data import Data
from torchbayes.driver.progress import Callback
from torchbayes.methods.laplace.laplace import CurvatureName, Laplace, StructureName
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.schedules import epochs_of
from torchbayes.posteriors import LaplacePosterior
from torchbayes.posteriors.files import write_whole
from torchbayes.predictive.linearised import Linearised
from torchbayes.report import Table, figures, png

ALIASES = {"cnn": "small_cnn"}
RESULTS, FIGURE = "results.json", "evidence.png"
TunedPrior = Literal["model", "scalar", "layer"]
TUNED = get_args(TunedPrior)
Numbers = Mapping[str, Mapping[str, Any]]
"""network -> its numbers, as `compare_networks` returns them."""


@dataclass(frozen=True)
class Settings:
    """What is compared and how.

    Attributes:
        problem: data, likelihood and the initial prior; its network settings are those of `mlp`.
        map: how each network is trained, and trained again under each prior that was chosen. If its epochs are open,
            held-out rows choose those of the first training, and the others take as many as come near a mode.
        networks: names of networks, or import paths of functions that build them; `cnn` is short for `small_cnn`.
        tune_prior: whose scale the evidence chooses: "model" (none), "scalar" (one) or "layer" (one for each layer); a
            prior that is not normal is then replaced by the normal with its curvature.
        rounds: how often the networks are trained again under the chosen prior, which moves the mode.
        structure: of the Laplace approximation.
        curvature: of the Laplace approximation.
        seed: of initialisation and data order.
    """

    problem: Problem
    map: MAP
    networks: tuple[str, ...] = ("linear", "mlp", "cnn")
    tune_prior: TunedPrior = "layer"
    rounds: int = 4
    structure: StructureName = "kronecker"
    curvature: CurvatureName = "ggn"
    seed: int = 0

    def __post_init__(self) -> None:
        plain(self)
        if not self.networks:
            raise ValueError("`networks` must name at least one network; got none. Try: --networks linear mlp cnn.")
        for name in self.networks:
            if path_of(name, GROUPS["network"]) is None:
                check_name("network", name, [*networks.names(), *ALIASES])
        twice = sorted({n for n in self.networks if self.networks.count(n) > 1})
        if twice:
            raise ValueError(f"`networks` must name each network once; got {', '.join(twice)} more often.")
        check_choice(TUNED, tune_prior=self.tune_prior)
        if self.rounds < 0:
            raise ValueError(f"`rounds` must not be negative; got {self.rounds}. 0 trains once.")
        Laplace(self.structure, self.curvature, prior="model")  # raises if structure and curvature do not go together
        if self.problem.temperature != 1:
            raise ValueError(f"the evidence is that of T = 1; got temperature {self.problem.temperature}.")

    def problem_of(self, network: str) -> Problem:
        """Return the problem of one of the networks."""
        settings = self.problem.network_settings if network == "mlp" else {}
        return replace(self.problem, network=ALIASES.get(network, network), network_settings=settings)

    def config(self) -> dict[str, Any]:
        """Return the settings as a configuration file holds them."""
        problem = {name: value for name, value in entries(self.problem).items() if name != "network"}
        method = {name: value for name, value in entries(self.map).items() if name not in {"members", "plan"}}
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in {"problem", "map", "networks"}}
        return {**problem, "map": method, "networks": list(self.networks), **options}


def compare_networks(
    settings: Settings, *, callbacks: Sequence[Callback] | None = (), say: Callable[[str], None] = lambda _: None
) -> dict[str, dict[str, Any]]:
    """Return the evidence of every network, trained one after the other.

    network -> numbers, in nats: `log_evidence`, `log_evidence_per_row`, `log_likelihood` (at the mode), `occam` (the
    log Occam factor, their difference), `weights`, `effective` (weights that the data determine), `scales` (prior
    scale of every parameter, or the ends of its scales), `at_mode`, `test_nll`, and `test_accuracy` or `test_rmse`.
    `say` is called with a line when the training of a network begins. Raises ValueError if data, likelihood and network
    do not go together.
    """
    problem = settings.problem
    data = settings.problem_of(settings.networks[0]).setup().data
    models = {name: settings.problem_of(name).model(data) for name in settings.networks}
    for model in models.values():
        _ = model.layout  # builds the network: one that cannot take the data is refused before any is trained
    numbers = {}
    with problem.threading():
        for name, model in models.items():
            say(f"training: {name}, {model.layout.size:,} weights")
            numbers[name] = _numbers(settings, name, model, data, callbacks=callbacks)
    return numbers


def _numbers(
    settings: Settings, name: str, model: Any, data: Data, *, callbacks: Sequence[Callback] | None
) -> dict[str, Any]:
    """Return the numbers of one network."""
    method = replace(settings.map, members=1, plan=usual_plan(settings.problem_of(name)))
    # no evidence leads back from weights that interpolate, so only trainings under a chosen prior go to a mode
    onward = replace(method, epochs=epochs_of(method.epochs, -(-len(data.train.inputs) // method.batch_size)))
    again = [onward] * settings.rounds if settings.tune_prior != "model" else []
    laplace = Laplace(settings.structure, settings.curvature, prior="model")
    groups, seed = settings.tune_prior, settings.seed
    trained = train_in_rounds(
        model, tuple(data.train), method, laplace=laplace, groups=groups, again=again, seed=seed, callbacks=callbacks
    )
    chosen = best_round(trained)
    posterior = chosen.fitted if again else chosen.tuned
    evidence, likelihood = float(posterior.log_evidence()), float(posterior.log_likelihood_M)
    scale = 1.0 if data.target_standardise is None else float(data.target_standardise.scale)
    scores = evaluate(Linearised(posterior), tuple(data.test), target_scale=scale).metrics
    kind = "accuracy" if data.classes else "rmse"
    return {
        "log_evidence": evidence,
        "log_evidence_per_row": evidence / posterior.num_data,
        "log_likelihood": likelihood,
        "occam": evidence - likelihood,
        "weights": posterior.mean_MD.shape[1],
        "effective": float(posterior.effective_parameters()),
        "scales": _scales(posterior),
        "at_mode": chosen.at_mode,
        "test_nll": scores["nll"],
        f"test_{kind}": scores[kind],
    }


def _scales(posterior: LaplacePosterior) -> dict[str, float]:
    """Return the standard deviation of the prior of every parameter; where it varies in one, its ends."""
    scales = {}
    for name, stds in posterior.model.layout.split(posterior.model.prior.stds()).items():
        low, high = float(stds.min()), float(stds.max())
        scales |= {name: low} if low == high else {f"{name} (smallest)": low, f"{name} (largest)": high}
    return scales


def table(settings: Settings, numbers_by_name: Numbers) -> Table:
    """Return the comparison, as `compare_networks` returned it, as a table with one row per network."""
    kind = "test_accuracy" if "test_accuracy" in next(iter(numbers_by_name.values())) else "test_rmse"
    label = {"test_accuracy": "accuracy", "test_rmse": "RMSE"}[kind]
    rows = []
    for name, numbers_of in numbers_by_name.items():
        low, high = min(numbers_of["scales"].values()), max(numbers_of["scales"].values())
        scale = f"{low:.3g}" if math.isclose(low, high, rel_tol=1e-6) else f"{low:.3g} to {high:.3g}"
        numbers = ("log_evidence", "log_evidence_per_row", "log_likelihood", "occam", "weights", "effective")
        rows.append([name, *(numbers_of[key] for key in numbers), scale, numbers_of["test_nll"], numbers_of[kind]])
    evidence = {"log evidence": ",.1f", "log likelihood": ",.1f", "Occam factor": ",.1f"}
    return Table(
        ["network", "log evidence", "per row", "log likelihood", "Occam factor", "weights", "effective",
         "prior scale", "test NLL", label],
        rows,
        caption(settings),
        better={"log evidence": "high", "per row": "high", "test NLL": "low",
                label: "high" if kind == "test_accuracy" else "low"},
        formats={**evidence, "weights": ",d", "effective": ",.0f", **({label: ".1%"} if label == "accuracy" else {})},
    )  # fmt: skip


def tables(settings: Settings, numbers_by_name: Numbers) -> list[Table]:
    """Return the table in two parts, for narrow terminals: the evidence, and the other columns."""
    whole, parts = table(settings, numbers_by_name), []
    for columns in (range(5), (0, *range(5, len(whole.columns)))):
        names = [whole.columns[i] for i in columns]
        options = [{n: v for n, v in by_column.items() if n in names} for by_column in (whole.better, whole.formats)]
        rows = [[row[i] for i in columns] for row in whole.rows]
        parts.append(Table(names, rows, whole.caption if parts else "", better=options[0], formats=options[1]))  # type: ignore[arg-type]
    return parts


def caption(settings: Settings) -> str:
    """Return the caption of the table."""
    chosen = {
        "model": "the prior as it is given",
        "scalar": "one prior scale, chosen by the evidence",
        "layer": "a prior scale for each layer, chosen by the evidence",
    }[settings.tune_prior]
    return (
        f"Evidence by Laplace ({settings.structure}, {settings.curvature}), in nats, under {chosen}. Occam factor: log "
        "evidence − log likelihood at the mode. Effective: weights that the data determine. Test scores: linearised "
        "predictive."
    )


def remarks(numbers_by_name: Numbers) -> list[str]:
    """Return lines on which network the evidence favours, and which networks are not at a mode."""
    ranked = sorted(numbers_by_name, key=lambda name: numbers_by_name[name]["log_evidence"], reverse=True)
    lines = []
    if len(ranked) > 1:
        factor = numbers_by_name[ranked[0]]["log_evidence"] - numbers_by_name[ranked[1]]["log_evidence"]
        lines.append(f"The evidence favours {ranked[0]}: log Bayes factor {factor:,.1f} over {ranked[1]}.")
    away = [name for name in numbers_by_name if not numbers_by_name[name]["at_mode"]]
    if away:
        lines.append(f"Not at a mode: {', '.join(away)}. Train longer (--map.epochs) before you trust the evidence.")
    return lines


def check_directory(directory: Path, *, overwrite: bool = False) -> None:
    """Raise ValueError if a directory holds results and `overwrite` is not set."""
    if (directory / RESULTS).exists() and not overwrite:
        raise ValueError(f"{directory} already holds results. Add --overwrite, or choose another --directory.")


def write(directory: Path, settings: Settings, numbers_by_name: Numbers) -> Path:
    """Write `results.json`, `evidence.png` and `config.yaml`; return the path of the first."""
    write_config(directory, settings.config())
    measures = {"log evidence per row": "log_evidence_per_row", "test NLL": "test_nll"}
    panels = {
        label: {name: float(numbers[key]) for name, numbers in numbers_by_name.items()}
        for label, key in measures.items()
    }
    drawn = figures.fidelity_dots(panels, better={"log evidence per row": "high", "test NLL": "low"})
    write_whole(directory / FIGURE, png(drawn))
    record = {"settings": json.loads(json.dumps(settings.config())), "networks": numbers_by_name}
    write_whole(directory / RESULTS, (json.dumps(record, indent=1) + "\n").encode())
    return directory / RESULTS
