"""Every member of every noun, once: methods of the catalogue, and a line for each posterior and network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.catalogue.methods import classes, parts_of, small
from torchbayes.health.ending import Case, Ending
from torchbayes.linalg import BlockCurvature, Diagonal, DiagonalCurvature, KroneckerCurvature, LowRankPlusDiagonal
from torchbayes.methods.protocol import Method
from torchbayes.posteriors.flows.multipliers import Multipliers, multiplied
from torchbayes.posteriors.flows.posterior import Transform, flow_of
from torchbayes.posteriors.posterior import Posterior

ROWS, CLASSES = 24, 3


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.first(inputs))))


class Nested(nn.Module):
    """Blocks inside blocks, with a residual connection and a parameter outside any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"block": nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)))})
        self.gain = nn.Parameter(torch.empty(4))
        self.head = nn.Linear(4, CLASSES)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.gain, 0.5, 1.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs + self.gain * self.body["block"](inputs))


def conv_batch_norm() -> nn.Module:
    """Convolution, batch norm, linear head."""
    layers = (nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 4, CLASSES))
    return nn.Sequential(*layers)


def frozen_backbone() -> nn.Module:
    """A backbone with batch norm and dropout that keeps its weights, under a head that learns."""
    backbone = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Tanh()).requires_grad_(False)
    return nn.Sequential(backbone, nn.Linear(5, CLASSES))


