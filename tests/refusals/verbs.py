"""The verbs and nouns: models, fits, posteriors, predictions."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.distributions import constraints

import torchbayes as tb
from tests.refusals import things
from tests.refusals.nonsense import (
    CHOICE_OF_DRAWS,
    COUNT,
    FLAG,
    FUNCTION,
    MAPPING,
    NAMED,
    NAN,
    OBJECT,
    PATH,
    POSITIVE,
    SEED,
    SHARE,
    WHOLE,
    WORD,
    Case,
    but,
    maybe,
    tensors,
)
from torchbayes.linalg import Diagonal

_FULL = torch.full((12, 2), NAN)
_INPUTS = (
    None,
    "text",
    3,
    NAN,
    torch.zeros(0, 2),
    torch.zeros(12, 3),
    torch.zeros(12),
    _FULL,
    torch.full((12, 2), 1e39, dtype=torch.float64),
)
_MODEL = (*OBJECT, tb.Model, nn.Linear(2, 3))
_POSTERIOR = (*OBJECT, tb.Point, nn.Linear(2, 3), torch.zeros(3))
_LABELS = (
    None,
    "text",
    NAN,
    torch.zeros(12),
    torch.zeros(11, dtype=torch.int64),
    torch.full((12,), 3),
    torch.full((12,), -1),
    torch.zeros(12, 1, dtype=torch.int64),
)
_DATA = (
    None,
    "text",
    3,
    NAN,
    (),
    (things.INPUTS,),
    (things.INPUTS, things.LABELS[:5]),
    (things.INPUTS[:0], things.LABELS[:0]),
    (_FULL, things.LABELS),
    (things.INPUTS, things.LABELS.float()),
    (things.INPUTS, things.LABELS + 1),
    [],
    (things.INPUTS, None),
    (None, things.LABELS),
    ("text", things.LABELS),
    dict,
)
_METHOD = (None, "SWAG", 3, NAN, tb.MAP, tb.SWAG, tb.HMC, tb.Adam(), ["MAP"])
_START = ("text", 3, NAN, tb.Point, nn.Linear(2, 3), torch.zeros(4), torch.zeros(3, 27), torch.full((27,), NAN))


def _fit() -> dict[str, Any]:
    return {"model": things.model(), "data": things.DATA, "method": tb.MAP(epochs=1), "callbacks": ()}


def _predict() -> dict[str, Any]:
    return {"posterior": things.point(), "inputs": things.INPUTS}


def _prediction(**wrong: Any) -> dict[str, Any]:
    return {"posterior": _POSTERIOR, "draws": CHOICE_OF_DRAWS, "seed": SEED, "chunk_size": COUNT, **wrong}


@wraps(tb.stream)
def _stream(**options: Any) -> None:
    list(tb.stream(**options))


_SCALED = {"prior_scale": maybe(POSITIVE)}
_POSTERIORS: dict[str, str] = dict.fromkeys(
    ("buffers_M", "statistics_known", "calibration", "problems", "sample_stats"), "set by `fit`"
)

VERBS = {
    "Model": Case(
        tb.Model,
        lambda: {"network": things.net(), "likelihood": tb.likelihoods.Categorical()},
        {
            "network": (*OBJECT, torch.zeros(3), nn.ReLU(), lambda: 3),
            "likelihood": (*but(OBJECT, object), tb.likelihoods.Categorical, tb.priors.Normal(), {"a": 1}),
            "prior": (
                *maybe(OBJECT),
                tb.priors.Normal,
                tb.likelihoods.Categorical(),
                {"*": None},
                {"*": tb.priors.Normal},
                {"x": tb.priors.Normal()},
                {},
            ),
            "random": (
                None,
                3,
                "nothing",
                [],
                [3],
                {"0.weight": torch.ones(2)},
                {"x": torch.ones(2, dtype=torch.bool)},
                {},
            ),
            "temperature": POSITIVE,
            "tempering": WORD,
            "batch": but(FUNCTION, None),
            "shared": (None, NAN, [None], [1.5], dict),
            "coupled": FLAG,
            "chunk_size": maybe(COUNT),
            "autocast": maybe(WORD),
        },
    ),
    "fit": Case(
        tb.fit,
        _fit,
        {
            "model": _MODEL,
            "data": _DATA,
            "method": _METHOD,
            "start": _START,
            "seed": SEED,
            "directory": but(PATH, None),
            "resume": FLAG,
            "steps": (*but(COUNT, None), 5),
            "callbacks": ("text", 3, NAN, [3], [None]),
            "ranks": (*but(OBJECT, None), tb.Ranks),
            "space": (*but(OBJECT, None), tb.Subspace, torch.ones(2, 27)),
            "validation": (0.0, 1.0, -0.1, NAN, 1, True, "text", nn.Linear),
        },
    ),
    "sequence": Case(
        tb.sequence,
        lambda: {"model": things.model(), "tasks": [things.DATA, things.DATA], "method": tb.MAP(epochs=1)},
        {
            "model": _MODEL,
            "tasks": (None, "text", 3, NAN, (), [], *_DATA[4:8], dict, [things.DATA, (_FULL, things.LABELS)], [None]),
            "method": (*_METHOD, tb.SGLD(), tb.VI(members=2)),
            "coreset": (*but(OBJECT, None), 3, tb.coresets.Random, tb.coresets.Random(12)),
            "seeker": (*but(_METHOD, None), tb.SGLD(), tb.MAP(members=2)),
            "directory": but(PATH, None),
            "resume": FLAG,
            "seed": SEED,
        },
        named={
            "tasks": ("`tasks`", "task", "data", "batch", "inputs", "targets"),
            "method": ("`method`", "posterior", "prior"),
        },
    ),
    "Task": Case(
        tb.Task,
        lambda: {"train": things.DATA},
        {"name": (None, 3, NAN, ["x"], str)},
        dict.fromkeys(("train", "test"), "`sequence` knows the model that they must fit"),
    ),
    "Learned.average": Case(things.learned().average, wrong={"metric": but(WORD, None)}),
    "Learned.backward_transfer": Case(things.learned().backward_transfer, wrong={"metric": but(WORD, None)}),
    "Learned.forward_transfer": Case(things.learned().forward_transfer, wrong={"metric": but(WORD, None)}),
    "compression.compress": Case(
        tb.compression.compress,
        lambda: {"posterior": things.multiplied(), "data": things.DATA},
        {
            "posterior": (*_POSTERIOR, things.point(), things.gaussian()),
            "data": _DATA[:5] + _DATA[7:8],
            "threshold": (*but(WORD, None)[:2], NAN, [1.0], {"9": 1.0}, {"0": NAN}),
            "rounded": FLAG,
        },
        named={"posterior": ("`posterior`", "multipliers", "member")},
    ),
    "compression.prune": Case(
        tb.compression.prune,
        lambda: {"posterior": things.gaussian(), "data": things.DATA, "keep": 0.5},
        {
            "posterior": (*_POSTERIOR, things.point(), things.multiplied()),
            "data": _DATA[:5] + _DATA[7:8],
            "keep": but(SHARE, None),
            "least": but(POSITIVE, None),
            "surgeon": FLAG,
            "rounded": FLAG,
        },
        named={"posterior": ("`posterior`", "multipliers", "member")},
    ),
    "distill": Case(
        tb.distill,
        lambda: {"posterior": things.point(), "inputs": things.DATA[0], "method": tb.MAP(epochs=1)},
        {
            "posterior": _POSTERIOR,
            "inputs": (None, 3, torch.zeros(0, 2), torch.full((4, 2), NAN)),
            "network": (torch.nn.Linear(2, 3), 3, "text"),
            "head": but(WORD, "auto"),
            "method": (tb.VI(), "MAP", tb.MAP(members=2)),
            "mixtures": but(WHOLE, None),
            "draws": but(COUNT, None),
            "seed": SEED,
        },
    ),
    "compression.unit_noise": Case(
        tb.compression.unit_noise,
        lambda: {"posterior": things.multiplied()},
        {"posterior": (*_POSTERIOR, things.gaussian())},
        named={"posterior": ("`posterior`", "multipliers")},
    ),
    "coresets.Random": Case(tb.coresets.Random, lambda: {"size": 3}, {"size": COUNT}),
    "coresets.KCentre": Case(tb.coresets.KCentre, lambda: {"size": 3}, {"size": COUNT, "first": WHOLE}),
    "sample": Case(
        tb.sample,
        lambda: {
            "density": things.density(),
            "method": tb.HMC(2, 4, 2, step_size=0.1, trajectory=0.2),
            "start_MD": torch.zeros(2, 3),
        },
        {
            "density": (*OBJECT, tb.FunctionDensity, things.density),
            "method": (*_METHOD, tb.MAP()),
            "start_MD": (
                None,
                "text",
                3,
                NAN,
                torch.zeros(3, 3),
                torch.zeros(2, 0),
                torch.full((2, 3), NAN),
                torch.zeros(2, 3, dtype=torch.int64),
            ),
            "parameters": (*but(OBJECT, None), {"w": 3}, tb.Parameters, tb.Parameters(w=3)),
            "seed": but(SEED, None),
            "callbacks": ("text", 3, NAN, [3], [None]),
            "resume": (*but(OBJECT, None), True, tb.Chains, things.chains()),
        },
    ),
    "Parameters": Case(
        lambda tau: tb.Parameters(tau=tau),
        lambda: {"tau": constraints.positive},
        {
            "tau": (
                None,
                "text",
                NAN,
                -1,
                0,
                (0,),
                (2.5,),
                constraints.greater_than,
                constraints.simplex,
                (2, constraints.boolean),
            )
        },
    ),
    "Posterior.module": Case(
        lambda draws=None, *, seed=0, level=0.95: things.point().module(draws, seed=seed, level=level),
        lambda: {},
        {"draws": but(CHOICE_OF_DRAWS, None), "seed": SEED, "level": but(SHARE, None)},
    ),
    "predict": Case(tb.predict, _predict, _prediction(inputs=_INPUTS)),
    "match_prior": Case(
        tb.match_prior,
        lambda: {"model": things.model(), "inputs": things.INPUTS, "kernel": tb.RBFKernel(), "steps": 20, "draws": 8},
        {
            "model": _MODEL,
            "inputs": _INPUTS,
            "kernel": (
                *OBJECT,
                tb.RBFKernel,
                torch.eye(3),
                torch.zeros(12, 12),
                torch.full((12, 12), NAN),
                -torch.eye(12),
                torch.ones(12, 12).triu(),
                lambda _: 3,
            ),
            "steps": COUNT,
            "draws": (*COUNT, 1),
            "seed": SEED,
        },
    ),
    "RBFKernel": Case(tb.RBFKernel, wrong={"lengthscale": POSITIVE, "scale": POSITIVE}),
    "LinearKernel": Case(tb.LinearKernel, wrong={"scale": POSITIVE, "bias_scale": POSITIVE}),
    "prior_predictive": Case(
        tb.prior_predictive,
        lambda: {"model": things.model(), "inputs": things.INPUTS},
        {"model": _MODEL, "inputs": _INPUTS, "draws": but(COUNT, None), "seed": SEED, "chunk_size": COUNT},
        {"calibration": "inputs of networks with batch norm, for others ignored"},
    ),
    "stream": Case(
        _stream,
        lambda: {"posterior": things.point(), "batches": [things.DATA]},
        _prediction(batches=(None, "text", 3, NAN, [3])),
    ),
    "evaluate": Case(
        tb.evaluate,
        lambda: {"posterior": things.point(), "data": things.DATA},
        _prediction(data=_DATA, target_scale=POSITIVE),
    ),
    "Evaluation.intervals": Case(
        things.evaluation().intervals, wrong={"level": SHARE, "resamples": COUNT, "seed": SEED}
    ),
    "difference": Case(
        tb.difference,
        lambda: dict.fromkeys(("first", "second"), things.evaluation()),
        {
            **dict.fromkeys(("first", "second"), OBJECT),
            "metric": WORD,
            "level": SHARE,
            "resamples": (*COUNT, 1),
            "seed": SEED,
        },
    ),
    "loo": Case(
        tb.loo,
        lambda: {"posterior": things.long_chains(), "data": things.DATA},
        {
            "posterior": (*OBJECT, things.point(), things.chains()),
            "data": _DATA,
            "refit": but(OBJECT, None),
            "chunk_size": COUNT,
        },
        named={"data": ("`data`", "data", "batch", "inputs", "targets")},
    ),
    "certify": Case(
        tb.certify,
        lambda: {
            "posterior": things.chains(),
            "data": things.DATA,
            "budget": tb.Budget(checks=("R-hat",)),
        },
        {
            "posterior": OBJECT,
            "data": _DATA,
            "method": ("text", 3, NAN, ["text"], object, tb.HMC),
            "inputs": but(_INPUTS, None),
            "budget": but(OBJECT, None),
            "directory": but(PATH, None),
            "model": but(_MODEL, None),
            "seed": SEED,
        },
        named={
            "data": ("`data`", "data", "batch", "inputs", "targets"),
            "inputs": ("inputs", "batch", "targets"),
        },
    ),
    "Budget": Case(
        tb.Budget,
        wrong={
            "simulations": (*COUNT, 1),
            "rows": COUNT,
            "folds": (*COUNT, 1),
            "seeds": COUNT,
            "source": WORD,
            "reference": OBJECT,
            "checks": ("simulation", ("nonsense",), None, 3),
        },
    ),
    "to_arviz": Case(
        tb.to_arviz,
        lambda: {"posterior": things.chains(), "data": things.DATA},
        {
            "posterior": OBJECT,
            "data": but(_DATA, None),
            "draws": CHOICE_OF_DRAWS,
            "weights": ("nothing", 3, [3]),
            "prior": FLAG,
            "seed": SEED,
            "chunk_size": COUNT,
        },
        named={"data": ("`data`", "data", "batch", "inputs", "targets")},
    ),
    "stack": Case(
        tb.stack,
        lambda: {"posteriors": things.chains(), "data": things.DATA},
        {
            "posteriors": (*OBJECT, [], [things.chains()], [things.chains(), 3], things.gaussian()),
            "data": _DATA,
            "names": ("text", 3, NAN, [], ["a", "a"], ["a", 3], ["a", "b", "c"]),
            "chunk_size": COUNT,
        },
        named={"data": ("`data`", "data", "batch", "inputs", "targets")},
    ),
    "WeightedMixture": Case(
        tb.WeightedMixture,
        lambda: {"model": things.model(), "parts": (things.chains(),), "shares": ((0.5, 0.5),)},
        {
            "model": OBJECT,
            "parts": (*OBJECT, (), [things.chains()], (3,)),
            "shares": (*OBJECT, (), ((1.0,),), ((0.5, NAN),), ((0.6, 0.6),), ((1.5, -0.5),)),
            "names": (None, "text", 3, NAN, ["a"]),
        },
        dict.fromkeys(_POSTERIORS, "as of every posterior"),
        named={"parts": ("`parts`", "`parts[", "`shares`")},
    ),
    "Tracker": Case(
        tb.Tracker,
        lambda: {"tracker": print},
        {"tracker": OBJECT, "name": NAMED},
        named={"name": ("`name`",)},
    ),
    "uncertainty": Case(tb.uncertainty, _predict, _prediction(inputs=_INPUTS)),
    "detection": Case(
        tb.detection,
        lambda: dict.fromkeys(("inside", "outside"), tb.uncertainty(things.point(), things.INPUTS)),
        {"inside": OBJECT, "outside": OBJECT},
    ),
    "fidelity": Case(
        tb.fidelity,
        lambda: {"probs_NK": torch.full((4, 2), 0.5), "reference_NK": torch.full((4, 2), 0.5)},
        dict.fromkeys(("probs_NK", "reference_NK"), (*tensors((4, 2), (4,), (3, 2)), torch.full((4, 2), NAN))),
    ),
    "TemperatureScaling": Case(
        tb.TemperatureScaling, lambda: {"temperature": 2.0}, {"temperature": POSITIVE, "uniform": SHARE}
    ),
    "TemperatureScaling.fit": Case(
        tb.TemperatureScaling.fit,
        lambda: {"predictive": things.predictive(), "targets": things.LABELS},
        {"predictive": (*OBJECT, things.point()), "targets": _LABELS},
    ),
    "diagnose": Case(
        tb.diagnose,
        lambda: {"posterior": things.chains(), "inputs": things.INPUTS},
        {
            "posterior": (*_POSTERIOR, things.point()),
            "inputs": (*_INPUTS[:6], *_INPUTS[7:]),
            "targets": but(_LABELS, None),
            "log": ("no/such/run", 3, NAN, dict, [3], [{}], [{"step": 1}]),
            "burn_in": but(WHOLE, None),
            "chunk_size": maybe(COUNT),
            "draws": (*but(COUNT, None), 30),
        },
    ),
    "tune": Case(
        tb.tune,
        lambda: {"posterior": things.laplace()},
        {
            "posterior": (*_POSTERIOR, things.point()),
            "prior": WORD,
            "noise": FLAG,
            "on": but(_DATA, None),
        },
    ),
    "subnetwork": Case(
        tb.subnetwork,
        lambda: {"posterior": things.gaussian(), "size": 3},
        {"posterior": (*_POSTERIOR, things.point()), "size": (*COUNT, 1000)},
    ),
    "as_prior": Case(
        tb.as_prior, lambda: {"posterior": things.gaussian()}, {"posterior": (*_POSTERIOR, things.point())}
    ),
    "functional_laplace": Case(
        tb.functional_laplace,
        lambda: {"model": things.model(), "data": things.DATA, "start": things.net()},
        {
            "model": _MODEL,
            "data": _DATA,
            "start": (*_START, None),
            "link": WORD,
            "largest": (*COUNT, 3),
            "chunk": COUNT,
        },
    ),
    "member_seeds": Case(tb.member_seeds, lambda: {"seed": 0, "members": 2}, {"seed": SEED, "members": COUNT}),
    "LogDensity": Case(
        tb.LogDensity,
        lambda: {"model": things.model(), "num_data": 12},
        {
            "model": _MODEL,
            "num_data": COUNT,
            "data": ("text", 3, NAN, [1], things.DATA, tb.Batch),
            "plan": WORD,
            "chunk_size": COUNT,
            "training": FLAG,
            "ranks": (*but(OBJECT, None), tb.Ranks),
        },
    ),
    "FunctionDensity": Case(tb.FunctionDensity, lambda: {"log_density": torch.sum}, {"log_density": FUNCTION}),
    "Ranks": Case(
        tb.Ranks,
        wrong={"data": COUNT, "chains": COUNT, "data_rank": (*WHOLE, 1), "chain_rank": (*WHOLE, 1), "opened": FLAG},
        free={"data_group": "a process group", "chain_group": "a process group"},
    ),
    "Point": Case(
        tb.Point,
        lambda: {"model": things.model(), "weights_MD": things.weights(2)},
        {"model": _MODEL, "weights_MD": tensors((27,), (2, 3), (0, 27), (1, 2, 27))},
        _POSTERIORS,
    ),
    "DropoutPosterior": Case(
        tb.DropoutPosterior,
        lambda: {"model": things.model(), "weights_MD": things.weights(2)},
        {
            "model": _MODEL,
            "weights_MD": tensors((27,), (2, 3), (0, 27), (1, 2, 27)),
            "rates_ML": (torch.full((2, 1), 0.1), torch.full((1, 0), 0.1)),
        },
        _POSTERIORS,
    ),
    "FlowPosterior": Case(
        tb.FlowPosterior,
        lambda: {
            "model": things.model(),
            "mean_MD": things.weights(2),
            "scale_MD": torch.ones(2, 27),
            "flow_MP": torch.zeros(2, 3 * 55),
            "transform": "planar",
            "layers": 3,
        },
        {
            "model": _MODEL,
            "mean_MD": tensors((27,), (2, 3), (0, 27), (1, 2, 27)),
            "scale_MD": (*tensors((27,), (2, 3), (1, 27)), torch.zeros(2, 27), -torch.ones(2, 27)),
            "flow_MP": tensors((165,), (1, 165), (2, 110)),
            "transform": WORD,
            "layers": COUNT,
            "hidden": COUNT,
            "bins": (*COUNT, 1),
        },
        _POSTERIORS,
    ),
    "MNFPosterior": Case(
        tb.MNFPosterior,
        lambda: {
            "model": things.model(),
            "mean_MD": things.weights(2),
            "scale_MD": torch.ones(2, 27),
            "flow_MP": torch.zeros(2, 4090),
        },
        {
            "model": _MODEL,
            "mean_MD": tensors((27,), (2, 3), (0, 27), (1, 2, 27)),
            "scale_MD": (*tensors((27,), (2, 3), (1, 27)), torch.zeros(2, 27), -torch.ones(2, 27)),
            "flow_MP": tensors((165,), (1, 165), (2, 110)),
            "layers": COUNT,
            "hidden": COUNT,
        },
        _POSTERIORS,
    ),
    "BatchNormPosterior": Case(
        tb.BatchNormPosterior,
        lambda: {"model": things.model(), "weights_MD": things.weights(2), "statistics_MK": {}},
        {
            "model": _MODEL,
            "weights_MD": tensors((27,), (2, 3), (0, 27), (1, 2, 27)),
            "statistics_MK": ({"1.running_mean": torch.zeros(2, 3, 4)},),
        },
        _POSTERIORS,
    ),
    "Draws": Case(
        tb.Draws,
        lambda: {"model": things.model(), "weights_MSD": things.weights(2, 6)},
        {"model": _MODEL, "weights_MSD": tensors((27,), (2, 27), (0, 2, 27), (2, 6, 5))},
        _POSTERIORS,
    ),
    "RadialPosterior": Case(
        tb.RadialPosterior,
        lambda: {"model": things.model(), "mean_MD": things.weights(1), "scale_MD": torch.ones(1, 27)},
        {
            "model": _MODEL,
            "mean_MD": tensors((27,), (1, 3), (0, 27)),
            "scale_MD": tensors((27,), (1, 3), (0, 27), (2, 27)),
        },
        _POSTERIORS,
    ),
    "Gaussian": Case(
        tb.Gaussian,
        lambda: {
            "model": things.model(),
            "mean_MD": things.weights(1),
            "covariance": Diagonal(torch.ones(1, 27)),
        },
        {
            "model": _MODEL,
            "mean_MD": tensors((27,), (1, 3), (0, 27)),
            "covariance": (*OBJECT, Diagonal, torch.ones(1, 27), Diagonal(torch.ones(1, 3))),
            "linear": FLAG,
            "log_evidence_M": maybe(tensors((), (2,), (1, 1))),
        },
        _POSTERIORS,
    ),
    "Subspace": Case(
        tb.Subspace,
        lambda: {"model": things.regression(), "origin": torch.zeros(3), "basis_RD": torch.eye(2, 3)},
        {
            "model": _MODEL,
            "origin": tensors((), (2,), (1, 3)),
            "basis_RD": tensors((3,), (0, 3), (2, 2), (2, 3), (1, 2, 3)),
            **_SCALED,
        },
    ),
    "Subspace.random": Case(
        tb.Subspace.random,
        lambda: {"model": things.regression(), "origin": torch.zeros(3), "rank": 2},
        {"model": _MODEL, "origin": tensors((), (2,), (1, 3)), "rank": COUNT, "seed": SEED, **_SCALED},
    ),
    "Subspace.spanned": Case(
        tb.Subspace.spanned,
        lambda: {"model": things.regression(), "weights_SD": things.weights(4)[:, :3], "rank": 2},
        {"model": _MODEL, "weights_SD": tensors((3,), (0, 3), (4, 2), (4, 3)), "rank": COUNT, **_SCALED},
    ),
    "Subspace.of": Case(
        tb.Subspace.of,
        lambda: {"posterior": tb.Draws(things.regression(), things.weights(4)[:, :3].unsqueeze(0)), "rank": 2},
        {"posterior": OBJECT, "rank": COUNT, "model": _MODEL[1:], **_SCALED},
    ),
    "CurvePosterior": Case(
        tb.CurvePosterior,
        lambda: {"model": things.model(), "points_MPD": things.weights(3).unsqueeze(0)},
        {"model": _MODEL, "points_MPD": tensors((27,), (1, 27), (1, 1, 27), (1, 3, 5), (0, 3, 27)), "shape": WORD},
        _POSTERIORS,
    ),
    "SimplexPosterior": Case(
        tb.SimplexPosterior,
        lambda: {"model": things.model(), "vertices_MPD": things.weights(3).unsqueeze(0)},
        {
            "model": _MODEL,
            "vertices_MPD": tensors((27,), (1, 27), (1, 1, 27), (1, 3, 5), (0, 3, 27)),
            "modes": (*COUNT, 3),
        },
        _POSTERIORS,
    ),
    "InSubspace": Case(
        tb.InSubspace,
        lambda: {"model": things.space().whole, "inner": things.inner(), "space": things.space()},
        {"model": _MODEL, "inner": (*OBJECT, torch.ones(1, 2)), "space": (*OBJECT, tb.Subspace)},
        _POSTERIORS,
    ),
    "Functions": Case(
        tb.Functions,
        lambda: {"model": things.model(), "weights_SD": things.weights(2)},
        {"model": _MODEL, "weights_SD": tensors((27,), (2, 3), (0, 27))},
        {"buffers_S": "what the network holds", "masks_S": "what posteriors give"},
    ),
    "Linearised": Case(
        tb.Linearised,
        lambda: {"posterior": things.gaussian()},
        {"posterior": (*_POSTERIOR, things.point()), "link": WORD, "samples": COUNT, "seed": SEED, "chunk": COUNT},
    ),
    "Propagated": Case(
        tb.Propagated,
        lambda: {"posterior": things.propagated()},
        {"posterior": (*_POSTERIOR, things.point(), things.gaussian())},
        named={"posterior": ("`posterior`", "Moments go through a plain stack")},
    ),
    "Predictive": Case(
        tb.Predictive,
        lambda: {"outputs_SBK": torch.zeros(2, 4, 3), "likelihood": tb.likelihoods.Categorical()},
        {
            "outputs_SBK": tensors((), (3,), (0, 4, 3)),
            "likelihood": (*OBJECT, tb.likelihoods.Categorical),
            "parameters": MAPPING,
            "function_variance": but(tensors((4, 3), (2, 4)), None),
        },
    ),
    "Predictive.from_probs": Case(
        tb.Predictive.from_probs,
        lambda: {"probs": torch.full((4, 2), 0.5)},
        {"probs": (*tensors((4, 2), (4,), (0, 2)), torch.full((4, 2), NAN), torch.ones(4, 2, dtype=torch.int64))},
    ),
    "Predictive.quantile": Case(
        lambda levels: tb.Predictive(torch.zeros(2, 4, 1), tb.likelihoods.Gaussian()).quantile(levels),
        lambda: {"levels": 0.5},
        {"levels": (None, "text", NAN, 0.0, 1.0, -0.5, [0.5, 2.0], torch.zeros(0))},
    ),
    "Predictive.sample": Case(
        lambda count, seed=0: things.predictive().sample(count, seed=seed),
        lambda: {"count": 3},
        {"count": COUNT, "seed": SEED},
    ),
    "Posterior.functions": Case(
        lambda draws, seed=0: things.point().functions(draws, seed=seed),
        lambda: {"draws": 2},
        {"draws": but(CHOICE_OF_DRAWS, None), "seed": SEED},
    ),
    "Posterior.sample": Case(
        lambda draws, seed=0: things.gaussian().sample(draws, seed=seed),
        lambda: {"draws": 2},
        {"draws": but(COUNT, None), "seed": SEED},
    ),
    "Functions.call": Case(
        lambda inputs, chunk_size=2: things.functions()(inputs, chunk_size=chunk_size),
        lambda: {"inputs": things.INPUTS},
        {"inputs": (None, "text", 3, NAN, torch.zeros(0, 2), torch.zeros(12, 3)), "chunk_size": COUNT},
    ),
}
