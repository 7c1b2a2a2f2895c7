"""Table, remarks and files of a comparison of networks by their evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchbayes.catalogue.config import write_config
from torchbayes.comparison.evidence.settings import Settings
from torchbayes.posteriors.files import write_whole
from torchbayes.report import Table, figures, png

RESULTS, FIGURE = "results.json", "evidence.png"


def table(settings: Settings, found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the comparison, as `compare_networks` returned it, as a table with one row per network."""
    kind = "test_accuracy" if "test_accuracy" in next(iter(found.values())) else "test_rmse"
    label = {"test_accuracy": "accuracy", "test_rmse": "RMSE"}[kind]
    rows = []
    for name, numbers_of in found.items():
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


def tables(settings: Settings, found: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return the table in two parts, for narrow terminals: the evidence, and the other columns."""
    whole, parts = table(settings, found), []
    for columns in (range(5), (0, *range(5, len(whole.columns)))):
        names = [whole.columns[i] for i in columns]
        options = [{n: v for n, v in each.items() if n in names} for each in (whole.better, whole.formats)]
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


def remarks(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return lines on which network the evidence favours, and which networks are not at a mode."""
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
    """Raise ValueError if a directory holds results and `overwrite` is not set."""
    if (directory / RESULTS).exists() and not overwrite:
        raise ValueError(f"{directory} already holds results. Add --overwrite, or choose another --directory.")


def write(directory: Path, settings: Settings, found: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write `results.json`, `evidence.png` and `config.yaml`; return the path of the first."""
    write_config(directory, settings.config())
    measures = {"log evidence per row": "log_evidence_per_row", "test NLL": "test_nll"}
    panels = {label: {name: float(numbers[key]) for name, numbers in found.items()} for label, key in measures.items()}
    drawn = figures.fidelity_dots(panels, better={"log evidence per row": "high", "test NLL": "low"})
    write_whole(directory / FIGURE, png(drawn))
    record = {"settings": json.loads(json.dumps(settings.config())), "networks": found}
    write_whole(directory / RESULTS, (json.dumps(record, indent=1) + "\n").encode())
    return directory / RESULTS
