"""The numbers of other libraries in reference/laplace.safetensors are right: they equal brute force.

What is wrong in them is not in the file; the docstring of tests/peers.py lists it.
"""

import pytest
import torch
from torch import Tensor, nn

from tests.curvature import exact
from tests.oracles import assert_close
from tests.peers import CASES, NOISE_SCALE, PRIOR_PRECISION, Reference, is_linear, load, symmetric

ROUNDED = 1e-6  # of what is kept in float32, relative to the largest entry


@pytest.fixture(params=CASES, ids="/".join, scope="module")
def reference(request: pytest.FixtureRequest) -> Reference:
    return load(*request.param)


def vectors(reference: Reference, fisher: str) -> Tensor:
    """Return what is sent back for a kind of Fisher matrix, (C, N, K)."""
    outputs_NK = reference.network(reference.inputs).detach()
    if fisher == "type-2":
        return exact.output_roots(outputs_NK, reference.likelihood)
    targets = reference.numbers["mc_targets"] if fisher == "mc" else reference.targets
    return exact.output_gradients(outputs_NK, targets, reference.likelihood)


def has_bias(reference: Reference, layer: str) -> bool:
    return reference.network.get_submodule(layer).bias is not None


def part_of(reference: Reference, part: str) -> Tensor:
    """Return which weights belong to a part, (D,), bool."""
    linear = is_linear(reference.network)
    if part == "linear":
        return linear
    last = sum(parameter.numel() for parameter in list(reference.network.parameters())[-2:])
    return torch.arange(len(linear)) >= (len(linear) - last if part == "last_layer" else 0)


def kronecker(reference: Reference, part: str, backend: str) -> Tensor:
    """Return the Kronecker curvature of a part by brute force, weights and biases apart."""
    kind, _, approx = backend.partition("-")
    layers = exact.shared(
        reference.network, reference.inputs, vectors(reference, "empirical" if kind.endswith("EF") else "type-2")
    )
    blocks: list[Tensor] = []
    for layer in list(layers)[-1:] if part == "last_layer" else layers:
        input_factor, gradient_factor = exact.kfac(layers[layer], approx or "expand", joint=False)
        blocks.append(torch.kron(gradient_factor, input_factor))
        if has_bias(reference, layer):
            blocks.append(gradient_factor)
    return exact.block_diagonal(blocks)


def curvature(reference: Reference, part: str, structure: str, backend: str) -> tuple[Tensor, Tensor]:
    """Return the curvature of laplace-torch and that of brute force, dense."""
    if structure == "kron":
        reported = exact.block_diagonal(reference.kronecker_blocks(part, backend))
        return reported, kronecker(reference, part, backend)
    inside = part_of(reference, part)
    fisher = "empirical" if backend.endswith("EF") else "type-2"
    jacobians_NKD = exact.jacobians(reference.network, reference.inputs)[..., inside]
    expected = exact.dense(jacobians_NKD, vectors(reference, fisher))
    if structure == "diag":
        reported = reference.numbers[f"laplace/{part}/{structure}/{backend}/diagonal"]
        return reported.diag(), expected.diagonal().diag()
    key = "ggn" if part == "all" else f"laplace/{part}/full/{backend}/full"
    return symmetric(reference.numbers[key]), expected


def test_dense_curvature_of_curvlinops(reference: Reference) -> None:
    jacobians_NKD = exact.jacobians(reference.network, reference.inputs)
    for key, fisher in (("ggn", "type-2"), ("fisher", "empirical")):
        expected = exact.dense(jacobians_NKD, vectors(reference, fisher))
        scale = float(expected.abs().max())
        assert_close(symmetric(reference.numbers[key]), expected, rtol=0, atol=ROUNDED * scale)


@pytest.mark.parametrize(
    ("fisher", "approx", "bias"),
    [
        ("type-2", "expand", "separate"), ("type-2", "expand", "joint"), ("type-2", "reduce", "separate"),
        ("type-2", "reduce", "joint"), ("mc", "expand", "joint"), ("empirical", "expand", "joint"),
        ("empirical", "reduce", "joint"),
    ],
)  # fmt: skip
def test_kronecker_factors_of_curvlinops(reference: Reference, fisher: str, approx: str, bias: str) -> None:
    layers = exact.shared(reference.network, reference.inputs, vectors(reference, fisher))
    reported = reference.kfac(fisher, approx, bias)
    assert set(reported) == set(layers)
    for name, statistics in layers.items():
        joint = bias == "joint" and has_bias(reference, name)
        for actual, expected in zip(reported[name], exact.kfac(statistics, approx, joint=joint), strict=True):
            assert_close(actual, expected)


@pytest.mark.parametrize(("approx", "bias"), [("expand", "separate"), ("expand", "joint"), ("reduce", "joint")])
@pytest.mark.parametrize("name", ["mlp", "convolution", "transformer"])
def test_corrected_eigenvalues_of_curvlinops(name: str, approx: str, bias: str) -> None:
    reference = load(name, "classification")
    layers = exact.shared(reference.network, reference.inputs, vectors(reference, "type-2"))
    reported = reference.below(f"ekfac/{approx}/{bias}")
    assert set(layers) - set(reported) == ({"mix"} if (name, approx) == ("transformer", "reduce") else set())
    for layer, block in reported.items():
        if not has_bias(reference, layer):
            expected = exact.ekfac(layers[layer], approx, joint=False)
        elif bias == "separate":
            expected = exact.block_diagonal([
                exact.ekfac(layers[layer], approx, joint=False),
                exact.ekfac_bias(layers[layer], approx),
            ])
        else:
            expected = exact.weight_then_bias(exact.ekfac(layers[layer], approx, joint=True), layers[layer])
        assert_close(symmetric(block), expected, rtol=0, atol=ROUNDED * float(expected.abs().max()))


def test_laplace_torch(reference: Reference) -> None:
    """Curvature, variances of the outputs, probabilities and evidence, for every part and backend there is."""
    likelihood = reference.likelihood
    noise_scale = NOISE_SCALE if likelihood == "regression" else 1.0
    mode_D = nn.utils.parameters_to_vector(reference.network.parameters()).detach()
    jacobians_BKD = exact.jacobians(reference.network, reference.test_inputs)
    outputs_NK = reference.network(reference.inputs).detach()
    fit = exact.log_likelihood(outputs_NK, reference.targets, likelihood, noise_scale)
    assert len(reference.has_laplace) >= 7
    for part, structure, backend in reference.has_laplace:
        reported = reference.below(f"laplace/{part}/{structure}/{backend}")
        actual, expected = curvature(reference, part, structure, backend)
        assert_close(actual, expected, rtol=0, atol=ROUNDED * float(expected.abs().max()))
        inside = part_of(reference, part)
        precision_DD = expected / noise_scale**2 + PRIOR_PRECISION * torch.eye(len(expected), dtype=torch.float64)
        jacobian = jacobians_BKD[..., inside]
        variance_BKK = jacobian @ torch.linalg.solve(precision_DD, jacobian.mT)
        mean_BK = reference.network(reference.test_inputs)
        assert_close(reported["mean"], mean_BK)
        assert_close(reported["variance"], variance_BKK, rtol=1e-9)
        assert_close(reported["log_likelihood"], fit)
        assert_close(reported["log_evidence"], exact.log_evidence(fit, precision_DD, mode_D[inside], PRIOR_PRECISION))
        if likelihood == "classification":
            assert_close(reported["probs"], exact.probit(mean_BK, variance_BKK), rtol=1e-9)
            assert_close(reported["bridge"], exact.laplace_bridge(mean_BK, variance_BKK), rtol=1e-9)
