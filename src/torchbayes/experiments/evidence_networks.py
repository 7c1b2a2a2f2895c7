"""Networks for one data set, compared by their evidence: what `torchbayes evidence` runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.catalogue.config import entries, write_config
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import usual_plan
from torchbayes.checks import plain
from torchbayes.data import Data
from torchbayes.data.base import check_name
from torchbayes.driver.progress import Callback
from torchbayes.experiments.evidence_rounds import best, rounds
from torchbayes.experiments.experiment import as_json
from torchbayes.methods import MAP, Laplace
from torchbayes.methods.laplace.laplace import CurvatureName, StructureName
from torchbayes.methods.laplace.tuning import Groups
from torchbayes.posteriors import LaplacePosterior
from torchbayes.posteriors.files import write_whole
from torchbayes.predictive.linearised import Linearised
from torchbayes.report import Table, figures, png

ALIASES = {"cnn": "small_cnn"}
RESULTS, FIGURE = "results.json", "evidence.png"


@dataclass(frozen=True)
class Settings:
    """What is compared and how.

    Attributes:
        problem: data, likelihood and the prior to begin with; its network settings are those of `mlp`.
        map: how each network is trained.
        networks: names of networks; `cnn` is short for `small_cnn`.
        prior: whose scale the evidence chooses: "model" (none), "scalar" (one) or "layer" (one for each layer).
        rounds: how often the networks are trained again under the prior that was chosen; the mode moves with it.
        structure: of the Laplace approximation.
        curvature: of the Laplace approximation.
        seed: of initialisation and data order.
    """

    problem: Problem
    map: MAP
    networks: tuple[str, ...] = ("linear", "mlp", "cnn")
    prior: Groups = "layer"
    rounds: int = 2
    structure: StructureName = "kronecker"
    curvature: CurvatureName = "ggn"
    seed: int = 0

    def __post_init__(self) -> None:
        plain(self)
        if not self.networks:
            raise ValueError("`networks` must name at least one network; got none. Try: --networks linear mlp cnn.")
        for name in self.networks:
            check_name("network", name, [*networks.names(), *ALIASES])
        twice = sorted({n for n in self.networks if self.networks.count(n) > 1})
        if twice:
            raise ValueError(f"`networks` must name each network once; got {', '.join(twice)} more often.")
        if self.prior not in {"model", "scalar", "layer"}:
            raise ValueError(f"`prior` must be one of model, scalar, layer; got {self.prior!r}.")
        if self.rounds < 0:
            raise ValueError(f"`rounds` must not be negative; got {self.rounds}. 0 trains once.")
        Laplace(self.structure, self.curvature)  # refuses what does not go together
        if self.problem.temperature != 1:
            raise ValueError(f"the evidence is that of T = 1; got temperature {self.problem.temperature}.")

    def problem_of(self, network: str) -> Problem:
        """Return the problem of one of the networks."""
        own = self.problem.network_settings if network == "mlp" else {}
        return replace(self.problem, network=ALIASES.get(network, network), network_settings=own)

    def config(self) -> dict[str, Any]:
        """Return the settings as a configuration file holds them."""
        problem = {name: value for name, value in entries(self.problem).items() if name != "network"}
        method = {name: value for name, value in entries(self.map).items() if name not in {"members", "plan"}}
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in {"problem", "map", "networks"}}
        return {**problem, "map": method, "networks": list(self.networks), **own}


def compare_networks(
    settings: Settings, *, callbacks: Sequence[Callback] | None = (), say: Callable[[str], None] = lambda _: None
) -> dict[str, dict[str, Any]]:
    """Find the evidence of every network, one after the other.

    Args:
        settings: what is compared.
        callbacks: as `fit` takes them, for the training.
        say: told which network is trained.

    Returns:
        network -> numbers, in nats: `log_evidence`, `log_evidence_per_row`, `log_likelihood` (at the mode), `occam`
        (the log Occam factor, their difference), `weights`, `effective` (weights that the data determine), `scales`
        (prior scale of every parameter), `at_mode`, `test_nll`, and `test_accuracy` or `test_rmse`.

    Raises:
        ValueError: if data, likelihood and network do not go together.
    """
    problem = settings.problem
    data = settings.problem_of(settings.networks[0]).setup().data
    models = {name: settings.problem_of(name).model(data) for name in settings.networks}
    for model in models.values():
        _ = model.layout  # builds the network, so that one that cannot take the data is refused before any is trained
    found = {}
    with problem.threading():
        for name, model in models.items():
            say(f"training: {name}, {model.layout.size:,} weights")
            found[name] = _numbers(settings, name, model, data, callbacks=callbacks)
    return found


def _numbers(
    settings: Settings, name: str, model: Any, data: Data, *, callbacks: Sequence[Callback] | None
) -> dict[str, Any]:
    """Return the numbers of one network."""
    method = replace(settings.map, members=1, plan=usual_plan(settings.problem_of(name)))
    again = [method] * settings.rounds if settings.prior != "model" else []
    laplace = Laplace(settings.structure, settings.curvature)
    options: dict[str, Any] = {"groups": settings.prior, "again": again, "seed": settings.seed, "callbacks": callbacks}
    trained = rounds(model, tuple(data.train), method, laplace=laplace, **options)
    chosen = best(trained)
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
    """Return the standard deviation of the prior of every parameter."""
    stds = posterior.model.prior.stds()
    layout = posterior.model.layout
    return {name: float(part.flatten()[0]) for name, part in layout.split(stds).items()}


def table(settings: Settings, found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the comparison as a table.

    Args:
        settings: what was compared.
        found: what `compare_networks` gave.

    Returns:
        One row per network.
    """
    kind = "test_accuracy" if "test_accuracy" in next(iter(found.values())) else "test_rmse"
    label = {"test_accuracy": "accuracy", "test_rmse": "RMSE"}[kind]
    rows = []
    for name, one in found.items():
        low, high = min(one["scales"].values()), max(one["scales"].values())
        scale = f"{low:.3g}" if math.isclose(low, high, rel_tol=1e-6) else f"{low:.3g} to {high:.3g}"
        numbers = ("log_evidence", "log_evidence_per_row", "log_likelihood", "occam", "weights", "effective")
        rows.append([name, *(one[key] for key in numbers), scale, one["test_nll"], one[kind]])
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


