"""Settings: methods, optimisers, schedules, priors and likelihoods."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import nn
from torch.distributions import Normal

import torchbayes as tb
from tests.refusals.nonsense import (
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
    SHARE,
    WHOLE,
    WORD,
    Case,
    but,
    maybe,
)
from torchbayes.catalogue import models as entries
from torchbayes.catalogue.methods import classes
from torchbayes.model import likelihoods, priors

_OPTIMIZER = (*OBJECT, tb.Adam, tb.Cosine(), torch.optim.Adam)
_SCHEDULE = (*OBJECT, tb.Cosine, tb.Steady(), tb.SGD())
_STEP_SCHEDULE = (*OBJECT, tb.Cycles, tb.Cosine())
_PRIOR = (*OBJECT, priors.Normal, tb.likelihoods.Categorical())
_PAIR = (None, 0.9, "ab", (0.9,), (NAN, 0.9), (0.9, 1.0), (-0.1, 0.9), (0.9, "a"), (True, 0.9))

_TRAINED: dict[str, tuple[Any, ...]] = {
    "members": COUNT,
    "epochs": maybe(COUNT),
    "batch_size": COUNT,
    "optimizer": _OPTIMIZER,
    "plan": WORD,
}
_ATTACKED = {"adversarial": maybe((*SHARE, 0.0))}
_AVERAGED = {
    **_TRAINED,
    **_ATTACKED,
    "averaging_lr": maybe(POSITIVE),
    "burn_in": maybe(SHARE),
    "per_epoch": maybe(COUNT),
}
_SAMPLED: dict[str, tuple[Any, ...]] = {
    "chains": COUNT,
    "steps": COUNT,
    "burn_in": (*WHOLE, 1000),
    "thin": (*COUNT, 900),
    "plan": WORD,
    "chunk_size": COUNT,
}
_METROPOLIS = {**_SAMPLED, "step_size": maybe(POSITIVE), "mass": WORD, "target_acceptance": OPEN_SHARE}
_WALKING = {
    **_SAMPLED,
    "burn_in": (*WHOLE, 10_000),
    "thin": (*COUNT, 4100),
    "step_size": maybe(POSITIVE),
    "trajectory": maybe(POSITIVE),
    "mass": WORD,
    "integrator": WORD,
    "energy_error": POSITIVE,
}
_STOCHASTIC = {
    **_SAMPLED,
    "burn_in": (*WHOLE, 10_000),
    "thin": (*COUNT, 4100),
    "step_size": maybe(POSITIVE),
    "batch_size": maybe(COUNT),
    "schedule": maybe(_STEP_SCHEDULE),
    "preconditioned": maybe(FLAG),
    "decay": SHARE,
    "floor": maybe(POSITIVE),
}
_CURVED: dict[str, tuple[Any, ...]] = {
    "structure": WORD,
    "curvature": WORD,
    "prior": WORD,
    "noise": FLAG,
    "batch_size": COUNT,
    "samples": COUNT,
    "sharing": WORD,
    "joint_bias": FLAG,
    "chunk": COUNT,
}

_FLOW: dict[str, tuple[Any, ...]] = {
    **_TRAINED,
    "schedule": _SCHEDULE,
    "layers": COUNT,
    "hidden": COUNT,
    "draws": COUNT,
    "initial_scale": POSITIVE,
    "kl_weight": maybe(POSITIVE),
}

METHODS = {
    "MAP": Case(tb.MAP, wrong={**_TRAINED, **_ATTACKED, "schedule": _SCHEDULE}),
    "MCDropout": Case(tb.MCDropout, wrong={**_TRAINED, "schedule": _SCHEDULE}),
    "ConcreteDropout": Case(
        tb.ConcreteDropout, wrong={**{n: w for n, w in _TRAINED.items() if n != "plan"}, "schedule": _SCHEDULE}
    ),
    "VBLL": Case(
        tb.VBLL,
        wrong={
            **{n: w for n, w in _TRAINED.items() if n != "plan"},
            "schedule": _SCHEDULE,
            "covariance": WORD,
            "bound": WORD,
            "rank": COUNT,
            "initial_scale": POSITIVE,
            "kl_weight": maybe(POSITIVE),
        },
    ),
    "EP": Case(
        tb.EP,
        wrong={
            "power": (*POSITIVE, 1.5, 1e-9),
            "order": WORD,
            "sweeps": COUNT,
            "damping": (*maybe(POSITIVE), 1.5),
            "tolerance": POSITIVE,
            "batch_size": COUNT,
        },
    ),
    "PBP": Case(
        tb.PBP,
        wrong={"members": COUNT, "epochs": COUNT, "prior": WORD, "shape": (*POSITIVE, 1.0), "batch_size": COUNT},
    ),
    "MCBatchNorm": Case(tb.MCBatchNorm, wrong={"batch_size": (*COUNT, 1), "draws": COUNT, "members": COUNT}),
    "SWA": Case(tb.SWA, wrong=_AVERAGED),
    "SWAG": Case(tb.SWAG, wrong={**_AVERAGED, "rank": (*WHOLE, 1), "scale": maybe(NOT_NEGATIVE)}),
    "Laplace": Case(
        tb.Laplace,
        wrong={
            **_CURVED,
            "prior": POSITIVE,
            "rank": maybe(COUNT),
            "passes": COUNT,
            "check_mode": FLAG,
            "members": COUNT,
        },
    ),
    "BLoB": Case(
        tb.BLoB,
        wrong={
            **_TRAINED,
            "schedule": _SCHEDULE,
            "draws": COUNT,
            "antithetic": FLAG,
            "initial_scale": maybe(POSITIVE),
            "kl_weight": maybe(POSITIVE),
        },
    ),
    "TFB": Case(
        tb.TFB,
        wrong={
            "tolerance": POSITIVE,
            "largest": POSITIVE,
            "passes": COUNT,
            "draws": COUNT,
            "batch_size": COUNT,
            "members": COUNT,
            "plan": WORD,
        },
    ),
    "OnlineLaplace": Case(
        tb.OnlineLaplace,
        wrong={
            **_CURVED,
            "epochs_of_descent": maybe(COUNT),
            "every": maybe(COUNT),
            "burn_in": SHARE,
            "optimizer": _OPTIMIZER,
            "schedule": _SCHEDULE,
            "factor": POSITIVE,
            "check_mode": FLAG,
            "plan": WORD,
        },
    ),
    "VI": Case(
        tb.VI,
        wrong={
            **_TRAINED,
            "structure": WORD,
            "schedule": _SCHEDULE,
            "estimator": WORD,
            "alpha": NOT_NEGATIVE,
            "draws": maybe(COUNT),
            "antithetic": FLAG,
            "rank": COUNT,
            "initial_scale": POSITIVE,
            "relative_scale": maybe(POSITIVE),
            "kl_weight": maybe(POSITIVE),
        },
    ),
    "NormalizingFlow": Case(tb.NormalizingFlow, wrong={**_FLOW, "transform": WORD, "bins": (*COUNT, 1)}),
    "MNF": Case(tb.MNF, wrong={**_FLOW, "multiplier_scale": POSITIVE, "estimator": WORD}),
    "IVON": Case(
        tb.IVON,
        wrong={
            "members": COUNT,
            "epochs": maybe(COUNT),
            "batch_size": COUNT,
            "lr": POSITIVE,
            "momentum": SHARE,
            "hessian_decay": maybe(SHARE),
            "hessian_init": POSITIVE,
            "draws": COUNT,
            "antithetic": (*FLAG, True),
            "clip": maybe(POSITIVE),
            "schedule": _SCHEDULE,
            "plan": WORD,
        },
    ),
    "FGE": Case(
        tb.FGE,
        wrong={
            **_TRAINED,
            **_ATTACKED,
            "cycle": maybe(COUNT),
            "burn_in": SHARE,
            "high_lr": maybe(POSITIVE),
            "low_lr": maybe((*POSITIVE, 1.0)),
            "draws": maybe(COUNT),
        },
    ),
    "Snapshots": Case(tb.Snapshots, wrong={**_TRAINED, **_ATTACKED, "cycles": COUNT, "draws": maybe(COUNT)}),
    "BSAM": Case(
        tb.BSAM,
        wrong={
            "members": COUNT,
            "epochs": maybe(COUNT),
            "batch_size": COUNT,
            "lr": POSITIVE,
            "momentum": SHARE,
            "decay": SHARE,
            "rho": POSITIVE,
            "initial_scale": maybe(POSITIVE),
            "damping": POSITIVE,
            "parts": COUNT,
            "schedule": _SCHEDULE,
            "plan": WORD,
        },
    ),
    "HMC": Case(
        tb.HMC,
        wrong={
            **_METROPOLIS,
            "trajectory": maybe(POSITIVE),
            "jitter": SHARE,
            "max_leapfrogs": COUNT,
            "leapfrogs_in_burn_in": COUNT,
            "halvings": WHOLE,
            "accept_in_burn_in": FLAG,
        },
    ),
    "NUTS": Case(tb.NUTS, wrong={**_METROPOLIS, "max_doublings": COUNT}),
    "RandomWalk": Case(tb.RandomWalk, wrong=_METROPOLIS),
    "MALA": Case(tb.MALA, wrong=_METROPOLIS),
    "MCLMC": Case(tb.MCLMC, wrong=_WALKING),
    "MILE": Case(tb.MILE, wrong={"members": COUNT, "sampler": (*OBJECT, tb.MAP()), "ensemble": OBJECT}),
    "MAMS": Case(tb.MAMS, wrong={**_WALKING, "target_acceptance": OPEN_SHARE, "max_leapfrogs": COUNT}),
    "UnderdampedLangevin": Case(tb.UnderdampedLangevin, wrong=_WALKING),
    "Curve": Case(tb.Curve, wrong={**_TRAINED, "schedule": _SCHEDULE, "bends": COUNT, "shape": WORD}),
    "Simplex": Case(
        tb.Simplex,
        wrong={
            **_TRAINED,
            "schedule": _SCHEDULE,
            "vertices": COUNT,
            "modes": COUNT,
            "volume_weight": NOT_NEGATIVE,
        },
    ),
    "EllipticalSlice": Case(tb.EllipticalSlice, wrong={**_SAMPLED, "scale": maybe(POSITIVE)}),
    "SGLD": Case(tb.SGLD, wrong=_STOCHASTIC),
    "SGHMC": Case(
        tb.SGHMC,
        wrong={
            **_STOCHASTIC,
            "momentum": SHARE,
            "form": WORD,
            "noise_estimate": (*NOT_NEGATIVE, 0.5),
        },
    ),
    "SGNHT": Case(tb.SGNHT, wrong={**_STOCHASTIC, "diffusion": maybe(POSITIVE)}),
    "SMILE": Case(
        tb.SMILE,
        wrong={**_STOCHASTIC, "trajectory": maybe(POSITIVE), "energy_error": POSITIVE, "noise_share": POSITIVE},
    ),
}

OPTIMISERS = {
    "SGD": Case(tb.SGD, wrong={"lr": POSITIVE, "momentum": SHARE, "nesterov": FLAG}),
    "Adam": Case(tb.Adam, wrong={"lr": POSITIVE, "betas": _PAIR, "eps": POSITIVE}),
    "AdamW": Case(tb.AdamW, wrong={"lr": POSITIVE, "betas": _PAIR, "eps": POSITIVE, "weight_decay": NOT_NEGATIVE}),
    "SAM": Case(
        tb.SAM,
        wrong={"base": (*OBJECT, tb.Adam, tb.SAM(), tb.Cosine()), "rho": POSITIVE, "adaptive": FLAG, "parts": COUNT},
    ),
    "Constant": Case(tb.Constant),
    "Cosine": Case(tb.Cosine, wrong={"final": NOT_NEGATIVE, "warmup": SHARE}),
    "PiecewiseLinear": Case(tb.PiecewiseLinear, wrong={"final": NOT_NEGATIVE, "end": (*NOT_NEGATIVE, 1.5)}),
    "Decay": Case(tb.Decay, wrong={"offset": POSITIVE, "power": NOT_NEGATIVE}),
    "Cycles": Case(tb.Cycles, wrong={"length": COUNT, "exploration": SHARE, "draws": COUNT}),
    "Steady": Case(tb.Steady),
    "Halving": Case(tb.Halving),
    "WarmUp": Case(tb.WarmUp, wrong={"share": (*POSITIVE, 1.5)}),
}

_SCALED = {"scale": POSITIVE, "loc": REAL}
_NO_COVARIANCE = (
    *OBJECT,
    torch.ones(2),
    torch.ones(2, 3),
    torch.ones(2, 2),
    torch.full((2, 2), NAN),
    torch.eye(2) * 1j,
)


def _square() -> dict[str, Any]:
    return {"covariance": torch.eye(2)}


PRIORS = {
    "priors.Normal": Case(priors.Normal, wrong=_SCALED),
    "priors.Laplace": Case(priors.Laplace, wrong=_SCALED),
    "priors.StudentT": Case(priors.StudentT, wrong={**_SCALED, "df": POSITIVE}),
    "priors.LogInverseChi": Case(
        priors.LogInverseChi,
        wrong={"df": POSITIVE, "scale": (*but(POSITIVE, [1]), (), (1.0, NAN), (1.0, 0.0), (1.0, "a"))},
    ),
    "priors.Logistic": Case(priors.Logistic, wrong=_SCALED),
    "priors.NormalMixture": Case(
        priors.NormalMixture,
        wrong={
            name: (None, 1.0, "ab", (), (1.0,), (1.0, NAN), (1.0, 0.0), (1.0, -1.0), (1.0, INF), (1.0, "a"))
            for name in ("scales", "proportions")
        },
    ),
    "priors.Correlated": Case(priors.Correlated, _square, {"covariance": _NO_COVARIANCE}),
    "priors.Correlated.filters": Case(
        priors.Correlated.filters,
        wrong={"kernel_size": (*but(COUNT, [1]), (), (2, 0)), "lengthscale": POSITIVE, "scale": POSITIVE},
    ),
    "priors.EmpCov": Case(priors.EmpCov, _square, {"covariance": _NO_COVARIANCE}),
    "priors.EmpCov.of": Case(
        priors.EmpCov.of,
        lambda: {"inputs": torch.eye(3), "layer": nn.Linear(3, 2)},
        {
            "inputs": (*but(OBJECT, ["text"]), ["text"], torch.ones(1, 3), torch.full((2, 3), NAN), torch.eye(3) > 0),
            "layer": (*but(OBJECT, None), nn.Tanh(), nn.Conv2d(2, 2, 1, groups=2)),
            "scale": POSITIVE,
            "jitter": POSITIVE,
        },
    ),
    "priors.Hierarchical": Case(priors.Hierarchical, wrong={"scale": POSITIVE, "df": maybe(POSITIVE), "groups": WORD}),
    "priors.LogHalfCauchy": Case(priors.LogHalfCauchy, wrong={"scale": POSITIVE}),
    "priors.LogHalfNormal": Case(priors.LogHalfNormal, wrong={"scale": POSITIVE}),
    "priors.GroupHorseshoe": Case(priors.GroupHorseshoe, wrong={"scale": POSITIVE}),
    "priors.GroupNormalJeffreys": Case(priors.GroupNormalJeffreys),
    "priors.with_multipliers": Case(
        priors.with_multipliers,
        lambda: {"network": nn.Sequential(nn.Linear(3, 2)), "rules": priors.GroupNormalJeffreys()},
        {
            "network": (*OBJECT, nn.Tanh()),
            "rules": (*OBJECT, {}, priors.Normal(), priors.GroupHorseshoe, {"*": priors.Normal()}, {"x": 3}),
        },
        named={"network": ("`network`", "`rules`")},
    ),
    "priors.with_scales": Case(
        priors.with_scales,
        lambda: {"network": nn.Linear(3, 2), "rules": priors.Hierarchical()},
        {
            "network": OBJECT,
            "rules": (*OBJECT, {}, priors.Normal(), priors.Hierarchical, {"*": priors.Normal()}, {"x": 3}),
        },
    ),
    "priors.Horseshoe": Case(priors.Horseshoe, wrong={"scale": POSITIVE}),
    "priors.LogUniform": Case(priors.LogUniform),
    "priors.Flat": Case(priors.Flat),
    "priors.FanInNormal": Case(priors.FanInNormal, wrong={"gain": POSITIVE, "bias_scale": POSITIVE}),
    "priors.Univariate": Case(
        priors.Univariate,
        lambda: {"distribution": Normal(0.0, 1.0)},
        {"distribution": (*OBJECT, Normal, Normal(torch.zeros(2), 1.0))},
    ),
}

LIKELIHOODS = {
    "likelihoods.Categorical": Case(
        likelihoods.Categorical,
        wrong={
            "weights": (1.0, "ab", (), (1.0, NAN), (1.0, -1.0), (1.0, INF), (1.0, "a"), (0.0, 0.0), torch.zeros(())),
            "ignore_index": (NAN, 1.5, "a", [1], True, int),
            "label_smoothing": SHARE,
            "class_axis": (0, 2, 1.5, "1", None, True),
        },
    ),
    "likelihoods.Bernoulli": Case(likelihoods.Bernoulli, wrong={"soft": FLAG}),
    "likelihoods.Gaussian": Case(
        likelihoods.Gaussian,
        wrong={
            "scale": (*but(POSITIVE, "a lot", [1]), "learnt", (), (1.0, NAN), (1.0, 0.0), (1.0, -1.0), (1.0, "a")),
            "outputs": COUNT,
            "initial": maybe(POSITIVE),
            "prior": maybe(_PRIOR),
            "spread": (*but(POSITIVE, None, [1]), (), (1.0, NAN), (1.0, 2.0)),
        },
    ),
    "likelihoods.HeteroscedasticGaussian": Case(likelihoods.HeteroscedasticGaussian, wrong={"floor": NOT_NEGATIVE}),
    "likelihoods.StudentT": Case(likelihoods.StudentT, wrong={"df": POSITIVE, "scale": POSITIVE}),
    "likelihoods.Poisson": Case(likelihoods.Poisson),
    "likelihoods.Probit": Case(likelihoods.Probit),
    "likelihoods.Custom": Case(
        likelihoods.Custom, lambda: {"function": lambda f: Normal(f, 1.0)}, {"function": (*FUNCTION, Normal(0.0, 1.0))}
    ),
    "likelihoods.Weighted": Case(
        likelihoods.Weighted, lambda: {"base": likelihoods.Poisson()}, {"base": (*OBJECT, likelihoods.Poisson)}
    ),
    "likelihoods.Learned": Case(
        likelihoods.Learned,
        lambda: {"shape": (1,), "initial": 0.0, "prior": priors.Normal()},
        {
            "shape": (None, "ab", 3, (-1,), (1.5,), ("a",)),
            "initial": (*but(REAL, [1]), (NAN,), (0.0, 1.0)),
            "prior": _PRIOR,
            "estimate": FLAG,
        },
    ),
}

SETTINGS = {**METHODS, **OPTIMISERS, **PRIORS, **LIKELIHOODS}


def _by_type(kind: str) -> tuple[Any, ...]:
    """What a setting must refuse whose type is written so."""
    base, optional = kind.removesuffix(" | None"), kind.endswith(" | None")
    actual = {"int": (NAN, "a lot", [1], 1.5, int), "float": (NAN, "a lot", [1], float), "bool": FLAG, "str": WORD}
    wrong = WORD if base.endswith("| str") or base.startswith("Literal") else actual.get(base, OBJECT)
    return but(wrong, None) if optional else wrong


def _names() -> dict[str, type]:
    """The classes of the catalogue by their public names: methods, priors and likelihoods."""
    listed = {"priors": entries.PRIORS, "likelihoods": entries.LIKELIHOODS}
    of = {f"{room}.{entry.kind.__name__}": entry.kind for room, actual in listed.items() for entry in actual.values()}
    return {**classes(), **of}


# a class of the catalogue that has no nonsense above refuses what its types rule out
SETTINGS |= {
    name: Case(kind, wrong={field.name: _by_type(str(field.type)) for field in fields(kind)})
    for name, kind in _names().items()
    if name not in SETTINGS
}
