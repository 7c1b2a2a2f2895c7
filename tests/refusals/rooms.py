"""Metrics, diagnostics, evidence, geometry, data and networks."""

from __future__ import annotations

from typing import Any

import torch

import torchbayes as tb
from tests.acquisition.refusals import ACQUISITION
from tests.adapters.refusals import ADAPTERS
from tests.conformal.refusals import CONFORMAL
from tests.decisions.refusals import DECISIONS
from tests.inverse.refusals import INVERSE
from tests.lora.refusals import LORA
from tests.methods.adapters.adapted import Adapted
from tests.refusals import things
from tests.refusals.nonsense import (
    CHOICE_OF_DRAWS,
    COUNT,
    FLAG,
    FUNCTION,
    INF,
    NAN,
    NOT_NEGATIVE,
    OBJECT,
    OPEN_SHARE,
    POSITIVE,
    REAL,
    SEED,
    SHARE,
    WHOLE,
    WORD,
    Case,
    but,
    maybe,
    tensors,
)
from torchbayes import data, diagnostics, evidence, geometry, metrics, networks, trainers

_HALF = torch.full((4, 2), 0.5)
_PROBS = (*tensors((4,), (4, 2), (0, 2)), torch.full((4, 2), NAN), -_HALF, 2 * _HALF, _HALF.long())
_REAL = (*tensors((3,), (0,)), torch.full((4,), NAN), torch.zeros(4, dtype=torch.int64))
_ONES = torch.ones(4)
_CLASSES = (
    None,
    "text",
    3,
    torch.zeros(4),
    torch.zeros(3, dtype=torch.int64),
    torch.full((4,), 2),
    torch.full((4,), -1),
    torch.zeros(4, dtype=torch.bool),
)
_SCORES = (None, "text", 3, torch.zeros(0), torch.zeros(2, 2), torch.full((4,), NAN), torch.zeros(4, dtype=torch.int64))
_TARGETS = torch.tensor([0, 1, 1, 0])
_WEIGHTS = {"weights_B": ("text", 3, torch.ones(3), -_ONES, 0 * _ONES, NAN * _ONES, INF * _ONES)}


def _classes(call: Any, **wrong: tuple[Any, ...]) -> Case:
    return Case(
        call,
        lambda: {"probs_BK": _HALF, "targets_B": _TARGETS},
        {"probs_BK": _PROBS, "targets_B": _CLASSES, **_WEIGHTS, **wrong},
    )


def _pair(call: Any) -> Case:
    wrong = {"p_BK": (*_PROBS, torch.ones(3, 1)), "q_BK": _PROBS, **_WEIGHTS}
    return Case(call, lambda: {"p_BK": _HALF, "q_BK": _HALF}, wrong)


def _detected(call: Any, **wrong: tuple[Any, ...]) -> Case:
    scores = {"in_scores_N": _SCORES, "out_scores_N": _SCORES}
    scores |= dict.fromkeys(("in_weights_N", "out_weights_N"), _WEIGHTS["weights_B"])
    return Case(call, lambda: {"in_scores_N": _ONES, "out_scores_N": _ONES}, {**scores, **wrong})


