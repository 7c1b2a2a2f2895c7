"""Laplace approximations of torchbayes against laplace-torch and curvlinops, wherever theirs are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.covering import some_of
from tests.curvature import exact
from tests.curvature.test_reference import part_of
from tests.oracles import assert_close
from tests.peers import CASES, NOISE_SCALE, PRIOR_PRECISION, Reference, linear_layers, load, symmetric
from torch import Tensor, nn

import torchbayes as tb

STRUCTURES = {"diag": "diagonal", "kron": "kronecker", "full": "dense"}
# of numbers that the reference keeps in float32, relative to the largest
ROUNDED = 1e-6


# each network once, and each likelihood with it or with another; dense layers alone are in the others too
HALF = [
    pytest.param(case, id="/".join(case), marks=[pytest.mark.study] * (place == 0 or (place + place // 2) % 2))
    for place, case in enumerate(CASES)
]


@pytest.fixture(params=CASES, ids="/".join, scope="module")
def reference(request: pytest.FixtureRequest) -> Reference:
    return load(*request.param)


def model_of(reference: Reference, part: str = "all", noise: float = 1.0) -> tb.Model:
    """The peers' model: precision of the prior PRIOR_PRECISION for the weights of a part."""
    names = {"all": "*", "linear": [f"{name}.*" for name in linear_layers(reference.network)]}
    last = list(linear_layers(reference.network))[-1]
    regression = reference.likelihood == "regression"
    likelihood = tb.likelihoods.Gaussian(noise) if regression else tb.likelihoods.Categorical()
    globs: Any = names.get(part, f"{last}.*")
    return tb.Model(reference.network, likelihood, tb.priors.Normal(PRIOR_PRECISION**-0.5), random=globs)


def fit(reference: Reference, model: tb.Model, *, targets: Tensor | None = None, **settings: Any) -> Any:
    data = (reference.inputs, reference.targets if targets is None else targets)
    method = tb.Laplace(**{"batch_size": 7, "check_mode": False, "prior": "model", **settings})
    return tb.fit(model, data, method, start=reference.network, callbacks=())


def unscaled(posterior: Any) -> Tensor:
    """H itself, without the units of the prior."""
    return posterior.curvature.dense()[0] * PRIOR_PRECISION


@pytest.mark.parametrize("reference", HALF, indirect=True)
def test_laplace_torch_agrees(reference: Reference) -> None:
    """Precision, variances of the outputs, log evidence: every part and structure.

    Their probit predictions change when all outputs of a row are shifted together, and ours do not (decision 0035).
    """
    regression, compared = reference.likelihood == "regression", 0
    for part, structure, backend in reference.has_laplace:
        theirs = reference.below(f"laplace/{part}/{structure}/{backend}")
        settings: Any = {"sharing": "reduce"} if backend.endswith("-reduce") else {}
        curvature = "empirical" if "EF" in backend else "ggn"
        model = model_of(reference, part, NOISE_SCALE if regression else 1.0)
        ours = fit(reference, model, structure=STRUCTURES[structure], curvature=curvature, joint_bias=False, **settings)
        linear = tb.Linearised(ours, "gaussian" if regression else "probit")
        actual = linear.functions(reference.test_inputs)
        assert_close(actual.mean_MBK[0], theirs["mean"], rtol=1e-9, atol=1e-10)
        assert_close(actual.covariance_MBKK[0], theirs["variance"], rtol=1e-6, atol=1e-8)
        assert_close(ours.log_likelihood_M[0], theirs["log_likelihood"], rtol=1e-9)
        # theirs leaves out the weights that are not random; ours never had them
        assert_close(ours.log_evidence()[0], theirs["log_evidence"], rtol=1e-7)
        compared += 1
    assert compared >= 7


def test_dense_curvature_is_that_of_curvlinops(reference: Reference) -> None:
    for curvature, key in (("ggn", "ggn"), ("empirical", "fisher")):
        ours = unscaled(fit(reference, model_of(reference), structure="dense", curvature=curvature))
        theirs = symmetric(reference.numbers[key])
        assert_close(ours, theirs, rtol=0, atol=ROUNDED * float(theirs.abs().max()))