@dataclass(frozen=True)
class Net:
    """How to make a network, and the shape of one of its inputs."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (4,)


NETWORKS: dict[str, Net] = {
    "mlp": Net(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES))),
    "conv_batch_norm": Net(conv_batch_norm, (1, 4, 4)),
    "tied": Net(Tied),
    "nested": Net(Nested),
    "frozen": Net(frozen_backbone),
    "dropout": Net(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, CLASSES))),
}

METHODS: dict[str, Callable[..., Method]] = {
    "map_sgd": partial(tb.MAP, optimizer=tb.SGD(lr=0.1, nesterov=True)),
    "map_adam": partial(tb.MAP, optimizer=tb.Adam(lr=0.05), schedule=tb.Constant()),
    "map_adamw": partial(tb.MAP, optimizer=tb.AdamW(lr=0.05, weight_decay=0.1)),
    "map_adversarial": partial(tb.MAP, optimizer=tb.Adam(lr=0.05), adversarial=0.05),
    "swa": partial(tb.SWA, averaging_lr=0.05, per_epoch=2),
    "swag": partial(tb.SWAG, averaging_lr=0.05, rank=3, per_epoch=2),
    "swag_diagonal": partial(tb.SWAG, averaging_lr=0.05, rank=0, burn_in=0.2),
    "svgd": partial(tb.SVGD, optimizer=tb.Adam(lr=0.05), annealing="cyclic"),
    "repulsive_weights": partial(tb.RepulsiveEnsemble, optimizer=tb.SGD(lr=0.1), space="weights", score="sge"),
    "repulsive_functions": partial(tb.RepulsiveEnsemble, optimizer=tb.Adam(lr=0.05), prior="functions", prior_draws=5),
    "vi": partial(tb.VI, optimizer=tb.Adam(lr=0.05), kl_weight=0.1),
    "vi_by_layers": partial(tb.VI, optimizer=tb.Adam(lr=0.05), kl_weight=0.1, estimator="auto"),
    "vi_alpha": partial(tb.VI, optimizer=tb.Adam(lr=0.05), kl_weight=0.1, alpha=0.5, draws=2, estimator="weights"),
    "vi_alpha_by_layers": partial(tb.VI, optimizer=tb.Adam(lr=0.05), kl_weight=0.1, alpha=1.0, draws=2),
    "vi_low_rank": partial(tb.VI, "low_rank", optimizer=tb.Adam(lr=0.05), kl_weight=0.1, draws=2, rank=2),
    "flow_planar": partial(tb.NormalizingFlow, optimizer=tb.Adam(lr=0.05), kl_weight=0.1, layers=3),
    "flow_radial": partial(tb.NormalizingFlow, "radial", optimizer=tb.Adam(lr=0.05), kl_weight=0.1, layers=2, draws=2),
    "mnf": partial(tb.MNF, optimizer=tb.Adam(lr=0.05), kl_weight=0.1, hidden=5),
    "mnf_by_layers": partial(tb.MNF, optimizer=tb.Adam(lr=0.05), kl_weight=0.1, hidden=5, estimator="auto", draws=2),
    "vi_radial": partial(tb.VI, "radial", optimizer=tb.Adam(lr=0.05), kl_weight=0.1, draws=2, antithetic=True),
    "map_sam": partial(tb.MAP, optimizer=tb.SAM(tb.SGD(lr=0.1), rho=0.05, parts=2)),
    "fge_sam": partial(tb.FGE, optimizer=tb.SAM(tb.Adam(lr=0.05), adaptive=True), cycle=1, burn_in=0.4, draws=2),
    "fge": partial(tb.FGE, optimizer=tb.Adam(lr=0.05), burn_in=0.2),
    "snapshots": partial(tb.Snapshots, optimizer=tb.Adam(lr=0.05), cycles=3),
    "bsam": partial(tb.BSAM, lr=0.3, momentum=0.8, decay=0.99),
    "bsam_parts": partial(tb.BSAM, lr=0.3, momentum=0.8, decay=0.99, parts=3),
    "ivon": partial(tb.IVON, lr=0.3, hessian_init=10.0),
    "ivon_pairs": partial(tb.IVON, lr=0.3, hessian_init=10.0, draws=2, antithetic=True, clip=1.0),
}

# what these do in the laws of a whole fit another of their class, or of the same descent, does by the same path
VARIANTS = (
    *("map_adamw", "swa", "swag_diagonal", "repulsive_weights", "vi_alpha", "vi_alpha_by_layers", "vi_radial"),
    *("flow_radial", "flow_spline", "mnf_by_layers", "fge_sam", "snapshots", "bsam_parts", "ivon", "map_sgd"),
)


def with_variants_as_studies(registry: dict[str, Any], variants: Iterable[str]) -> list[Any]:
    """Return the values of a registry for `parametrize`, by name; those of variants are studies."""
    study = {*variants}
    return [
        pytest.param(value, id=name, marks=pytest.mark.study if name in study else ())
        for name, value in registry.items()
    ]


def covered(cases: Iterable[Callable[..., Any]]) -> set[type]:
    """The classes of methods that cases make."""
    return {case.func if isinstance(case, partial) else type(case()) for case in cases}  # type: ignore[misc]


def _trained(kind: type) -> bool:
    """Whether a method is run by members, epochs and rows, as the laws of methods run it."""
    shared = {"members", "epochs", "batch_size", "optimizer"} <= {field.name for field in fields(kind)}
    joins = (
        shared and kind().needs.start is not None
    )  # which need a start: tests/methods/curves/test_curve.py, test_simplex.py
    return shared and not joins and parts_of(kind) == "any"  # the others: tests/laws/test_layer_laws.py


# a method of the catalogue that no line above makes keeps the laws by its defaults and what its entry calls small
METHODS |= {
    n: partial(k, **small(k)) for n, k in classes().items() if _trained(k) and k not in covered(METHODS.values())
}

COUPLED = tuple(name for name, make in METHODS.items() if make().needs.coupled)  # whose members see each other


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers; float32 ones are the rounded float64 ones."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def made(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A network of the registry, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return NETWORKS[name].make().to(dtype)


def model_of(name: str = "mlp", dtype: torch.dtype = torch.float64, **settings: Any) -> tb.Model:
    """A classifier on a network of the registry."""
    return tb.Model(made(name, dtype), tb.likelihoods.Categorical(), tb.priors.Normal(1.0), **settings)


def rows_of(name: str = "mlp", dtype: torch.dtype = torch.float64, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Inputs and classes that a network of the registry can take."""
    inputs = normal(rows, *NETWORKS[name].shape, seed=2, dtype=dtype)
    return inputs, inputs.flatten(1)[:, :CLASSES].argmax(1)


def _point(model: tb.Model, members: int) -> tb.Point:
    return tb.Point(model, _weights(model, members))


def _gaussian(model: tb.Model, members: int) -> tb.Gaussian:
    return tb.Gaussian(model, _weights(model, members), Diagonal(_weights(model, members, seed=4) ** 2 + 0.1))


def _low_rank(model: tb.Model, members: int) -> tb.Gaussian:
    factor = _weights(model, members * 3, seed=5).unflatten(0, (members, 3))
    covariance = LowRankPlusDiagonal(_weights(model, members, seed=4) ** 2 + 0.1, factor)
    return tb.Gaussian(model, _weights(model, members), covariance)