METRICS = {
    "metrics.accuracy": _classes(metrics.accuracy),
    "metrics.brier": _classes(metrics.brier),
    "metrics.ece": _classes(metrics.ece, bins=COUNT),
    "metrics.ece_mass": _classes(metrics.ece_mass, bins=COUNT),
    "metrics.reliability": _classes(metrics.reliability, bins=COUNT, kind=WORD),
    "metrics.agreement": _pair(metrics.agreement),
    "metrics.total_variation": _pair(metrics.total_variation),
    "metrics.auroc": _detected(metrics.auroc),
    "metrics.aupr": _detected(metrics.aupr, positive=WORD),
    "metrics.fpr95": _detected(metrics.fpr95, positive=WORD),
    "metrics.nll": Case(metrics.nll, lambda: {"log_prob_B": _ONES}, {"log_prob_B": _SCORES, **_WEIGHTS}),
    "metrics.weighted_mean": Case(
        metrics.weighted_mean,
        lambda: {"values_B": _ONES, "weights_B": None},
        {"values_B": (None, "text", 3), **_WEIGHTS},
    ),
    "metrics.rmse": Case(
        metrics.rmse, lambda: {"mean_B": _ONES, "targets_B": _ONES}, {"mean_B": _REAL, "targets_B": _REAL, **_WEIGHTS}
    ),
    "metrics.crps_gaussian": Case(
        metrics.crps_gaussian,
        lambda: dict.fromkeys(("mean_B", "scale_B", "targets_B"), _ONES),
        {"mean_B": _REAL, "scale_B": (*_REAL, -_ONES, 0 * _ONES), "targets_B": _REAL, **_WEIGHTS},
    ),
    "metrics.crps_draws": Case(
        metrics.crps_draws,
        lambda: {"draws_SB": torch.zeros(3, 4), "targets_B": _ONES},
        {"draws_SB": tensors((4,), (3, 3), (0, 4)), "targets_B": _REAL, **_WEIGHTS},
    ),
    "metrics.crps_normals": Case(
        metrics.crps_normals,
        lambda: {"mean_SB": torch.zeros(3, 4), "scale_SB": torch.ones(3, 4), "targets_B": _ONES},
        {
            "mean_SB": tensors((4,), (3, 3), (0, 4)),
            "scale_SB": (*tensors((4,), (3, 3), (0, 4)), torch.zeros(3, 4)),
            "targets_B": _REAL,
            **_WEIGHTS,
        },
    ),
    "metrics.wasserstein1": Case(
        metrics.wasserstein1,
        lambda: dict.fromkeys(("draws_SB", "draws_TB"), torch.zeros(3, 4)),
        {**dict.fromkeys(("draws_SB", "draws_TB"), tensors((4,), (3, 3), (0, 4))), **_WEIGHTS},
    ),
    "metrics.entropy": Case(metrics.entropy, lambda: {"probs": _HALF}, {"probs": but(_PROBS, None)}),
    "metrics.expected_entropy": Case(
        metrics.expected_entropy, lambda: {"probs_SBK": _HALF[None]}, {"probs_SBK": (*_PROBS, _HALF)}
    ),
    "metrics.mutual_information": Case(
        metrics.mutual_information, lambda: {"probs_SBK": _HALF[None]}, {"probs_SBK": (*_PROBS, _HALF)}
    ),
    "metrics.interval_coverage": Case(
        metrics.interval_coverage,
        lambda: {"lower_B": 0 * _ONES, "upper_B": _ONES, "targets_B": _ONES},
        {"lower_B": (*_REAL, 2 * _ONES), "upper_B": (*_REAL, -_ONES), "targets_B": _REAL, **_WEIGHTS},
    ),
    "metrics.interval_score": Case(
        metrics.interval_score,
        lambda: {"lower_B": 0 * _ONES, "upper_B": _ONES, "targets_B": _ONES, "coverage": 0.9},
        {
            "lower_B": (*_REAL, 2 * _ONES),
            "upper_B": (*_REAL, -_ONES),
            "targets_B": _REAL,
            "coverage": OPEN_SHARE,
            **_WEIGHTS,
        },
    ),
    "metrics.central_level": Case(
        metrics.central_level,
        lambda: {"below_B": 0.4 * _ONES, "up_to_B": 0.5 * _ONES},
        {
            "below_B": (*_REAL, -_ONES, 2 * _ONES, 0.6 * _ONES),
            "up_to_B": (*_REAL, -_ONES, 2 * _ONES, 0.3 * _ONES),
        },
    ),
    "metrics.confusion": _classes(metrics.confusion),
    "metrics.selective_accuracy": Case(
        metrics.selective_accuracy,
        lambda: {"correct_B": _ONES, "uncertainty_B": _ONES},
        {"correct_B": (*_REAL, -_ONES, 2 * _ONES), "uncertainty_B": _REAL, **_WEIGHTS},
    ),
    "metrics.risk_coverage": Case(
        metrics.risk_coverage,
        lambda: {"loss_B": _ONES, "uncertainty_B": _ONES},
        {"loss_B": _REAL, "uncertainty_B": _REAL, **_WEIGHTS},
    ),
    "metrics.RiskCoverage": Case(
        metrics.RiskCoverage,
        lambda: {"coverage": _ONES, "risk": _ONES},
        free=dict.fromkeys(("coverage", "risk"), "a result"),
    ),
    "metrics.Selection": Case(
        metrics.Selection,
        lambda: {"kept": _ONES, "accuracy": _ONES},
        free=dict.fromkeys(("kept", "accuracy"), "a result"),
    ),
    "metrics.quantile_calibration": Case(
        metrics.quantile_calibration,
        lambda: {"levels_Q": torch.tensor([0.5]), "quantiles_QB": torch.zeros(1, 4), "targets_B": _ONES},
        {
            "levels_Q": (*tensors((1,), (2,), (0,)), torch.ones(1)),
            "quantiles_QB": tensors((4,), (1, 3), (2, 4)),
            "targets_B": _REAL,
            **_WEIGHTS,
        },
    ),
    "metrics.fit_temperature": Case(
        metrics.fit_temperature,
        lambda: {"outputs_BK": _HALF, "targets_B": _TARGETS},
        {
            "outputs_BK": tensors((4,), (0, 2)),
            "targets_B": _CLASSES,
            **_WEIGHTS,
            "bounds": (None, 3, "ab", (1.0,), (2.0, 1.0), (0.0, 1.0), (NAN, 1.0), (0.1, INF), ("a", "b")),
        },
    ),
    "metrics.Reliability": Case(
        metrics.Reliability,
        lambda: {n: _ONES for n in ("confidence", "accuracy", "count", "edges")} | {"kind": "width"},
        free=dict.fromkeys(("confidence", "accuracy", "count", "edges", "kind"), "a result"),
    ),
}
METRICS = {
    name: Case(c.call, c.good, c.wrong, c.free, {**c.named, **{a: (f"`{a}",) for a in c.wrong}})
    for name, c in METRICS.items()
}

