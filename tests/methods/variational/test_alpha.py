"""Black-box α divergences against quadrature, closed forms and differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import norm
from tests.laws.cases import normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.checks import SettingError
from torchbayes.density.backend import Mixing
from torchbayes.density.density import LogDensity
from torchbayes.density.layers.passes import by_layers, mixed_by_layers
from torchbayes.density.layers.randomness import Randomness
from torchbayes.methods.optimise.descent import start
from torchbayes.methods.variational import objective as objective_module
from torchbayes.methods.variational.families import DiagonalFamily
from torchbayes.methods.variational.objective import Drawing, Terms, differentiate
from torchbayes.model.batches.batch import Batch
from torchbayes.model.likelihoods import Likelihood

ROWS, FEATURES, PRIOR = 12, 2, 1.5
INPUTS = normal(ROWS, FEATURES, seed=4)
LABELS = (INPUTS @ torch.tensor([1.5, -1.0], dtype=torch.float64) + normal(ROWS, seed=5) > 0).double()[:, None]
ALPHAS = [0.01, 0.5, 1.0]
NODES, WEIGHTS = (torch.as_tensor(part) for part in np.polynomial.hermite_e.hermegauss(80))
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def logistic(likelihood: Likelihood | None = None, **settings: Any) -> tb.Model:
    net = nn.Linear(FEATURES, 1, bias=False).double()
    return tb.Model(net, likelihood or tb.likelihoods.Bernoulli(), tb.priors.Normal(PRIOR), **settings)


def energy(mean: Tensor, covariance: Tensor, alpha: float, *, temperature: float = 1.0, tempered: int = 1) -> Tensor:
    """−(1/α) Σ_n log E_q[p(y_n | f_n)^(α/T)] − E_q log p(w)/T − H(q), f_n normal under q: 80 nodes for each row.

    The prior may not be tempered.
    """
    values = INPUTS @ mean, (INPUTS @ covariance * INPUTS).sum(-1)
    f_QN = values[0] + values[1].sqrt() * NODES[:, None]
    log_prob_QN = nn.functional.logsigmoid((2 * LABELS[:, 0] - 1) * f_QN)
    log_mean_N = torch.logsumexp(alpha / temperature * log_prob_QN + WEIGHTS.log()[:, None], 0)
    square = (covariance.trace() + mean.square().sum()) / PRIOR**2 + FEATURES * math.log(2 * math.pi * PRIOR**2)
    entropy = 0.5 * (torch.logdet(covariance) + FEATURES * math.log(2 * math.pi * math.e))
    return 0.5 * square / temperature**tempered - entropy - log_mean_N.sum() / alpha


def objective(
    model: tb.Model, alpha: float, rows: tuple[Any, Any], *, at: tuple[Tensor, Tensor], draws: int, plan: Any = "vmap"
) -> tuple[Terms, Tensor]:
    """The objective on all rows by draws of independent weights, and its gradient by means and log scales."""
    parameters = torch.cat([at[0], at[1].log()]).unsqueeze(0)
    count = len(rows[0])
    density = LogDensity(model, count, None, training=True, plan=plan)
    begin = start(parameters, {}, [3], optimizer=tb.SGD(), epochs=1, steps_per_epoch=1)
    batch = Batch(*rows).map(lambda t: t.unsqueeze(0))
    drawing = Drawing(DiagonalFamily(), "weights", draws, False, alpha=alpha)
    return differentiate(density, begin, batch, drawing=drawing, kl_weight=1.0), begin.gradient_MD


AT = torch.tensor([0.7, -0.4], dtype=torch.float64), torch.tensor([0.5, 0.9], dtype=torch.float64)


@pytest.fixture
def spread_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let draws be a lattice whose marginals are normal quantiles, far more even than independent ones."""

    def lattice(*_: Any, like: Tensor) -> Tensor:
        number = torch.arange(like.shape[1] // FEATURES, dtype=torch.float64) + 0.5
        golden = (1 + 5**0.5) / 2
        uniform = torch.stack([number / len(number), (number * golden) % 1], dim=-1)
        return torch.as_tensor(norm.ppf(uniform.numpy())).flatten().expand_as(like)

    monkeypatch.setattr(objective_module, "normals", lattice)


# --- the objective at a given q ---


@pytest.mark.usefixtures("spread_evenly")
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("temperature", "tempering"), [(1.0, "joint"), (0.5, "joint"), (2.0, "likelihood")])
def test_value_and_gradient_are_those_of_quadrature(alpha: float, temperature: float, tempering: Any) -> None:
    model = logistic(temperature=temperature, tempering=tempering)
    terms, gradient = objective(model, alpha, (INPUTS, LABELS), at=AT, draws=8192)
    mean, log_scale = AT[0].clone().requires_grad_(), AT[1].log().requires_grad_()
    tempered = {"temperature": temperature, "tempered": int(tempering == "joint")}
    exact = energy(mean, torch.diag(log_scale.mul(2).exp()), alpha, **tempered) * temperature / ROWS
    # error of the lattice: its extreme points are finitely far out
    assert float(terms.loss_M[0]) == pytest.approx(float(exact.detach()), rel=2e-4)
    wanted = torch.cat(torch.autograd.grad(exact, (mean, log_scale)))
    torch.testing.assert_close(gradient[0], wanted, rtol=2e-3, atol=2e-4)