def _laplace(model: tb.Model, members: int) -> tb.LaplacePosterior:
    """Half of the weights Kronecker-factored, half diagonal, in an order of their own, under a tuned prior."""
    size, like = model.layout.size, _weights(model, members)
    half = size // 4 * 2
    basis = torch.linalg.qr(normal(members, 1, 2, 2, seed=5, dtype=like.dtype)).Q
    kronecker = KroneckerCurvature(like[:, :half].reshape(members, 1, -1, 2) ** 2, None, basis)
    blocks = BlockCurvature(normal(size, seed=6).argsort(), (kronecker, DiagonalCurvature(like[:, half:] ** 2)))
    ones = torch.ones_like(like)
    nothing = torch.zeros(members, dtype=torch.float64)
    posterior = tb.LaplacePosterior(model, like, blocks, ones, ones[0], nothing, num_data=24, num_targets=24)
    return posterior.with_strength(torch.full_like(ones[0], 1.7))


def _flow(model: tb.Model, members: int, transform: Transform = "planar") -> tb.FlowPosterior:
    about: dict[str, Any] = {"layers": 2, "hidden": 4, "bins": 5}
    flow = flow_of(transform, model.layout.size, **about)
    noise = normal(members, flow.layout.size, seed=5, dtype=model.network.dtype)
    parts = _weights(model, members), _weights(model, members, seed=4) ** 2 + 0.1, flow.start(noise) + 0.1 * noise
    return tb.FlowPosterior(model, *parts, transform=transform, **about)


def _mnf(model: tb.Model, members: int) -> tb.MNFPosterior:
    own = Multipliers(multiplied(model), model.layout.size, 2, 4)
    noise = normal(members, own.layout.size, seed=5, dtype=model.network.dtype)
    parts = _weights(model, members), _weights(model, members, seed=4) ** 2 + 0.1, own.start(noise, 0.1) + 0.1 * noise
    return tb.MNFPosterior(model, *parts, layers=2, hidden=4)


def _radial(model: tb.Model, members: int) -> tb.RadialPosterior:
    return tb.RadialPosterior(model, _weights(model, members), _weights(model, members, seed=4).abs() + 0.1)


def _draws(model: tb.Model, members: int) -> tb.Draws:
    return tb.Draws(model, _weights(model, members * 12).unflatten(0, (members, 12)))


def _curve(model: tb.Model, members: int, shape: Any = "bezier") -> tb.CurvePosterior:
    return tb.CurvePosterior(model, _weights(model, members * 4).unflatten(0, (members, 4)), shape)


def _simplex(model: tb.Model, members: int, modes: int = 1) -> tb.SimplexPosterior:
    return tb.SimplexPosterior(model, _weights(model, members * 4).unflatten(0, (members, 4)), modes)


def _weights(model: tb.Model, rows: int, seed: int = 3) -> Tensor:
    return normal(rows, model.layout.size, seed=seed, dtype=model.network.dtype)


POSTERIORS: dict[str, Callable[[tb.Model, int], Posterior]] = {
    "point": _point,
    "gaussian_diagonal": _gaussian,
    "gaussian_low_rank": _low_rank,
    "radial": _radial,
    "laplace": _laplace,
    "draws": _draws,
    "curve_bezier": _curve,
    "curve_chain": partial(_curve, shape="chain"),
    "simplex": _simplex,
    "simplex_complex": partial(_simplex, modes=2),
    "flow_planar": _flow,
    "flow_radial": partial(_flow, transform="radial"),
    "mnf": _mnf,
}

_SPLINE: dict[str, Any] = {"optimizer": tb.Adam(lr=0.05), "kl_weight": 0.1, "layers": 2, "hidden": 4, "bins": 4}
if find_spec("zuko"):  # tests of flows by networks are left out where it is not installed
    METHODS["flow_spline"] = partial(tb.NormalizingFlow, "spline", **_SPLINE)
    POSTERIORS |= {f"flow_{kind}": partial(_flow, transform=kind) for kind in ("realnvp", "iaf", "spline")}


@contextmanager
def unjudged() -> Iterator[None]:
    """Let fits that others are compared with end without a judgement, which takes a third of a small fit.

    The fits that a law is about are judged, and tests/health has the problems themselves.
    """

    def problems(ending: Ending, case: Case) -> list[str]:
        del case
        return [*ending.said]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ending, "problems", problems)
        yield


def losses(directory: Path) -> list[dict[str, Any]]:
    """The log of a run without its clock, its name and the checksums of both."""
    records = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in {"seconds", "run", "crc"}} for record in records]


def assert_same_tensors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Two sets of named tensors are equal bit for bit."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=0, atol=0, equal_nan=True)


def everything(posterior: Posterior) -> dict[str, Tensor]:
    """All tensors of a posterior, buffers included."""
    return {**posterior.tensors(), **(posterior.buffers_M or {})}