def tables(settings: Settings, found: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return the table in two parts, for narrow terminals.

    Args:
        settings: what was compared.
        found: what `compare_networks` gave.

    Returns:
        The evidence, and the rest.
    """
    whole, parts = table(settings, found), []
    for columns in (range(5), (0, *range(5, len(whole.columns)))):
        names = [whole.columns[i] for i in columns]
        own = [{n: v for n, v in each.items() if n in names} for each in (whole.better, whole.formats)]
        rows = [[row[i] for i in columns] for row in whole.rows]
        parts.append(Table(names, rows, whole.caption if parts else "", better=own[0], formats=own[1]))  # type: ignore[arg-type]
    return parts


def caption(settings: Settings) -> str:
    """Return what the table shows."""
    chosen = {
        "model": "the prior as it is given",
        "scalar": "one prior scale, chosen by the evidence",
        "layer": "a prior scale for each layer, chosen by the evidence",
    }[settings.prior]
    return (
        f"Evidence by Laplace ({settings.structure}, {settings.curvature}), in nats, under {chosen}. Occam factor: log "
        "evidence − log likelihood at the mode. Effective: weights that the data determine. Test scores: linearised "
        "predictive."
    )


def remarks(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what should be said beside the table, one line each.

    Args:
        found: what `compare_networks` gave.

    Returns:
        Which network the evidence favours, and which results rest on weights that are not at a mode.
    """
    ranked = sorted(found, key=lambda name: found[name]["log_evidence"], reverse=True)
    lines = []
    if len(ranked) > 1:
        factor = found[ranked[0]]["log_evidence"] - found[ranked[1]]["log_evidence"]
        lines.append(f"The evidence favours {ranked[0]}: log Bayes factor {factor:,.1f} over {ranked[1]}.")
    away = [name for name in found if not found[name]["at_mode"]]
    if away:
        lines.append(f"Not at a mode: {', '.join(away)}. Train longer (--map.epochs) before you trust the evidence.")
    return lines


def check_directory(directory: Path, *, overwrite: bool = False) -> None:
    """Check that results can go into a directory.

    Args:
        directory: where they should go.
        overwrite: whether it may hold some.

    Raises:
        ValueError: if it holds results that are not to be replaced.
    """
    if (directory / RESULTS).exists() and not overwrite:
        raise ValueError(f"{directory} already holds results. Add --overwrite, or choose another --directory.")


def write(directory: Path, settings: Settings, found: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write `results.json`, `evidence.png` and `config.yaml`.

    Args:
        directory: made if needed.
        settings: what was compared.
        found: what `compare_networks` gave.

    Returns:
        Path of `results.json`.
    """
    write_config(directory, settings.config())
    measures = {"log evidence per row": "log_evidence_per_row", "test NLL": "test_nll"}
    panels = {label: {name: float(one[key]) for name, one in found.items()} for label, key in measures.items()}
    drawn = figures.fidelity_dots(panels, better={"log evidence per row": "high", "test NLL": "low"})
    write_whole(directory / FIGURE, png(drawn))
    record = {"settings": json.loads(json.dumps(settings.config())), "networks": found}
    write_whole(directory / RESULTS, as_json(record))
    return directory / RESULTS