def test_the_limit_of_small_alpha_is_the_bound_on_the_evidence() -> None:
    (zero, slope), (small, near) = (objective(logistic(), a, (INPUTS, LABELS), at=AT, draws=7) for a in (0.0, 1e-7))
    torch.testing.assert_close(small.loss_M, zero.loss_M, rtol=1e-6, atol=0)
    torch.testing.assert_close(near, slope, rtol=1e-5, atol=1e-8)
    assert float(objective(logistic(), 1.0, (INPUTS, LABELS), at=AT, draws=7)[0].loss_M[0]) < float(zero.loss_M[0])


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_a_row_of_weight_a_counts_a_times(alpha: float) -> None:
    """Weights of rows are no powers of their likelihood: log E l^α counts as often as the row does."""
    counts = torch.arange(ROWS, dtype=torch.float64) % 3
    weighted = logistic(tb.likelihoods.Weighted(tb.likelihoods.Bernoulli()))
    repeated = [part.repeat_interleave(counts.long(), 0) for part in (INPUTS, LABELS)]
    total = len(repeated[0])
    for plan in ("vmap", "loop"):
        about: dict[str, Any] = {"at": AT, "draws": 5, "plan": plan}
        terms, gradient = objective(weighted, alpha, (INPUTS, (LABELS, counts)), **about)
        wanted, slope = objective(logistic(), alpha, (repeated[0], repeated[1]), **about)
        torch.testing.assert_close(ROWS * terms.loss_M, total * wanted.loss_M)
        torch.testing.assert_close(ROWS * gradient, total * slope)


@pytest.mark.parametrize("plan", ["loop", "vmap"])
def test_draws_are_combined_row_by_row_for_each_member(plan: Any) -> None:
    """S times the gradient of (1/α) log mean_s exp(α l_sb), for minibatches of members and for all rows in chunks."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    model, mixing = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal()), Mixing(3, 0.7)
    weights = normal(6, model.layout.size, seed=1)
    inputs, labels = normal(2, 10, 3), torch.arange(20).view(2, 10) % 3
    batch = Batch(inputs, labels).map(lambda t: t.repeat_interleave(3, 0))
    density = LogDensity(model, 50, plan=plan)
    actual = density.nll(weights, batch, mixing=mixing)
    leaf = weights.clone().requires_grad_()
    for m in range(2):
        each = [model.log_likelihood(leaf[3 * m + s], Batch(inputs[m], labels[m])) for s in range(3)]
        nll = -((0.7 * torch.stack(each)).exp().mean(0).log() / 0.7).mean()
        torch.testing.assert_close(actual.log_density[m], nll.detach())
        (wanted,) = torch.autograd.grad(3 * nll, leaf)
        torch.testing.assert_close(actual.gradient[3 * m : 3 * m + 3], wanted[3 * m : 3 * m + 3])
    rows = Batch(inputs[0], labels[0])
    whole = LogDensity(model, 10, rows, plan=plan, chunk_size=4).nll(weights[:3], mixing=mixing)
    torch.testing.assert_close(whole.log_density, actual.log_density[:1])
    torch.testing.assert_close(whole.gradient, actual.gradient[:3])


def test_the_kernel_that_sums_over_rows_says_so() -> None:
    net = nn.Linear(3, 2)
    model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal())
    batch = Batch(torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(SettingError, match="does not mix draws row by row"):
        LogDensity(model, 4, plan="native").nll(torch.zeros(2, 8), batch, mixing=Mixing(2, 1.0))
    density = LogDensity(model, 4)
    density.nll(torch.zeros(2, 8), batch, mixing=Mixing(2, 1.0))
    assert density.plan is not None
    assert density.plan.backend in {"loop", "vmap"}


# --- layers that take their weights as distributions ---


def test_passes_by_layers_are_combined_row_by_row() -> None:
    """Of a linear layer outputs are x μ + √(x² σ²) ζ, ζ for each row and pass; weights of rows as before."""
    counts, alpha, steps = torch.arange(ROWS, dtype=torch.float64) % 3, 0.6, range(4, 8)
    model = logistic(tb.likelihoods.Weighted(tb.likelihoods.Bernoulli()))
    mean_MD, scale_MD = AT[0].expand(2, -1).clone(), AT[1].expand(2, -1).clone()
    batch = Batch(INPUTS, (LABELS, counts)).map(lambda t: t.expand(2, *t.shape))
    about: dict[str, Any] = {"batch": batch, "estimator": "local", "buffers": {}, "seeds": [5, 6]}
    actual = mixed_by_layers(LogDensity(model, ROWS), (mean_MD, scale_MD), **about, steps=steps, power=alpha)
    for m, seed in enumerate((5, 6)):
        mean, scale = mean_MD[m].clone().requires_grad_(), scale_MD[m].clone().requires_grad_()
        f, spread = INPUTS @ mean, (INPUTS.square() @ scale.square()).sqrt()
        each = [f + spread * Randomness(seed, s).noise_of(1, f, (ROWS, 1))[:, 0] for s in steps]
        log_prob = nn.functional.logsigmoid((2 * LABELS[:, 0] - 1) * torch.stack(each))
        nll = -(counts * (alpha * log_prob).exp().mean(0).log() / alpha).sum() / ROWS
        torch.testing.assert_close(actual.nll_M[m], nll.detach())
        wanted = torch.autograd.grad(nll, (mean, scale))
        torch.testing.assert_close((actual.mean_MD[m], actual.scale_MD[m]), wanted)


@pytest.mark.parametrize("estimator", ["local", "flipout", "auto"])
def test_gradients_by_layers_are_differences(estimator: Any) -> None:
    """Of a network with a convolution, a norm, whose weights are drawn, and a dense layer; and one pass is its own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 2, 3), nn.GroupNorm(1, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3)).double()
    model = tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal())
    mean, scale = 0.5 * normal(1, model.layout.size), torch.full((1, model.layout.size), 0.3).double()
    batch = Batch(normal(1, 6, 1, 5), torch.arange(6).view(1, 6) % 3)
    density = LogDensity(model, 6, training=True)
    about: dict[str, Any] = {"batch": batch, "estimator": estimator, "buffers": {}, "seeds": [1]}
    steps: dict[str, Any] = {"steps": [2, 3, 4], "power": 0.8}
    actual = mixed_by_layers(density, (mean, scale), **about, **steps)
    for which, gradient in enumerate((actual.mean_MD, actual.scale_MD)):
        for at in range(0, model.layout.size, 9):
            nlls = []
            for sign in (1, -1):
                moved = [mean.clone(), scale.clone()]
                moved[which][0, at] += sign * 1e-6
                nlls.append(mixed_by_layers(density, (moved[0], moved[1]), **about, **steps).nll_M)
            assert float(nlls[0] - nlls[1]) / 2e-6 == pytest.approx(float(gradient[0, at]), rel=1e-5, abs=1e-8)
    one = mixed_by_layers(density, (mean, scale), **about, steps=[2], power=0.8)
    torch.testing.assert_close(tuple(one), tuple(by_layers(density, mean, scale, **about, step=2)))


