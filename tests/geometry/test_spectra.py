"""Spectra against dense Hessians, and the laws of Gauss rules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.geometry.problems import INPUTS, LABELS, NAMES, gauss_newton_of, hessian, hessian_of, made, mlp, problem
from tests.laws.cases import normal
from torchbayes.geometry import operators, spectrum, trace
from torchbayes.geometry.lanczos import lanczos
from torchbayes.geometry.networks import place_of
from torchbayes.geometry.operators import Products

GGN = [name for name in NAMES if name != "learned noise"]


def products(name, matrix, **options):
    model, data = problem(name)
    place = place_of(model, data, model.given_weights(), **options)
    return Products(place, matrix, 5), place.weights_D.numel()


def symmetric(size, seed=0):
    root = normal(size, size, seed=seed)
    return root + root.T


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("together", [True, False])
def test_products_are_those_of_the_dense_hessian(name, together, monkeypatch):
    monkeypatch.setattr(operators, "_TOGETHER", 2**24 if together else 0)
    product, size = products(name, "hessian")
    actual = product(torch.eye(size, dtype=torch.float64))
    assert torch.allclose(actual, hessian_of(name), atol=1e-11)
    pooled_twice = torch.__version__ >= "2.15"  # before, pooling could not be vectorised twice
    assert product.together == (not together or name != "conv" or pooled_twice)


@pytest.mark.parametrize("name", GGN)
@pytest.mark.parametrize("together", [True, False])
def test_products_are_those_of_the_dense_gauss_newton_matrix(name, together, monkeypatch):
    monkeypatch.setattr(operators, "_TOGETHER", 2**24 if together else 0)
    product, size = products(name, "ggn")
    actual = product(torch.eye(size, dtype=torch.float64))
    assert torch.allclose(actual, gauss_newton_of(name), atol=1e-11)


def test_learned_noise_has_twice_the_rows_as_information():
    product, size = products("learned noise", "ggn")
    actual = product(torch.eye(size, dtype=torch.float64))
    assert torch.allclose(actual[-1], 24 * torch.eye(size, dtype=torch.float64)[-1])


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_the_prior_adds_its_precision(matrix):
    plain, size = products("classifier", matrix)
    whole, _ = products("classifier", f"{matrix}+prior")
    eye = torch.eye(size, dtype=torch.float64)
    assert torch.allclose(whole(eye), plain(eye) + eye)


def test_graphs_that_are_not_kept_give_the_same(monkeypatch):
    kept, size = products("conv", "hessian")
    vectors = normal(3, size)
    monkeypatch.setattr(operators, "_KEPT", 0)
    again, _ = products("conv", "hessian")
    assert len(again._kept) == 0
    assert torch.equal(again(vectors), kept(vectors))


@pytest.mark.parametrize("steps", [3, 6])
def test_one_probe_is_exact_for_polynomials_of_degree_2m_minus_1(steps):
    matrix, start = symmetric(40), normal(2, 40, seed=1)
    actual = lanczos(lambda v: v @ matrix, start, steps)
    moment, unit = start / start.norm(dim=1, keepdim=True), start / start.norm(dim=1, keepdim=True)
    for degree in range(2 * steps + 1):
        exact = (unit * moment).sum(1)
        rule = (actual.weights_PK * actual.values_PK**degree).sum(1)
        error = ((rule - exact) / matrix.norm() ** degree).abs().max()
        assert (error < 1e-14) == (degree < 2 * steps)
        moment = moment @ matrix


def test_lanczos_stops_at_an_invariant_space():
    matrix = torch.diag(torch.tensor([3.0, 3.0, 3.0, 1.0, 1.0, -2.0], dtype=torch.float64))
    actual = lanczos(lambda v: v @ matrix, torch.ones(1, 6, dtype=torch.float64), 6)
    assert actual.steps == (3,)
    assert torch.allclose(actual.values_PK, torch.tensor([[-2.0, 1.0, 3.0]], dtype=torch.float64))
    assert torch.allclose(actual.weights_PK, torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64) / 6)


def test_probes_that_end_early_leave_the_others_going():
    matrix = torch.diag(torch.arange(1.0, 9.0, dtype=torch.float64))
    start = torch.stack([torch.eye(8, dtype=torch.float64)[2], torch.ones(8, dtype=torch.float64)])
    actual = lanczos(lambda v: v @ matrix, start, 8)
    assert actual.steps == (1, 8)
    assert torch.allclose(actual.values_PK[1], matrix.diagonal())
    assert torch.allclose((actual.weights_PK * actual.values_PK).sum(1), torch.tensor([3.0, 4.5], dtype=torch.float64))


def test_the_basis_stays_orthogonal_where_an_eigenvalue_dominates():
    values = torch.cat([torch.tensor([1e6]), torch.linspace(0, 1, 1999)]).double()
    actual = lanczos(lambda v: v * values.float(), torch.ones(1, 2000), 60)
    assert int((actual.values_PK > 1e5).sum()) == 1  # without orthogonalisation ghosts copy it


# `test_products_are_those_of_the_dense_hessian` has the products of the convolution
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.study if n == "conv" else ()) for n in NAMES])
def test_all_steps_give_the_trace_the_determinant_and_the_eigenvalues(name):
    model, data = problem(name)
    values = torch.linalg.eigvalsh(hessian(model, data))
    actual = spectrum(model, data, model.given_weights(), steps=100, probes=30)
    scale = float(values.abs().max())
    assert actual.size == len(values)
    for estimate, exact in (
        (actual.trace, values.sum()),
        (actual.log_det(2 * scale), (values + 2 * scale).log().sum()),
        (actual.trace_of(torch.ones_like), len(values)),
    ):
        assert abs(estimate.value - float(exact)) <= 4.5 * estimate.error + 1e-9 * max(1, scale)
    top = actual.top(1)
    assert math.isclose(float(top[0]), float(values.max()), rel_tol=1e-6, abs_tol=1e-9)
    if name != "one weight":
        assert math.isclose(float(actual.top(1, smallest=True)[0]), float(values.min()), abs_tol=1e-4 * scale)


def test_the_effective_dimension_is_that_of_the_eigenvalues():
    model, data = problem("classifier")
    values = torch.linalg.eigvalsh(gauss_newton_of("classifier")).clamp_min(0)
    actual = spectrum(model, data, model.given_weights(), matrix="ggn", steps=100, probes=200)
    for precision in (0.1, 1.0, 10.0):
        estimate, exact = actual.effective_dimension(precision), float((values / (values + precision)).sum())
        assert abs(estimate.value - exact) < 4 * estimate.error
        assert estimate.error < 0.05 * exact


def test_negative_eigenvalues_are_clipped_and_said():
    model, data = problem("classifier")
    values = torch.linalg.eigvalsh(hessian(model, data))
    assert values.min() < -0.1
    actual = spectrum(model, data, model.given_weights(), steps=50, probes=100)
    with pytest.warns(UserWarning, match="eigenvalues are negative"):
        estimate = actual.effective_dimension(1.0)
    exact = float((values.clamp_min(0) / (values.clamp_min(0) + 1)).sum())
    assert abs(estimate.value - exact) < 4 * estimate.error
    with pytest.raises(ValueError, match="smallest eigenvalue"):
        actual.log_det(0.01)


def test_the_density_has_mass_one_and_the_moments_of_the_rule():
    model, data = problem("regression")
    actual = spectrum(model, data, model.given_weights(), steps=30, probes=3)
    grid, width = torch.linspace(-200, 400, 60001, dtype=torch.float64), 0.8
    density, step = actual.density(grid, width), float(grid[1] - grid[0])
    moments = [float((density * grid**k).sum()) * step for k in range(3)]
    exact = [float((actual.weights_PK * actual.values_PK**k).sum(1).mean()) for k in range(3)]
    assert moments == pytest.approx([1, exact[1], exact[2] + width**2], rel=1e-6)


def test_the_trace_of_one_probe_has_the_variance_of_hutchinson():
    model, data = problem("classifier")
    dense = hessian(model, data)
    exact = 2 * (dense.square().sum() - dense.diagonal().square().sum())
    actual = spectrum(model, data, model.given_weights(), steps=2, probes=1000)
    assert 1000 * actual.trace.error**2 == pytest.approx(float(exact), rel=0.12)


def test_hutch_is_exact_for_a_low_rank_and_has_a_small_error_else():
    model, data = problem("rank deficient")
    exact = float(hessian(model, data).trace())
    actual = trace(model, data, model.given_weights(), products=9)
    assert actual.value == pytest.approx(exact, rel=1e-10)
    model, data = problem("classifier")
    exact = float(hessian(model, data).trace())
    actual = trace(model, data, model.given_weights(), products=45)
    assert abs(actual.value - exact) < 4 * actual.error
    plain = spectrum(model, data, model.given_weights(), steps=1, probes=45).trace
    assert actual.error < plain.error
    assert trace(model, data, model.given_weights(), products=300).value == pytest.approx(exact, rel=1e-10)


def test_single_precision_is_as_good_as_its_numbers():
    model, data = problem("classifier")
    net = made(mlp).float()
    single = tb.Model(net, tb.likelihoods.Categorical())
    exact = spectrum(model, data, model.given_weights(), steps=10, probes=4)
    actual = spectrum(single, (INPUTS.float(), LABELS), net, steps=10, probes=4)
    assert actual.trace.value == pytest.approx(exact.trace.value, rel=1e-5)
    assert torch.allclose(actual.top(2), exact.top(2), rtol=1e-5)


def test_a_module_a_posterior_and_weights_give_the_same():
    model, data = problem("classifier")
    weights = model.given_weights()
    actual = [spectrum(model, data, w, steps=5, probes=2) for w in (weights, made(mlp), tb.Point(model, weights[None]))]
    assert all(torch.equal(f.values_PK, actual[0].values_PK) for f in actual)


def test_a_probe_does_not_depend_on_their_number():
    model, data = problem("classifier")
    few = spectrum(model, data, model.given_weights(), steps=5, probes=2)
    many = spectrum(model, data, model.given_weights(), steps=5, probes=5)
    assert torch.allclose(few.values_PK, many.values_PK[:2], rtol=1e-10)


def test_probes_in_groups_give_the_same(monkeypatch):
    model, data = problem("classifier")
    together = spectrum(model, data, model.given_weights(), steps=5, probes=3)
    monkeypatch.setattr(tb.geometry.spectra, "_BASIS", 0)
    apart = spectrum(model, data, model.given_weights(), steps=5, probes=3)
    assert torch.allclose(together.values_PK, apart.values_PK, rtol=1e-10)


def test_batch_norm_has_the_statistics_of_the_posterior():
    model, data = problem("conv")
    buffers = {name: b[None] + 1 for name, b in model.network.buffers.items()}
    point = tb.Point(model, model.given_weights()[None], buffers_M=buffers, statistics_known=True)
    actual = spectrum(model, data, point, steps=100, probes=4)
    rows = model.unpack(data)
    own = {name: b[0] for name, b in buffers.items()}
    dense = torch.func.jacrev(torch.func.grad(lambda w: -model.log_likelihood(w, rows, own).sum()))(
        model.given_weights()
    )
    assert float(actual.top(1)) == pytest.approx(float(torch.linalg.eigvalsh(dense).max()), rel=1e-8)


def test_bare_weights_have_the_batch_norm_statistics_of_the_data():
    """Those of the module belong to other weights."""
    model, data = problem("conv")
    weights_D = 3 * model.given_weights() + 0.1
    rows = model.unpack(data)
    own = model.network.recalibrate(model.split(weights_D)[0], [rows.inputs], dict(model.network.buffers))
    unknown = tb.Point(model, weights_D[None])
    for given in (weights_D, unknown):
        place = place_of(model, data, given)
        for name, buffer in own.items():
            torch.testing.assert_close(place.buffers[name], buffer)
    stale = place_of(model, data, tb.Point(model, weights_D[None], statistics_known=True))
    assert not torch.allclose(stale.buffers["1.running_mean"], own["1.running_mean"])
    at = tb.geometry.barrier(model, data, weights_D, second=weights_D, points=2).nll[0]
    actual = -float(model.log_likelihood(weights_D, rows, place_of(model, data, weights_D).buffers).mean())
    assert actual == pytest.approx(at, rel=1e-9)


def test_eigenvalues_that_have_not_converged_are_missed_with_a_word():
    model, data = problem("classifier")
    actual = spectrum(model, data, model.given_weights(), steps=2, probes=1)
    with pytest.warns(UserWarning, match="no eigenvalue has converged in 2 steps"):
        assert not len(actual.top())


@pytest.mark.parametrize("matrix", ["ggn", "ggn+prior"])
def test_a_likelihood_without_curvature_has_no_gauss_newton_matrix(matrix: Any):
    """Zeros would be read as a flat direction of the loss."""
    laplace = tb.Model(made(mlp), lambda f: torch.distributions.Laplace(f[:, 0], 0.5))
    data = (INPUTS, normal(12))
    for function in (spectrum, trace, tb.geometry.curved_directions):
        with pytest.raises(ValueError, match=r"has no Gauss-Newton matrix. Use matrix='hessian'"):
            function(laplace, data, laplace.given_weights(), matrix=matrix)
    assert spectrum(laplace, data, laplace.given_weights(), steps=3, probes=2).values_PK.any()


def test_attention_is_differentiated_twice():
    net = made(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
    model = tb.Model(nn.Sequential(net, nn.Flatten(), made(lambda: nn.Linear(12, 3))), tb.likelihoods.Categorical())
    data = (normal(6, 3, 4), LABELS[:6])
    place = place_of(model, data, model.given_weights())
    v = normal(1, place.weights_D.numel())
    size = 1e-5
    slopes = [torch.func.grad(lambda w: -model.log_likelihood(w, place.rows).sum())(place.weights_D + s * size * v[0])
              for s in (1, -1)]  # fmt: skip
    actual = Products(place, "hessian", 6)(v)[0]
    assert torch.allclose(actual, (slopes[0] - slopes[1]) / (2 * size), atol=1e-5)


def test_a_matrix_that_is_not_symmetric_is_refused():
    with pytest.raises(ValueError, match="not symmetric"):
        lanczos(lambda v: v @ normal(9, 9), normal(1, 9, seed=1), 5)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[override]
        return grad_outputs[0] * 2


class Opaque(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, x):
        return Once.apply(self.inner(x).tanh())


def test_an_operation_without_second_derivative_is_said():
    net = made(lambda: nn.Sequential(nn.Linear(2, 3), Twice()))
    model = tb.Model(net, tb.likelihoods.Categorical())
    with pytest.raises(ValueError, match="cannot be differentiated twice"):
        spectrum(model, (INPUTS, LABELS), model.given_weights())


class Never(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return Stop.apply(*grad_outputs)


class Stop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError("derivative for stop is not implemented")


class Twice(nn.Module):
    def forward(self, x):
        return Never.apply(x.tanh())


def test_a_network_that_has_no_second_derivative_is_said_so():
    model = tb.Model(made(Opaque), tb.likelihoods.Categorical())
    with pytest.raises(ValueError, match="once_differentiable"):
        spectrum(model, (INPUTS, LABELS), model.given_weights())


def test_several_networks_are_refused():
    model, data = problem("classifier")
    with pytest.raises(ValueError, match=r"one network; got 2 networks"):
        spectrum(model, data, tb.Point(model, model.given_weights().expand(2, -1).clone()))


def test_low_precision_is_refused():
    model = tb.Model(made(mlp, double=False).bfloat16(), tb.likelihoods.Categorical())
    with pytest.raises(TypeError, match=r"bfloat16.*\.float\(\)"):
        spectrum(model, (INPUTS, LABELS), model.given_weights())


def test_infinite_derivatives_and_nan_data_are_said():
    net = nn.Sequential(made(lambda: nn.Linear(2, 3)), Root())
    model = tb.Model(net, tb.likelihoods.Categorical())
    with pytest.raises(ValueError, match="not finite"):
        spectrum(model, (INPUTS * 0, LABELS), torch.zeros(9, dtype=torch.float64))
    model, _ = problem("classifier")
    with pytest.raises(ValueError, match="NaN"):
        spectrum(model, (INPUTS * math.nan, LABELS), model.given_weights())


class Root(nn.Module):
    def forward(self, x):
        return x.abs().sqrt()