_CHAIN = (*tensors((10,), (2, 3), (0, 10, 2)), torch.full((2, 10), NAN), torch.zeros(2, 10, dtype=torch.int64))
_DRAWS = torch.randn(2, 10, 2, generator=torch.Generator().manual_seed(0))
_ENERGY = (*tensors((10,), (0, 10), (2, 10, 2)), torch.zeros(2, 10, dtype=torch.int64))


def _judged(call: Any, **wrong: tuple[Any, ...]) -> Case:
    chains = {"draws_MSD": _CHAIN, "chunk_size": maybe(COUNT)}
    return Case(call, lambda: {"draws_MSD": _DRAWS}, {**chains, **wrong}, named={"draws_MSD": ("draws",)})


DIAGNOSTICS = {
    **{
        f"diagnostics.{call.__name__}": _judged(call)
        for call in (
            diagnostics.ess,
            diagnostics.ess_bulk,
            diagnostics.ess_tail,
            diagnostics.mcse_mean,
            diagnostics.summary,
        )
    },
    **{
        f"diagnostics.{call.__name__}": Case(
            call,
            lambda: {"log_ratios": _DRAWS[0, :, 0]},
            {"log_ratios": (None, "text", 3, torch.zeros(4, dtype=torch.int64), torch.full((9,), NAN))},
        )
        for call in (diagnostics.pareto_k, diagnostics.psis)
    },
    "diagnostics.stacking_weights": Case(
        diagnostics.stacking_weights,
        lambda: {"log_densities_NK": _DRAWS[0]},
        {
            "log_densities_NK": (None, "text", 3, torch.zeros(4, 2, dtype=torch.int64), torch.full((9, 2), NAN)),
            "row_weights_N": ("text", torch.full((len(_DRAWS[0]),), NAN), torch.ones(3)),
            "pseudo_rows": NOT_NEGATIVE,
        },
    ),
    "diagnostics.rhat": _judged(diagnostics.rhat, method=WORD),
    "diagnostics.autocorrelation": Case(
        diagnostics.autocorrelation,
        lambda: {"draws_MSD": _DRAWS, "max_lag": 3},
        {"draws_MSD": _CHAIN, "max_lag": (*WHOLE, 10), "per_chain": FLAG, "chunk_size": maybe(COUNT)},
        named={"draws_MSD": ("draws",)},
    ),
    "diagnostics.acceptance": Case(
        diagnostics.acceptance, lambda: {"energy_error_MS": _DRAWS[..., 0]}, {"energy_error_MS": _ENERGY}
    ),
    "diagnostics.divergences": Case(
        diagnostics.divergences,
        lambda: {"energy_error_MS": _DRAWS[..., 0]},
        {"energy_error_MS": _ENERGY, "threshold": POSITIVE},
    ),
    "diagnostics.ebfmi": Case(
        diagnostics.ebfmi, lambda: {"energy_MS": _DRAWS[..., 0]}, {"energy_MS": (*_ENERGY, torch.full((2, 10), NAN))}
    ),
    "diagnostics.efficiency": Case(
        diagnostics.efficiency,
        lambda: {"ess": _ONES, "gradients": 10},
        {"ess": (None, "text", 3, torch.zeros(4, dtype=torch.int64)), "gradients": COUNT},
    ),
    "diagnostics.modes_visited": Case(
        diagnostics.modes_visited,
        lambda: {"draws_MSD": _DRAWS, "centres_KD": torch.zeros(2, 2), "radius": 1.0},
        {
            "draws_MSD": tensors((2,), (2, 10, 3), (0, 10, 2)),
            "centres_KD": tensors((2,), (2, 3), (0, 2)),
            "radius": POSITIVE,
        },
        named={"draws_MSD": ("draws", "Draws", "`centres_KD`"), "centres_KD": ("centres",)},
    ),
    "diagnostics.to_arviz": Case(
        diagnostics.to_arviz,
        lambda: {"draws": _DRAWS},
        {
            "draws": (None, "text", 3, {}, {"a": 3}, torch.zeros(3)),
            "sample_stats": ("text", 3, {"a": 3}, {"a": torch.zeros(3, 3)}),
            "log_likelihood": ("text", 3, {"a": 3}, torch.zeros(3, 3)),
            "observed_data": ("text", 3, {"a": 3}),
        },
    ),
}


