"""Figures, tables and reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.refusals.nonsense import COUNT, FLAG, MAPPING, NAMED, NAN, NOT_NEGATIVE, OBJECT, PATH, WORD, Case, but
from torchbayes import report
from torchbayes.report import figures

_GRID = np.linspace(0.0, 1.0, 5)
_CURVE = (None, "text", 3, [], [NAN] * 5, [[1.0]], ["a"] * 5)
_DRAWS = np.random.default_rng(0).normal(size=(2, 20))
_PROBS = np.full((3, 2), 0.5)
_BINS = torch.ones(2)


def _band() -> figures.Band:
    return figures.Band(_GRID, _GRID, 0 * _GRID + 0.1, 0 * _GRID + 0.2)


def _bins() -> Any:
    class Bins:
        confidence, accuracy, count = _BINS / 2, _BINS / 2, _BINS

    return Bins()


def _figure() -> Any:
    return figures.rhat_histogram({"weights": _GRID + 1})


def _picture() -> report.Picture:
    return report.Picture("title", report.png(_figure(), dpi=20), "caption")


_METHODS = (*MAPPING, {})

PICTURES = {
    "figures.Band": Case(
        figures.Band,
        lambda: {"x": _GRID, "mean": _GRID, "epistemic_std": 0 * _GRID, "total_std": 0 * _GRID},
        {
            "x": _CURVE,
            "mean": (*_CURVE, _GRID[:3]),
            "epistemic_std": (*_CURVE, -_GRID, _GRID[:3]),
            "total_std": (*_CURVE, -_GRID, _GRID[:3]),
            "draws": ("text", 3, _GRID, np.zeros((2, 3))),
        },
    ),
    "figures.Dots": Case(
        figures.Dots,
        lambda: {"title": "test set", "measure": "NLL", "values": {"HMC": (1.0, 0.5, 1.5)}},
        {
            "title": NAMED,
            "measure": NAMED,
            "values": (*_METHODS, {"HMC": 3}, {"HMC": (1.0, 2.0)}, {"HMC": ("a", "b", "c")}),
            "better": (None, 3, "sideways"),
            "best": (None, 3, "HMC"),
            "floors": ("text", [NAN], [[1.0]]),
        },
    ),
    "figures.ranked_dots": Case(
        figures.ranked_dots,
        lambda: {"panels": [figures.Dots("test set", "NLL", {"HMC": (1.0, 0.5, 1.5)})]},
        {"panels": (None, 3, "text", [], [3], {"NLL": 3}), "floor": NAMED},
    ),
    "figures.severity_panels": Case(
        figures.severity_panels,
        lambda: {"methods": {"SWAG": (_GRID, _GRID - 1, _GRID + 1)}, "metric": "nll"},
        {
            "methods": (*_METHODS, {"SWAG": 3}, {"SWAG": (_GRID, _GRID)}, {"SWAG": ("text", None, None)}),
            "metric": NAMED,
            "reference": (3, "nonsense"),
            "level": ("text", [1.0]),
            "better": but(WORD, None),
        },
    ),
    "figures.predictive_band": Case(
        figures.predictive_band,
        lambda: {"methods": {"HMC": _band()}, "train_x": _GRID, "train_y": _GRID},
        {
            "methods": (*_METHODS, {"HMC": 3}),
            "train_x": _CURVE,
            "train_y": (*_CURVE, _GRID[:3]),
            "truth": ("text", 3, (_GRID,), (_GRID, _GRID[:3])),
            "notes": ("text", 3, {"HMC": 3}, {"MAP": "text"}),
            "target_name": (3, None),
        },
    ),
    "figures.classification_surface": Case(
        figures.classification_surface,
        lambda: {
            "methods": {"HMC": np.full((4, 5), 0.5)},
            "x": _GRID,
            "y": _GRID[:4],
            "inputs": np.zeros((3, 2)),
            "targets": np.array([0, 1, 0]),
        },
        {
            "methods": (*_METHODS, {"HMC": np.zeros((2, 2))}, {"HMC": "text"}),
            "x": (*_CURVE, _GRID[:3]),
            "y": (*_CURVE, _GRID),
            "inputs": (None, "text", np.zeros((3, 3)), np.zeros(3)),
            "targets": (None, "text", np.zeros((3, 3)), np.zeros(2)),
        },
    ),
    "figures.loss_surfaces": Case(
        figures.loss_surfaces,
        lambda: {"surfaces": {"loss": np.full((4, 5), 0.5)}, "x": _GRID, "y": _GRID[:4]},
        {
            "surfaces": (*_METHODS, {"loss": np.zeros((2, 2))}, {"loss": "text"}),
            "x": (*_CURVE, _GRID[:3]),
            "y": (*_CURVE, _GRID),
            "marks": (3, "text", {"a": (1, 2, 3)}, {"a": "text"}),
            "curve": (3, "text", _GRID),
            "kind": WORD,
            "label": (3, None),
        },
    ),
    "figures.function_draws": Case(
        figures.function_draws,
        lambda: {"functions": {"wide": np.zeros((3, 5))}, "x": _GRID},
        {
            "functions": (*_METHODS, {"wide": np.zeros((3, 4))}, {"wide": np.full((3, 5), NAN)}, {"wide": "text"}),
            "x": (*_CURVE, _GRID[:3], _GRID[::-1]),
            "shown": COUNT,
            "label": (3, None),
            "output_label": (3, None),
        },
    ),
    "figures.correlation_maps": Case(
        figures.correlation_maps,
        lambda: {"matrices": {"wide": np.eye(3)}, "labels": [0, 1, 0]},
        {
            "matrices": (*_METHODS, {"wide": np.zeros((3, 2))}, {"wide": "text"}),
            "labels": ("text", 3, [0, 1], [NAN] * 3),
            "class_names": (3, "ab", ["a"], [1, 2]),
            "label": (3, None),
        },
    ),
    "figures.spectrum_density": Case(
        figures.spectrum_density,
        lambda: {"densities": {"Hessian": _GRID + 1}, "eigenvalues": _GRID},
        {
            "densities": (*_METHODS, {"Hessian": _GRID[:3]}, {"Hessian": -_GRID}, {"Hessian": "text"}),
            "eigenvalues": (*_CURVE, _GRID[::-1]),
            "label": (3, None),
        },
    ),
    "figures.ray_profiles": Case(
        figures.ray_profiles,
        lambda: {"profiles": {"MAP": np.zeros((3, 5))}, "radii": _GRID},
        {
            "profiles": (*_METHODS, {"MAP": np.zeros((3, 4))}, {"MAP": np.full((3, 5), NAN)}, {"MAP": "text"}),
            "radii": (*_CURVE, _GRID[:3]),
            "label": (3, None),
        },
    ),
    "figures.reliability_diagram": Case(
        figures.reliability_diagram,
        lambda: {"methods": {"HMC": _bins()}},
        {"methods": (*_METHODS, {"HMC": 3}), "counts": FLAG},
    ),
    "figures.referral_curves": Case(
        figures.referral_curves,
        lambda: {"methods": {"HMC": (_GRID, 1 - _GRID / 5)}},
        {"methods": (*_METHODS, {"HMC": 3}, {"HMC": (_GRID,)}, {"HMC": (_GRID, _GRID[:3])}, {"HMC": ("text", _GRID)})},
    ),
    "figures.risk_curves": Case(
        figures.risk_curves,
        lambda: {"methods": {"HMC": (_GRID, _GRID / 5)}},
        {
            "methods": (
                *_METHODS,
                {"HMC": 3},
                {"HMC": (_GRID,)},
                {"HMC": (_GRID, _GRID[:3])},
                {"HMC": ("text", _GRID)},
            ),
            "limit": but(NOT_NEGATIVE, None),
            "chosen": (3, "text", (0.5,), (NAN, 0.1), (0.5, -1.0)),
            "loss": NAMED,
        },
    ),
    "figures.confusion_matrix": Case(
        figures.confusion_matrix,
        lambda: {"counts": np.eye(2), "class_names": ["a", "b"]},
        {
            "counts": (None, "text", np.eye(3), -np.eye(2), np.full((2, 2), NAN), np.ones(2)),
            "class_names": (None, 3, ["a"], [], "ab"),
        },
    ),
    "figures.predicted_observed": Case(
        figures.predicted_observed,
        lambda: {"name": "HMC", "observed": _GRID, "predicted": _GRID, "low": _GRID - 1, "high": _GRID + 1},
        {
            "name": NAMED,
            "observed": (*_CURVE, _GRID[:3]),
            "predicted": (*_CURVE, _GRID[:3]),
            "low": (*_CURVE, _GRID[:3], _GRID + 2),
            "high": (*_CURVE, _GRID[:3], _GRID - 2),
            "target_label": NAMED,
        },
    ),
    "figures.row_scatter": Case(
        figures.row_scatter,
        lambda: {"methods": {"HMC": (_GRID, _GRID, _GRID > 0)}, "x": "x", "y": "y", "marks": ("in", "out")},
        {
            "methods": (*_METHODS, {"HMC": 3}, {"HMC": (_GRID, _GRID)}, {"HMC": (_GRID, _GRID[:3], _GRID > 0)}),
            "x": NAMED,
            "y": NAMED,
            "marks": (None, 3, "in", ("in",), ("in", 3)),
            "level": FLAG,
        },
    ),
    "figures.coverage_curves": Case(
        figures.coverage_curves,
        lambda: {"methods": {"HMC": (_GRID, _GRID)}, "count": 10},
        {"methods": (*_METHODS, {"HMC": 3}, {"HMC": (_GRID,)}, {"HMC": (_GRID, _GRID[:3])}), "count": COUNT},
    ),
    "figures.pit_histogram": Case(
        figures.pit_histogram,
        lambda: {"name": "HMC", "values": _GRID},
        {
            "name": NAMED,
            "values": (*_CURVE, 2 * _GRID, -_GRID),
            "bins": but(COUNT, None),
            "weights": (*but(_CURVE, None), -_GRID, 0 * _GRID, _GRID[:3]),
        },
    ),
    "figures.errors_by_scale": Case(
        figures.errors_by_scale,
        lambda: {"name": "HMC", "errors": _GRID, "scale": _GRID + 1},
        {
            "name": NAMED,
            "errors": (*_CURVE, _GRID[:3]),
            "scale": (*_CURVE, _GRID[:3], _GRID),
            "units": NAMED,
        },
    ),
    "figures.residuals": Case(
        figures.residuals,
        lambda: {"name": "HMC", **dict.fromkeys(("observed", "predicted", "low", "high", "scale"), _GRID)},
        {
            "name": NAMED,
            "observed": (*_CURVE, _GRID[:3]),
            "predicted": (*_CURVE, _GRID[:3]),
            "low": (*_CURVE, _GRID[:3], _GRID + 2),
            "high": (*_CURVE, _GRID[:3], _GRID - 2),
            "scale": (*_CURVE, _GRID[:3], -_GRID),
            "units": NAMED,
        },
    ),
    "figures.partial_dependence": Case(
        figures.partial_dependence,
        lambda: {"panels": {"age": (_GRID, np.zeros((2, 5, 1)), _GRID)}},
        {
            "panels": (
                *_METHODS,
                {"age": 3},
                {"age": (_GRID, _GRID)},
                {"age": (_GRID, np.zeros((2, 4, 1)), _GRID)},
                {"age": (_GRID, np.zeros((2, 5, 2)), _GRID)},
                {"age": (_GRID, np.full((2, 5, 1), NAN), _GRID)},
            ),
            "curves": (None, 3, "text", [], [3]),
            "target_label": NAMED,
        },
    ),
    "figures.entropy_histograms": Case(
        figures.entropy_histograms,
        lambda: {"methods": {"HMC": (_GRID / 2, {"noise": _GRID / 2})}, "num_classes": 3},
        {"methods": (*_METHODS, {"HMC": 3}, {"HMC": (_GRID,)}), "num_classes": (*COUNT, 1), "known": NAMED},
    ),
    "figures.rhat_histogram": Case(
        figures.rhat_histogram, lambda: {"spaces": {"weights": _GRID + 1}}, {"spaces": (*_METHODS, {"weights": "text"})}
    ),
    "figures.ess_histograms": Case(
        figures.ess_histograms,
        lambda: {"spaces": {"weights": (_GRID + 10, _GRID + 10)}, "chains": 2, "draws": 50},
        {"spaces": (*_METHODS, {"weights": 3}, {"weights": (_GRID,)}), "chains": COUNT, "draws": COUNT},
    ),
    "figures.traces_and_ranks": Case(
        figures.traces_and_ranks,
        lambda: {"quantities": {"weight": (_DRAWS, np.arange(20), "draw")}},
        {"quantities": (*_METHODS, {"weight": 3}, {"weight": (_DRAWS, np.arange(3), "draw")})},
    ),
    "figures.fidelity_dots": Case(
        figures.fidelity_dots,
        lambda: {"panels": {"agreement": {"SWAG": 0.9}}},
        {
            "panels": (*_METHODS, {"agreement": {}}, {"agreement": {"SWAG": "text"}}),
            "floors": ("text", 3, {"other": [1.0]}),
            "better": ("text", 3, {"agreement": "sideways"}),
            "among": NAMED,
            "intervals": ("text", 3, {"other": {}}),
        },
    ),
    "figures.measure_curves": Case(
        figures.measure_curves,
        lambda: {"panels": {"nll": {"SWAG": _DRAWS[:, :3].T}}, "places": [1, 2, 3]},
        {
            "panels": (*_METHODS, {"nll": {"SWAG": "text"}}, {"nll": {"SWAG": _DRAWS}}),
            "places": (None, 3, [], [1]),
            "label": NAMED,
            "over": NAMED,
            "levels": ("text", 3, {"other": ("exact", 1.0)}),
            "percent": (3, None),
            "mark": (3, "text", ("name", 7), ("name",)),
        },
    ),
    "figures.metric_dots": Case(
        figures.metric_dots,
        lambda: {"datasets": {"boston": {"SWAG": [1.0, 2.0]}}, "metric": "nll"},
        {
            "datasets": (*_METHODS, {"boston": {}}, {"boston": {"SWAG": "text"}}),
            "metric": NAMED,
            "published": ("text", 3),
            "over": NAMED,
            "better": but(WORD, None),
        },
    ),
    "figures.severity_curves": Case(
        figures.severity_curves,
        lambda: {"methods": {"SWAG": _DRAWS}, "metric": "nll"},
        {
            "methods": (*_METHODS, {"SWAG": "text"}, {"SWAG": _GRID}),
            "metric": NAMED,
            "over": NAMED,
            "spread": WORD,
            "better": but(WORD, None),
        },
    ),
    "figures.training_curves": Case(
        figures.training_curves,
        lambda: {"runs": {"SWAG": [{"epoch": 1, "loss": [0.5]}]}},
        {
            "runs": (*_METHODS, {"SWAG": 3}, {"SWAG": [3]}),
            "keys": (None, 3, [], ["nothing"]),
            "x": (None, 3),
        },
    ),
    "figures.uncertain_images": Case(
        figures.uncertain_images,
        lambda: {
            "images": np.zeros((3, 1, 4, 4)),
            "probs": _PROBS,
            "class_names": ["a", "b"],
            "targets": [0, 1, 0],
            "count": 2,
        },
        {
            "images": (None, "text", np.zeros((3, 4)), np.full((3, 1, 4, 4), NAN), np.zeros((2, 1, 4, 4))),
            "probs": (None, "text", np.zeros(3), np.full((3, 2), NAN), {}),
            "class_names": (None, 3, ["a"], []),
            "targets": (None, "text", [0, 1], [0, 1, 5]),
            "count": COUNT,
            "rank_by": ("nonsense", 3, ["nonsense"], str),
        },
    ),
    "report.Table": Case(
        report.Table,
        lambda: {"columns": ["a", "b"], "rows": [["x", 1.0]]},
        {
            "columns": (None, 3, "text", ["a"], [3, 4]),
            "rows": (None, 3, "text", [["x"]], [3], [["x", {}]]),
            "caption": NAMED,
            "better": (None, 3, "text", {"c": "low"}, {"b": "sideways"}),
            "formats": (None, 3, "text", {"c": ".3f"}, {"b": 3}, {"b": "nonsense"}),
            "title": NAMED,
            "beside": (None, -1, 2, 1.5, "text"),
            "ties": (None, 3, "text", {"c": [0]}, {"b": 3}, {"b": "text"}, {"b": [1]}, {"b": [-1]}, {"b": [NAN]}),
        },
    ),
    "report.Page": Case(report.Page, lambda: {"title": "t", "html": "<p>"}, {"title": NAMED, "html": NAMED}),
    "report.Picture": Case(
        report.Picture,
        lambda: {"title": "t", "image": b"\x89PNG", "caption": "c"},
        {"title": NAMED, "image": (None, 3, NAN, [b""]), "caption": NAMED, "alt": NAMED, "live": (3, "text", [3])},
    ),
    "report.looks": Case(report.looks, lambda: {"methods": ["SWAG"]}, {"methods": (None, 3, [3], "SWAG")}),
    "report.png": Case(report.png, lambda: {"figure": _figure()}, {"figure": OBJECT, "dpi": COUNT}),
    "report.savefig": Case(
        report.savefig,
        lambda: {"figure": _figure(), "path": "picture.png"},
        {"figure": OBJECT, "path": PATH, "dpi": COUNT},
    ),
    "report.write_report": Case(
        report.write_report,
        lambda: {"path": "report.html", "title": "title"},
        {
            "path": PATH,
            "title": NAMED,
            "lead": NAMED,
            "tables": (None, 3, "text", [3]),
            "figures": (None, 3, "text", [3], [_figure]),
            "folded": (None, 3, "text", [3]),
            "procedure": NAMED,
            "settings": (3, NAN, ["x"]),
        },
    ),
}
# what is inside a mapping goes by the names there
_MAPPINGS = ("methods", "panels", "datasets", "spaces", "quantities", "runs", "x", "functions", "matrices")
_INSIDE = (
    "`values of",
    "`surface of",
    "`R-hat of",
    "`ESS of",
    "`entropies of",
    "`curve of",
    "`functions of",
    "`matrix of",
    "`level of",
    " of SWAG",
    "`loss`",
    "`nothing`",
)
PICTURES = {
    name: Case(
        case.call,
        case.good,
        case.wrong,
        case.free,
        {a: (f"`{a}", *_INSIDE) for a in _MAPPINGS},
    )
    for name, case in PICTURES.items()
}