KRONECKER = [
    ("type-2", "expand", "separate"), ("type-2", "expand", "joint"), ("type-2", "reduce", "separate"),
    ("type-2", "reduce", "joint"), ("mc", "expand", "joint"), ("empirical", "expand", "joint"),
    ("empirical", "reduce", "joint"),
]  # fmt: skip


@pytest.mark.parametrize(("reference", "kind"), some_of(CASES, KRONECKER, one_in=5), indirect=["reference"])
def test_kronecker_factors_are_those_of_curvlinops(reference: Reference, kind: tuple[str, str, str]) -> None:
    fisher, sharing, bias = kind
    targets = reference.numbers["mc_targets"] if fisher == "mc" else None
    settings = {"sharing": sharing, "joint_bias": bias == "joint", "structure": "kronecker"}
    curvature = "ggn" if fisher == "type-2" else "empirical"
    ours = unscaled(fit(reference, model_of(reference, "linear"), targets=targets, curvature=curvature, **settings))
    blocks = []
    theirs = reference.kfac(fisher, sharing, bias)
    for name, layer in linear_layers(reference.network).items():
        inputs, gradients = theirs[name]
        block = torch.kron(gradients, inputs)
        has_bias = isinstance(layer.bias, Tensor)
        if bias == "joint" and has_bias:
            width, height = len(inputs), len(gradients)
            places = torch.arange(width * height).view(height, width)
            order = torch.cat([places[:, :-1].flatten(), places[:, -1]])
            block = block[order][:, order]
        blocks += [block] + ([gradients] if bias == "separate" and has_bias else [])
    assert_close(ours, torch.block_diag(*blocks), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "how"),
    some_of(
        ["mlp", "convolution", "transformer"],
        [("expand", "separate"), ("reduce", "joint"), ("expand", "joint")],
        one_in=3,
    ),
)
def test_corrected_eigenvalues_are_those_of_curvlinops(name: str, how: tuple[str, str]) -> None:
    (sharing, bias), reference = how, load(name, "classification")
    model = model_of(reference, "linear")
    ours = fit(reference, model, structure="ekfac", sharing=sharing, joint_bias=bias == "joint")
    matrix = unscaled(ours)
    theirs = reference.below(f"ekfac/{sharing}/{bias}")
    assert theirs
    for layer, triangle in theirs.items():
        slices = [s for n, s in model.layout.slices.items() if n.startswith(f"{layer}.")]
        where = slice(slices[0].start, slices[-1].stop)
        block = symmetric(triangle)
        assert_close(matrix[where, where], block, rtol=0, atol=ROUNDED * float(block.abs().max()))


@pytest.mark.parametrize("reference", HALF, indirect=True)
def test_precision_of_every_part_by_brute_force(reference: Reference) -> None:
    """By explicit Jacobians, also where laplace-torch is wrong, as in the empirical Fisher of a regression."""
    noise = NOISE_SCALE if reference.likelihood == "regression" else 1.0
    outputs_NK = reference.network(reference.inputs).detach()
    for part in ("all", "last_layer"):
        inside = part_of(reference, part)
        jacobians_NKD = exact.jacobians(reference.network, reference.inputs)[..., inside]
        kinds = {
            "ggn": exact.output_roots(outputs_NK, reference.likelihood) / noise,
            "empirical": exact.output_gradients(outputs_NK, reference.targets, reference.likelihood) / noise**2,
        }
        for curvature, vectors in kinds.items():
            expected = exact.dense(jacobians_NKD, vectors)
            model = model_of(reference, part, noise)
            dense = fit(reference, model, structure="dense", curvature=curvature)
            assert_close(unscaled(dense), expected, rtol=1e-8, atol=1e-9)
            diagonal = fit(reference, model, structure="diagonal", curvature=curvature)
            assert_close(unscaled(diagonal).diagonal(), expected.diagonal(), rtol=1e-8, atol=1e-10)
            precision = expected + PRIOR_PRECISION * torch.eye(len(expected), dtype=torch.float64)
            covariance = dense.gaussian.covariance.dense()[0]
            assert_close(covariance, torch.linalg.inv(precision), rtol=1e-6, atol=1e-9)
            mode = nn.utils.parameters_to_vector(reference.network.parameters()).detach()[inside]
            fitted = exact.log_likelihood(outputs_NK, reference.targets, reference.likelihood, noise)
            assert_close(dense.log_evidence()[0], exact.log_evidence(fitted, precision, mode, PRIOR_PRECISION))