def _target() -> evidence.FunctionTarget:
    return evidence.FunctionTarget(
        lambda w: torch.distributions.Normal(0.0, 1.0).log_prob(w).sum(-1),
        lambda w: -0.5 * ((w - 0.5) ** 2).sum(-1),
        lambda count, seed: torch.randn(count, 1, generator=torch.Generator().manual_seed(seed % 2**32)),
    )


_MODEL = (*OBJECT, torch.nn.Linear(2, 3))
_TEMPERATURES = (
    NAN,
    "text",
    1,
    -1,
    2.5,
    True,
    [3.0],
    [0.0, 0.5],
    [0.0, 1.0, 0.5],
    [0.0, NAN, 1.0],
    torch.zeros(2, 2),
    int,
)


def _estimated(call: Any, good: dict[str, Any], **wrong: tuple[Any, ...]) -> Case:
    shared = {"model": _MODEL, "data": (3, "text", things.DATA), "seed": SEED}
    return Case(
        call, lambda: {"model": _target(), **good}, {**shared, **wrong}, named={"model": ("Model",), "data": ("data",)}
    )


EVIDENCE = {
    "evidence.annealed_importance_sampling": _estimated(
        evidence.annealed_importance_sampling,
        {"particles": 16, "temperatures": 4},
        particles=COUNT,
        temperatures=_TEMPERATURES,
        leapfrogs=COUNT,
    ),
    "evidence.reverse_annealing": _estimated(
        evidence.reverse_annealing,
        {"draws": torch.zeros(16, 1).normal_(generator=torch.Generator().manual_seed(0)), "temperatures": 4},
        draws=(*tensors((3,), (3, 2), (0, 1)), torch.full((3, 1), NAN)),
        temperatures=_TEMPERATURES,
        leapfrogs=COUNT,
    ),
    "evidence.prior_monte_carlo": _estimated(evidence.prior_monte_carlo, {"draws": 100}, draws=COUNT),
    "evidence.thermodynamic_integration": _estimated(
        evidence.thermodynamic_integration,
        {"chains": 2, "steps": 30, "temperatures": 3, "leapfrogs": 2},
        chains=COUNT,
        steps=(*COUNT, 29),
        temperatures=(*_TEMPERATURES, 2),
        leapfrogs=COUNT,
    ),
    "evidence.linear_gaussian_evidence": Case(
        evidence.linear_gaussian_evidence,
        lambda: {"model": things.regression(), "data": (things.INPUTS, things.INPUTS[:, :1])},
        {"model": (*_MODEL, things.model()), "data": (None, 3, "text", things.DATA)},
        named={"model": ("Model", "linear", "likelihood"), "data": ("data", "targets")},
    ),
    "evidence.power": Case(evidence.power, lambda: {"count": 5}, {"count": (*COUNT, 1), "exponent": POSITIVE}),
    "evidence.sigmoidal": Case(evidence.sigmoidal, lambda: {"count": 5}, {"count": (*COUNT, 1), "sharpness": POSITIVE}),
    "evidence.FunctionTarget": Case(
        evidence.FunctionTarget,
        lambda: dict.fromkeys(("log_prior", "log_likelihood", "draw"), torch.sum),
        dict.fromkeys(("log_prior", "log_likelihood", "draw"), FUNCTION),
    ),
    "evidence.ModelTarget": Case(
        evidence.ModelTarget,
        lambda: {"model": things.model(), "data": things.DATA},
        {
            "model": _MODEL,
            "data": (None, 3, "text", (things.INPUTS, things.LABELS + 1)),
            "plan": WORD,
            "chunk_size": COUNT,
        },
        named={"model": ("Model",)},
    ),
    "evidence.AnnealedDensity": Case(
        evidence.AnnealedDensity,
        lambda: {"target": _target(), "beta_M": torch.ones(1)},
        {
            "target": OBJECT,
            "beta_M": (
                None,
                "text",
                NAN,
                torch.full((1,), 2.0),
                -torch.ones(1),
                torch.full((1,), NAN),
                torch.zeros(2, 2),
            ),
        },
        named={"beta_M": ("`beta_M`", "inverse temperatures")},
    ),
}