# --- optima ---


def optimum(alpha: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the best normal distribution, by quadrature and BFGS; at α = 0 of a tiny one."""

    def parts(vector: Any) -> tuple[Tensor, Tensor]:
        root = torch.stack([vector[2].exp(), vector[4], vector[4] * 0, vector[3].exp()]).view(2, 2)
        return vector[:2], root @ root.T

    def value(vector: Any) -> tuple[float, Any]:
        leaf = torch.as_tensor(vector).requires_grad_()
        total = energy(*parts(leaf), alpha or 1e-5)
        return float(total.detach()), torch.autograd.grad(total, leaf)[0].numpy()

    actual = minimize(value, np.zeros(5), jac=True, method="BFGS", options={"gtol": 1e-7})
    return parts(torch.as_tensor(actual.x))


@pytest.mark.study  # values and gradients are those of quadrature, above
@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # a flat problem: draws explain less than the mean
@pytest.mark.parametrize("estimator", ["weights", "auto"])
def test_a_fit_arrives_at_the_optimum(estimator: Any) -> None:
    """A dense covariance by draws of weights; a diagonal one by layers has its own. Both are wider as α grows."""
    structure: Any = "dense" if estimator == "weights" else "diagonal"
    settings = {"epochs": 150, "batch_size": ROWS, "optimizer": tb.Adam(0.1), "kl_weight": 1.0, "draws": 100}
    variances = []
    alphas = (0.5, 1.0) if structure == "dense" else (0.0, 1.0)
    for alpha in alphas:
        about = {**settings, "epochs": 100, "draws": 4} if estimator == "auto" else settings
        method = tb.VI(structure, alpha=alpha, estimator=estimator, **about)
        actual = tb.fit(logistic(), (INPUTS, LABELS), method, seed=1, callbacks=())
        assert isinstance(actual, tb.Gaussian)
        covariance = actual.covariance.dense()[0]
        variances.append(float(covariance.diagonal().log().sum()))
        if structure == "dense":
            mean, exact = optimum(alpha)
            torch.testing.assert_close(actual.mean_MD[0], mean, rtol=0, atol=0.03)  # the logarithm of 100 draws' mean
            assert float((covariance - exact).norm() / exact.norm()) < 0.04
    assert variances[0] < variances[1] - 0.005 * (1 + (alphas[0] == 0))