def _placed(call: Any, good: dict[str, Any] | None = None, **wrong: tuple[Any, ...]) -> Case:
    """A function of a network at one place: model, data, weights; `good` are values beside these."""
    size = things.weights(1).shape[1]
    at = (*OBJECT, torch.nn.Linear, torch.zeros(3), torch.zeros(2, size), torch.full((size,), NAN), things.point())
    shared = {
        "model": _MODEL,
        "data": (None, 3, "text", (things.INPUTS, things.LABELS + 1)),
        "weights": at,
        "seed": SEED,
    }
    return Case(
        call,
        lambda: {"model": things.model(), "data": things.DATA, "weights": things.net(), **(good or {})},
        {**shared, **wrong},
        named={"model": ("Model",), "data": ("data", "class labels", "targets", "inputs"), "weights": ("weights",)},
    )


_MATRIX = {"matrix": WORD, "chunk_size": COUNT}
GEOMETRY = {
    "geometry.curved_directions": _placed(geometry.curved_directions, rank=COUNT, steps=COUNT, **_MATRIX),
    "geometry.spectrum": _placed(geometry.spectrum, steps=COUNT, probes=COUNT, **_MATRIX),
    "geometry.trace": _placed(geometry.trace, products=(*COUNT, 2), **_MATRIX),
    "geometry.basin": _placed(
        geometry.basin,
        threshold=POSITIVE,
        directions=(*COUNT, 1),
        shape=(*but(OBJECT, object), "", torch.zeros(3), torch.zeros(things.weights(1).shape[1]), torch.zeros(2, 2)),
        limit=maybe(POSITIVE),
    ),
    "geometry.rays": _placed(geometry.rays, directions=COUNT, radius=maybe(POSITIVE), points=(*COUNT, 1), shape=WORD),
    "geometry.learning_coefficient": _placed(
        geometry.learning_coefficient,
        {"method": tb.MALA(chains=2, steps=20, burn_in=10)},
        inverse_temperature=maybe(POSITIVE),
        localisation=NOT_NEGATIVE,
        method=maybe((*OBJECT, things.net())),
        chunk_size=COUNT,
    ),
}


def _images() -> torch.Tensor:
    return torch.full((2, 1, 8, 8), 0.5)


def _digits() -> data.Data:
    return data.load("digits", train_size=10)


DATA = {
    "data.load": Case(
        data.load,
        lambda: {"name": "digits"},
        {
            "name": (*WORD, "notmnist"),
            "split": (*WHOLE, 20),
            "train_size": (*but(COUNT, None), 10**6),
            "seed": SEED,
            "root": (3, NAN, ["x"], str),
            "classes": (3, NAN, "text", str, (), ("1",), ("1", "1"), ("1", "x"), (1, 2), {"1", "2"}, (None, "1")),
        },
        named={"name": ("data set", "`name`", "`notmnist`"), "classes": ("`classes`", "class of")},
    ),
    "data.num_splits": Case(data.num_splits, lambda: {"name": "digits"}, {"name": WORD}, named={"name": ("data set",)}),
    "data.corrupt": Case(
        data.corrupt,
        lambda: {"images": _images(), "name": "fog", "severity": 1},
        {
            "images": (*tensors((8, 8)), -_images(), 3 * _images(), _images() * NAN, _images().long()),
            "name": WORD,
            "severity": (*COUNT, 6),
            "seed": SEED,
        },
        named={"name": ("corruption",)},
    ),
    "data.corrupt_data": Case(
        data.corrupt_data,
        lambda: {"data": _digits(), "name": "fog", "severity": 1, "limit": 3},
        {
            "data": (*OBJECT, data.load("two_moons")),
            "name": WORD,
            "severity": (*COUNT, 6),
            "seed": SEED,
            "limit": but(COUNT, None),
        },
        named={"name": ("corruption",), "data": ("data", "two_moons")},
    ),
    "data.out_of_distribution": Case(
        data.out_of_distribution,
        lambda: {"data": _digits(), "name": "letters", "limit": 2},
        {
            "data": (*OBJECT, data.load("two_moons")),
            "name": (*but(WORD, None), "two_moons"),
            "limit": but(COUNT, None),
            "seed": SEED,
            "root": (3, NAN, ["x"], str),
        },
        named={"name": ("out-of-distribution set",), "data": ("data", "two_moons"), "root": ("`root`",)},
    ),
    "data.Standardise": Case(
        data.Standardise,
        lambda: {"mean": torch.zeros(2), "scale": torch.ones(2)},
        {
            "mean": (None, "text", 3, torch.full((2,), NAN)),
            "scale": (None, "text", 3, torch.zeros(2), -torch.ones(2), torch.full((2,), NAN)),
        },
    ),
}

_SHAPE = (None, "text", NAN, (), (0,), (-1, 8, 8), (1.5, 8, 8), ("a",), True)


def _network(call: Any, shape: Any = (1, 16, 16), images: bool = True, **wrong: tuple[Any, ...]) -> Case:
    shapes = (*_SHAPE, (8,), 8, (1, 2, 2)) if images else _SHAPE
    good = {"input_shape": shape, "num_outputs": 3}
    return Case(call, lambda: good, {"input_shape": shapes, "num_outputs": COUNT, **wrong})


NETWORKS = {
    "networks.linear": _network(networks.linear, images=False),
    "networks.mlp": _network(
        networks.mlp,
        images=False,
        hidden=(None, 3, "text", (0,), (-1,), (1.5,), ("a",), (True,), (NAN,)),
        activation=WORD,
        dropout=SHARE,
    ),
    "networks.tabular": _network(
        networks.tabular,
        images=False,
        encoding=("text", 3, NAN, torch.zeros(2), networks.ColumnEncoding.fit(torch.eye(3))),
        hidden=(None, 3, "text", (0,), (-1,), (1.5,), ("a",), (True,), (NAN,)),
        activation=WORD,
        dropout=SHARE,
    ),
    "networks.ColumnEncoding": Case(
        networks.ColumnEncoding,
        lambda: dict(networks.ColumnEncoding.fit(torch.eye(3)[:, :2] + torch.arange(3.0)[:, None]).state_dict()),
        {
            "centre": (None, "text", 3, torch.zeros(0), torch.zeros(3)),
            "factor": (None, "text", 3, torch.zeros(3)),
            "column": (None, "text", 3, torch.zeros(1), torch.full((1,), 2)),
            "lower": (None, "text", 3, torch.zeros(1)),
            "width": (None, "text", 3, torch.zeros(1)),
            "marked": (None, "text", 3, torch.zeros(1), torch.full((1,), 2)),
        },
        named={"centre": ("`centre`", "`column`")},
    ),
    "networks.lenet": _network(
        networks.lenet,
        channels=(None, 3, "text", (), (20,), (20, 50, 50), (0, 50), (1.5, 50), ("a", "b"), (True, 50), (NAN, 50)),
        hidden=COUNT,
        dropout=SHARE,
    ),
    "networks.small_cnn": _network(networks.small_cnn, dropout=SHARE),
    "networks.preresnet20": _network(networks.preresnet20, width=COUNT),
    "networks.resnet20_frn": _network(networks.resnet20_frn, bias=FLAG, threshold=FLAG, width=COUNT),
    "networks.DropConnect": Case(
        networks.DropConnect,
        lambda: {"layer": torch.nn.Linear(2, 2)},
        {"layer": (*OBJECT, torch.nn.Linear, torch.nn.Tanh()), "dropout": SHARE},
    ),
    "networks.scale_rows": Case(
        networks.scale_rows, lambda: {"network": Adapted()}, {"network": (*OBJECT, torch.nn.Linear(2, 2))}
    ),
    "networks.MultiHead": Case(
        networks.MultiHead,
        lambda: {"body": torch.nn.Linear(2, 4), "heads": [torch.nn.Linear(4, 3)]},
        {
            "body": (*OBJECT, torch.nn.Linear, torch.zeros(3)),
            "heads": (*OBJECT, torch.nn.Linear, [], [torch.nn.Linear], [torch.nn.Linear(4, 3), None]),
        },
    ),
    "networks.for_head": Case(
        networks.for_head,
        lambda: {"rows": things.DATA, "head": 0},
        {
            "rows": (
                *OBJECT,
                things.INPUTS,
                (things.INPUTS,),
                (things.INPUTS, None),
                (things.INPUTS, things.LABELS[:5]),
            ),
            "head": WHOLE,
        },
        named={"rows": ("`rows`", "`inputs`", "`targets`")},
    ),
    "networks.build": Case(
        networks.build,
        lambda: {"name": "mlp", "input_shape": 2, "num_outputs": 1},
        {"name": WORD, "input_shape": _SHAPE, "num_outputs": COUNT},
        {"settings": "those of the network"},
        named={"name": ("network",)},
    ),
    "networks.FilterResponseNorm2d": Case(
        networks.FilterResponseNorm2d,
        lambda: {"channels": 2},
        {"channels": COUNT, "eps": POSITIVE, "threshold": FLAG},
    ),
}

_NOT_WEIGHTS = (*OBJECT[1:], torch.zeros(3), torch.full((1, things.weights(1).shape[1]), NAN), [torch.nn.Tanh(), 3])
_ROWS = (3, "text", (things.INPUTS, things.LABELS[1:]))
PERMUTATIONS = {
    "geometry.permutation_groups": Case(
        geometry.permutation_groups,
        lambda: {"model": things.model()},
        {"model": _MODEL, "data": _ROWS, "keep": (None, 3, NAN, [3], str)},
        named={"data": ("data", "inputs", "batch")},
    ),
    "geometry.align": Case(
        geometry.align,
        lambda: {"model": things.model(), "weights": things.point()},
        {
            "model": _MODEL,
            "weights": (None, *_NOT_WEIGHTS),
            "reference": (*_NOT_WEIGHTS, things.weights(2)),
            "method": (*WORD, "activations"),
            "data": _ROWS,
            "keep": (None, 3, NAN, [3], str),
            "seed": SEED,
            "chunk_size": COUNT,
        },
        named={"data": ("data", "inputs", "batch"), "method": ("`method`", "method=")},
    ),
    "geometry.interior": Case(
        geometry.interior,
        lambda: {"model": things.model(), "data": things.DATA, "networks": things.weights(2), "points": 1},
        {
            "model": _MODEL,
            "data": (None, *_ROWS),
            "networks": (None, *_NOT_WEIGHTS, things.weights(1)),
            "points": COUNT,
            "calibration": _ROWS,
            "chunk_size": COUNT,
            "seed": SEED,
        },
        named={"calibration": ("data", "inputs", "batch")},
    ),
    "geometry.barrier": Case(
        geometry.barrier,
        lambda: {
            "model": things.model(),
            "data": things.DATA,
            "first": things.weights(1),
            "second": things.weights(1)[0],
            "points": 2,
        },
        {
            "model": _MODEL,
            "data": (None, *_ROWS),
            "first": (None, *_NOT_WEIGHTS, things.weights(2)),
            "second": (None, *_NOT_WEIGHTS, things.weights(2)),
            "points": (*COUNT, 1),
            "calibration": _ROWS,
            "chunk_size": COUNT,
        },
        named={"calibration": ("data", "inputs", "batch")},
    ),
}

_LIMITS = (3, "text", ((1, 0), (0, 1)), ((0, NAN), (0, 1)))
SURFACES = {
    "geometry.Plane.through": Case(
        geometry.Plane.through,
        lambda: {"model": things.model(), "networks": things.weights(3)},
        {"model": _MODEL, "networks": (None, *_NOT_WEIGHTS, things.weights(2))},
    ),
    "geometry.Plane.random": Case(
        geometry.Plane.random,
        lambda: {"model": things.model(), "network": things.weights(1)},
        {"model": _MODEL, "network": (None, *_NOT_WEIGHTS, things.weights(2)), "seed": SEED, "shape": WORD},
    ),
    "geometry.surface": Case(
        geometry.surface,
        lambda: {
            "model": things.model(),
            "data": things.DATA,
            "plane": geometry.Plane.through(things.model(), things.weights(3)),
            "points": 2,
        },
        {
            "model": _MODEL,
            "data": (None, *_ROWS),
            "plane": (*OBJECT, geometry.Plane),
            "points": (*COUNT, 1),
            "limits": _LIMITS,
            "measure": (3, "text"),
            "calibration": _ROWS,
            "chunk_size": COUNT,
            "progress": FLAG,
        },
        named={"calibration": ("data", "inputs", "batch")},
    ),
}

CALIBRATION = {
    "calibration.fit": Case(
        tb.calibration.fit,
        lambda: {"posterior": things.point(), "data": things.DATA, "method": "ts"},
        {
            "posterior": (*OBJECT, tb.Point),
            "data": (None, *_ROWS),
            "method": WORD,
            "draws": CHOICE_OF_DRAWS,
            "seed": SEED,
            "chunk_size": COUNT,
        },
    ),
    "calibration.fit_calibrator": Case(
        tb.calibration.fit_calibrator,
        lambda: {"predictive": things.predictive(), "targets": things.LABELS, "method": "svs"},
        {
            "predictive": (*OBJECT, things.point()),
            "targets": (None, "text", NAN, torch.zeros(12), torch.full((12,), 3), torch.full((12,), -1)),
            "method": WORD,
        },
    ),
    "calibration.TemperatureScaling": Case(
        tb.calibration.TemperatureScaling,
        lambda: {"temperature": 2.0},
        {"temperature": POSITIVE, "uniform": SHARE},
    ),
    "calibration.LogLinear": Case(
        tb.calibration.LogLinear,
        lambda: {"weight": torch.ones(3), "bias": torch.zeros(3)},
        {
            "weight": (*tensors((2,), (2, 3)), torch.full((3,), NAN)),
            "bias": (*tensors((2,), (3, 3)), torch.full((3,), NAN)),
            "temperature": POSITIVE,
            "uniform": SHARE,
        },
        named={"bias": ("`bias`", "`weight`")},
    ),
    "calibration.LogOddsScaling": Case(
        tb.calibration.LogOddsScaling,
        lambda: {"bias": 0.0, "slope": 1.0},
        dict.fromkeys(("bias", "slope", "curvature"), REAL),
    ),
    "calibration.NoiseScaling": Case(tb.calibration.NoiseScaling, lambda: {"factor": 2.0}, {"factor": POSITIVE}),
}

TRAINERS = {
    "trainers.Collecting": Case(
        trainers.Collecting,
        lambda: {"collector": tb.SWA(members=2).collector(things.model())},
        {
            "collector": (*OBJECT, tb.SWA()),
            "after": maybe(WHOLE),
            "every": maybe(COUNT),
            "member": (*WHOLE, 2),
            "snapshots": FLAG,
        },
    ),
    "trainers.Optimizer": Case(
        trainers.Optimizer,
        lambda: {
            "network": things.net(),
            "model": things.model(),
            "method": tb.SGLD(chains=1),
            "num_data": 10,
            "steps_per_epoch": 2,
            "seed": 0,
        },
        {
            "network": (*OBJECT, torch.nn.Linear(2, 7)),
            "model": OBJECT,
            "method": (*OBJECT, tb.SGLD, tb.SWAG(), tb.SGLD(chains=2)),
            "num_data": COUNT,
            "steps_per_epoch": COUNT,
            "seed": SEED,
        },
    ),
}

ROOMS = {
    **TRAINERS,
    **METRICS,
    **DIAGNOSTICS,
    **EVIDENCE,
    **GEOMETRY,
    **PERMUTATIONS,
    **SURFACES,
    **DATA,
    **NETWORKS,
    **CALIBRATION,
    **CONFORMAL,
    **DECISIONS,
    **INVERSE,
    **ACQUISITION,
    **ADAPTERS,
    **LORA,
}
