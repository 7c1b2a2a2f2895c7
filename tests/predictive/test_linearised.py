"""The linearised predictive against explicit Jacobians, and its links against quadrature."""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from tests.covering import with_studies
from tests.curvature import oracle
from tests.curvature.networks import NETS
from tests.curvature.test_sums import Largest
from tests.oracles import LinearGaussian, assert_close, classes, finite_differences, normal
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import torchbayes as tb
from torchbayes.curvature import layer_support, network_layers
from torchbayes.linalg import Blocks, Dense, Diagonal, Kronecker, LowRankPlusDiagonal, LowRankPrecision, Scaled
from torchbayes.model.batches.batch import rows_of

M, ROWS, TEST = 2, 5, 4
SINGLE = [name for name in NETS if name != "outputs at places"]
FITTED: dict[str, dict[str, Any]] = {
    "laplace diagonal": {"structure": "diagonal"},
    "laplace kronecker": {"structure": "kronecker"},
    "laplace kronecker, biases apart": {"structure": "kronecker", "joint_bias": False},
    "laplace ekfac": {"structure": "ekfac"},
    "laplace dense": {"structure": "dense"},
    "laplace low rank": {"structure": "low_rank", "rank": 4},
}
SCALED = ("scaled", "scaled diagonal", "scaled low rank plus diagonal", "scaled low rank precision", "scaled blocks")
GIVEN = ("diagonal", "dense", "low rank plus diagonal", "low rank precision", "blocks of any weights", *SCALED)
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]


def given(kind: str, size: int) -> Any:
    """Return a covariance of M members over any weights."""
    if kind.startswith("scaled "):
        inner = "blocks of any weights" if kind == "scaled blocks" else kind.removeprefix("scaled ")
        return Scaled(normal(M, size, seed=6).exp(), given(inner, size))
    variance = normal(M, size, seed=3).exp()
    if kind == "low rank plus diagonal":  # what SWAG gives
        return LowRankPlusDiagonal(variance, normal(M, 3, size, seed=4))
    if kind == "low rank precision":
        return LowRankPrecision(variance, normal(M, 3, size, seed=4))
    root = 0.2 * normal(M, size, size, seed=5).triu(1) + torch.diag_embed(variance)
    if kind == "dense":
        return Dense(root)
    if kind == "scaled":
        return Scaled(normal(M, size, seed=6).exp(), Dense(root))
    if kind == "blocks of any weights":  # that cut through layers
        order = torch.randperm(size, generator=torch.Generator().manual_seed(7))
        half = size // 2
        return Blocks(order, (Dense(root[:, :half, :half]), Diagonal(variance[:, half:])))
    return Diagonal(variance)


@cache
def posterior(name: str, kind: str) -> tb.LaplacePosterior | tb.Gaussian:
    """Return a posterior of two members."""
    inputs, targets, weights_MD, buffers_M = oracle.problem(name)
    model = oracle.model_of(NETS[name], targets)
    if kind in FITTED:
        method = tb.Laplace(check_mode=False, **{"prior": "model", **FITTED[kind]})
        return oracle.fitted(method, model, weights_MD, (inputs, targets), buffers_M=buffers_M)
    covariance = given(kind, weights_MD.shape[1])
    return tb.Gaussian(model, weights_MD, covariance, buffers_M=buffers_M or None, statistics_known=True)


def explicit(name: str, kind: str, rows: int = TEST) -> tuple[Tensor, Tensor]:
    """Return f (M, B, K) and J Σ Jᵀ over all inputs, (M, B, K, B, K), from explicit Jacobians."""
    actual, (mean, jacobian_MBKD) = posterior(name, kind), oracle.outputs_of(name, rows)
    gaussian = actual if isinstance(actual, tb.Gaussian) else actual.gaussian
    half = torch.einsum("mbkd,mde->mbke", jacobian_MBKD, gaussian.covariance.dense())
    return mean, torch.einsum("mbke,mcle->mbkcl", half, jacobian_MBKD)


KINDS = [*FITTED, "low rank plus diagonal", "blocks of any weights"]
TYPICAL = ("mlp",)


def dealt() -> list[Any]:
    """Networks and kinds: all kinds for a typical network, else one of them in turn.

    The rest of the pairs is a study.
    """
    run = []
    for number, name in enumerate(SINGLE):
        run += [(name, kind) for kind in (KINDS if name in TYPICAL else [KINDS[number % len(KINDS)]])]
    return with_studies(run, SINGLE, KINDS)


@pytest.mark.parametrize(("name", "kind"), dealt())
def test_mean_and_covariance_of_functions(name: str, kind: str):
    inputs, (mean, spread) = NETS[name].inputs(TEST), explicit(name, kind)
    expected = spread.diagonal(dim1=1, dim2=3).movedim(-1, 1)
    scale = {"rtol": 1e-8, "atol": 1e-10 * float(expected.abs().max())}
    actual = tb.Linearised(posterior(name, kind)).functions(inputs)
    assert_close(actual.mean_MBK, mean)
    assert_close(actual.covariance_MBKK, expected, **scale)
    row_by_row = tb.Linearised(posterior(name, kind), chunk=1).functions(inputs, diagonal=True)
    assert_close(row_by_row.mean_MBK, mean)
    assert_close(row_by_row.covariance_MBKK, expected.diagonal(dim1=2, dim2=3), **scale)
    kept = normal(*mean[0].shape, seed=6).exp() * (normal(*mean[0].shape, seed=5) > -0.5)  # uneven, and some are 0
    kept[..., 0] = 1.0
    weights = kept / kept.sum(-1, keepdim=True)
    plane = torch.eye(mean.shape[-1]).double() - weights.unsqueeze(-2)
    apart = (plane @ expected @ plane.mT).diagonal(dim1=-2, dim2=-1)
    centred = tb.Linearised(posterior(name, kind))._functions(inputs, diagonal=True, centre=lambda _: weights)
    assert_close(centred.covariance_MBKK, apart, **scale)


@pytest.mark.parametrize("kind", ["laplace diagonal", "laplace kronecker", "laplace kronecker, biases apart"])
@pytest.mark.parametrize("name", ["groups", "twice", "linear attention", "embedding", "biases of convolutions"])
def test_rows_of_a_shared_layer_may_be_taken_one_by_one(name: str, kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbayes.curvature.parts._CACHED", 1)
    inputs, spread = NETS[name].inputs(TEST), explicit(name, kind)[1].diagonal(dim1=1, dim2=3).movedim(-1, 1)
    linearised, scale = tb.Linearised(posterior(name, kind)), {"rtol": 1e-8, "atol": 1e-10 * float(spread.abs().max())}
    assert_close(linearised.functions(inputs).covariance_MBKK, spread, **scale)
    variances = linearised.functions(inputs, diagonal=True).covariance_MBKK
    assert_close(variances, spread.diagonal(dim1=2, dim2=3), **scale)


def test_jacobians_of_shared_layers_are_there_for_few_rows():
    torch.manual_seed(0)
    rows, units, classes_ = 300, 64, 10
    parts = (nn.Conv2d(1, units, 3), nn.ReLU(), nn.Conv2d(units, units, 3), nn.AvgPool2d(2), nn.Flatten())
    model = tb.Model(nn.Sequential(*parts, nn.Linear(units, classes_)), tb.likelihoods.Categorical(), random="2.*")
    variance = torch.ones(1, model.layout.size)
    posterior_ = tb.Gaussian(model, model.given_weights().unsqueeze(0), Diagonal(variance))
    with Largest() as largest:
        tb.predict(tb.Linearised(posterior_), torch.randn(rows, 1, 6, 6))
    assert largest.numbers < 2**21 < rows * classes_ * model.layout.size / 50


def test_no_jacobian_of_a_last_layer_is_formed():
    torch.manual_seed(0)
    rows, units, outputs = 200, 30, 8
    model = tb.Model(
        nn.Sequential(nn.Linear(5, units), nn.Tanh(), nn.Linear(units, outputs)).double(),
        tb.likelihoods.Categorical(),
        random="2.*",
    )
    size = model.layout.size
    covariance = Dense(torch.eye(size, dtype=torch.float64).unsqueeze(0))
    posterior_ = tb.Gaussian(model, model.given_weights().unsqueeze(0), covariance)
    with Largest() as largest:
        tb.predict(tb.Linearised(posterior_), normal(rows, 5))
    assert largest.numbers <= size**2 < rows * outputs * size


@pytest.mark.parametrize("columns_alone", [True, False])
@pytest.mark.parametrize("bases", ["both", "rows", "columns", "none"])
def test_a_kronecker_product_in_other_units(columns_alone: bool, bases: str):
    inputs, _, weights_MD, _ = oracle.problem("linear")
    rows, columns = (torch.linalg.qr(normal(M, 1, n, n, seed=n)).Q for n in (3, 5))
    inner = Kronecker(
        normal(M, 1, 3, 5, seed=8).exp(),
        rows if bases in {"both", "rows"} else None,
        columns if bases in {"both", "columns"} else None,
    )
    scale = normal(M, 1 if columns_alone else 3, 5, seed=9).exp().expand(M, 3, 5)
    model = oracle.model_of(NETS["linear"], oracle.problem("linear")[1])
    index = network_layers(model, layer_support(model, weights_MD[0], inputs)).layers[0].index.flatten()
    own = torch.empty_like(weights_MD)
    own[:, index] = scale.flatten(1)
    posterior = tb.Gaussian(model, weights_MD, Scaled(own, Blocks(index, (inner,))), statistics_known=True)
    mean, jacobian = oracle.outputs_of("linear", TEST)
    actual = tb.Linearised(posterior).functions(NETS["linear"].inputs(TEST))
    expected = torch.einsum("mbkd,mde,mble->mbkl", jacobian, posterior.covariance.dense(), jacobian)
    assert_close(actual.mean_MBK, mean)
    assert_close(actual.covariance_MBKK, expected)


JOINT = (
    *(
        "mlp",
        "linear",
        "last layer",
        "bias of the head",
        "tied",
        "groups",
        "linear attention",
        "embedding",
        "batch norm",
    ),
    *("a number", "tuple inputs", "dict inputs", "biases of convolutions"),
)


CHUNKS = (2**24, 64)


def joint_cases() -> list[Any]:
    """Networks, kinds and chunks: all kinds for one network, else one of them in turn.

    Chunks take turns. The rest is a study.
    """
    kinds, always = (*FITTED, *GIVEN), ("laplace diagonal", "laplace kronecker")
    others = [kind for kind in kinds if kind not in always]
    run: list[tuple[str, str, int]] = []
    for number, name in enumerate(JOINT):
        of_name = kinds if name == "mlp" else ((*always, *others)[number % len(kinds)],)
        run += [(name, kind, CHUNKS[(number + place) % 2]) for place, kind in enumerate(of_name)]
    return with_studies(run, JOINT, kinds, CHUNKS)


@pytest.mark.parametrize(("name", "kind", "chunk"), joint_cases())
def test_joint_covariance_over_inputs(name: str, kind: str, chunk: int):
    inputs, (mean, spread) = NETS[name].inputs(TEST), explicit(name, kind)
    linearised = tb.Linearised(posterior(name, kind), chunk=chunk)
    actual = linearised.joint(inputs)
    scale = {"rtol": 1e-8, "atol": 1e-10 * float(spread.abs().max())}
    assert_close(actual.mean_MBK, mean)
    assert_close(actual.covariance_MBKK, spread, **scale)
    each = linearised.functions(inputs).covariance_MBKK
    assert_close(each, spread.diagonal(dim1=1, dim2=3).movedim(-1, 1), **scale)
    assert_close(linearised.cross(inputs, rows_of(inputs, slice(1, 3))), spread[:, :, :, 1:3], **scale)


DIFFERENTIATED = ("laplace diagonal", "laplace kronecker", "low rank plus diagonal")


@pytest.mark.parametrize(
    ("name", "kind"),
    with_studies(
        [
            *product(("mlp",), DIFFERENTIATED),
            ("layer norm", "laplace diagonal"),
            ("multihead attention", "laplace kronecker"),
        ],
        ("mlp", "linear", "groups", "layer norm", "linear attention", "multihead attention", "twice"),
        (*DIFFERENTIATED, "laplace dense"),
    ),
)
def test_variance_is_differentiable_in_the_inputs(name: str, kind: str):
    linearised = tb.Linearised(posterior(name, kind))
    inputs = NETS[name].inputs(2 if name == "mlp" else 1)
    actual = linearised.functions(inputs)
    weights = [normal(*t.shape, seed=9) for t in actual]

    def total(at: Tensor) -> Tensor:
        own = linearised.functions(at)
        return sum((t * w).sum() for t, w in zip(own, weights, strict=True))  # type: ignore[return-value]

    leaf = inputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(leaf), leaf)
    assert_close(gradient, finite_differences(total, inputs), rtol=1e-5, atol=1e-6 * float(gradient.abs().max()))
    assert not actual.covariance_MBKK.requires_grad
    assert not actual.mean_MBK.requires_grad


@pytest.mark.parametrize("method", ["functions", "joint", "predictive"])
def test_inputs_of_another_dtype_are_placed(method: str):
    linearised = tb.Linearised(posterior("mlp", "laplace dense"))
    inputs = NETS["mlp"].inputs(3).float()
    actual, exact = (getattr(tb.Linearised(linearised.posterior), method)(x) for x in (inputs, inputs.double()))
    assert_close(
        actual[0] if method != "predictive" else actual.probs, exact[0] if method != "predictive" else exact.probs
    )


def test_predictive_is_the_mixture_members():
    inputs = NETS["mlp"].inputs(7)
    mean, spread = explicit("mlp", "laplace kronecker", 7)
    others = 1.5 * torch.eye(3).double() - 0.5  # f_k less the mean of the other two
    variance = others @ spread.diagonal(dim1=1, dim2=3).movedim(-1, 1) @ others.T
    centred = mean - mean.mean(-1, keepdim=True)
    expected = (centred / (1 + math.pi / 8 * variance.diagonal(dim1=2, dim2=3)).sqrt()).softmax(-1).mean(0)
    linearised = tb.Linearised(posterior("mlp", "laplace kronecker"), "probit")
    assert_close(tb.predict(linearised, inputs).probs, expected, rtol=1e-9)
    assert_close(tb.predict(linearised, inputs, chunk_size=3).probs, expected, rtol=1e-9)
    labels = classes(7, 3)
    streamed = list(tb.stream(linearised, [(inputs[:4], labels[:4]), (inputs[4:], labels[4:])]))
    assert_close(torch.cat([p.probs for p, _ in streamed]), expected, rtol=1e-9)


@pytest.mark.parametrize("structure", ["dense", "kronecker", "ekfac", "low_rank"])
def test_regression_is_the_closed_form(structure: Any):
    data = LinearGaussian(normal(9, 3), normal(9, seed=1), prior_scale=0.8, noise_scale=0.3)
    model = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.3), tb.priors.Normal(scale=0.8))
    mode, covariance = data.posterior()
    method = tb.Laplace(structure=structure, prior="model")
    actual = oracle.fitted(method, model, mode.unsqueeze(0), (data.inputs_NF, data.targets_N))
    assert_close(actual.gaussian.covariance.dense()[0], covariance, rtol=1e-8)
    inputs, targets = normal(5, 3, seed=2), normal(5, seed=3)
    mean, variance = data.predictive(inputs)
    predictive = tb.predict(tb.Linearised(actual), inputs)
    assert_close(predictive.mean.squeeze(-1), mean, rtol=1e-8)
    assert_close(predictive.variance.squeeze(-1), variance, rtol=1e-8)
    assert_close(predictive.epistemic.squeeze(-1), variance - 0.09, rtol=1e-8)
    assert_close(predictive.aleatoric.squeeze(-1), torch.full((5,), 0.09, dtype=torch.float64), rtol=1e-8)
    exact = torch.distributions.Normal(mean, variance.sqrt())
    assert_close(predictive.log_prob(targets), exact.log_prob(targets), rtol=1e-8)
    assert_close(predictive.quantile(0.9).squeeze(-1), exact.icdf(torch.tensor(0.9, dtype=torch.float64)), rtol=1e-8)


def test_learned_noise_joins_the_variance_of_the_function():
    model = tb.Model(nn.Linear(3, 2).double(), tb.likelihoods.Gaussian("learned", outputs=2))
    weights_MD = torch.cat([normal(M, 8), torch.tensor([[-1.0, 0.2], [0.5, -0.7]], dtype=torch.float64)], dim=1)
    method = tb.Laplace(structure="dense", check_mode=False, prior="model")
    actual = oracle.fitted(method, model, weights_MD, (normal(6, 3), normal(6, 2, seed=1)))
    linearised, inputs = tb.Linearised(actual), normal(4, 3, seed=2)
    functions = linearised.functions(inputs, diagonal=True)
    noise_MK = weights_MD[:, 8:].exp()
    expected = torch.distributions.Normal(
        functions.mean_MBK, (functions.covariance_MBKK + noise_MK.unsqueeze(1) ** 2).sqrt()
    )
    targets = normal(4, 2, seed=3)
    each = expected.log_prob(targets).sum(-1)
    assert_close(tb.predict(linearised, inputs).log_prob(targets), each.logsumexp(0) - math.log(M))


def test_many_classes_on_a_last_layer_take_little_work_and_memory():
    rows, units, outputs = 200, 64, 1000
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, units), nn.Tanh(), nn.Linear(units, outputs))
    model = tb.Model(module, tb.likelihoods.Categorical(), random="2.*")
    weights, biases = torch.arange(units * outputs).view(outputs, units), units * outputs + torch.arange(outputs)
    rows_, columns = (torch.linalg.qr(torch.randn(1, 1, size, size)).Q for size in (outputs, units + 1))
    kronecker = Kronecker(torch.rand(1, 1, outputs, units + 1), rows_, columns)
    covariance = Blocks(torch.cat([weights, biases.unsqueeze(1)], dim=1).flatten(), (kronecker,))
    posterior_ = tb.Gaussian(model, model.given_weights().unsqueeze(0), covariance)
    linearised, inputs = tb.Linearised(posterior_), torch.randn(rows, 20)
    with Largest() as largest, FlopCounterMode(display=False) as work:
        probs = tb.predict(linearised, inputs).probs
    assert work.get_total_flops() < 1e9  # 0.46e9; a form that is not the last layer's own takes a hundred times as many
    assert largest.numbers < 2 * outputs**2  # nothing of the size of rows x classes x classes, or of weights x classes
    assert probs.shape == (rows, outputs)
    few = slice(0, 3)
    full = tb.Linearised(posterior_).functions(inputs[few]).covariance_MBKK
    assert_close(
        full.diagonal(dim1=-2, dim2=-1), linearised.functions(inputs[few], diagonal=True).covariance_MBKK, rtol=1e-4
    )


def test_samples_converge_to_the_integral():
    samples, inputs = 20_000, NETS["a number"].inputs(3)
    model, weights_MD = tb.Model(NETS["a number"].module(), tb.likelihoods.Bernoulli()), oracle.problem("a number")[2]
    spread = Diagonal(normal(M, weights_MD.shape[1], seed=3).exp())
    linearised = tb.Linearised(tb.Gaussian(model, weights_MD, spread), link="samples", samples=samples, seed=3)
    functions = linearised.functions(inputs)
    predictive = linearised.predictive(inputs)
    assert predictive.draws == samples * M
    expected = averaged_sigmoid(functions.mean_MBK, functions.covariance_MBKK.squeeze(-1)).mean(0)
    error = predictive.outputs_SBK.sigmoid().std(0) / math.sqrt(samples * M)
    assert ((predictive.probs - expected).abs() < 5 * error).all()
    own = predictive.outputs_SBK.view(samples, M, 3, 1)  # draw s is of member s mod M
    assert ((own.mean(0) - functions.mean_MBK).abs() < 5 * own.std(0) / math.sqrt(samples)).all()
    assert_close(own.var(0), functions.covariance_MBKK.squeeze(-1), rtol=5 * math.sqrt(2 / samples))


def test_samples_have_the_covariance_between_outputs():
    samples, inputs = 20_000, NETS["mlp"].inputs(2)
    linearised = tb.Linearised(posterior("mlp", "laplace dense"), link="samples", samples=samples)
    exact = linearised.functions(inputs).covariance_MBKK
    drawn = linearised.predictive(inputs).outputs_SBK.view(samples, M, 2, 3)
    centred = drawn - drawn.mean(0)
    actual = torch.einsum("smbk,smbl->mbkl", centred, centred) / samples
    variance = exact.diagonal(dim1=-2, dim2=-1)
    error = ((exact**2 + variance.unsqueeze(-1) * variance.unsqueeze(-2)) / samples).sqrt()
    assert ((actual - exact).abs() < 5 * error).all()


@pytest.mark.parametrize("name", ["mlp", "batch norm", "multihead attention"])
def test_samples_of_many_outputs_are_those_of_drawn_weights(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbayes.predictive.linearised.MANY", 0)
    actual, (mean_MBK, jacobian_MBKD) = posterior(name, "laplace kronecker"), oracle.outputs_of(name, TEST)
    linearised = tb.Linearised(actual, link="samples", samples=6, seed=4)
    drawn = linearised.predictive(NETS[name].inputs(TEST), chunk_size=3).outputs_SBK
    moves_SMD = actual.gaussian.sample(6 * M, seed=4).view(6, M, -1) - actual.gaussian.mean_MD
    expected = mean_MBK + torch.einsum("mbkd,smd->smbk", jacobian_MBKD, moves_SMD)
    assert_close(drawn.view(6, M, *mean_MBK.shape[1:]), expected, rtol=1e-8, atol=1e-10)


def test_many_classes_take_draws_and_no_gradient_of_each_class():
    torch.manual_seed(0)
    net, inputs = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 150)).double(), normal(40, 4)
    model = tb.Model(net, tb.likelihoods.Categorical())
    actual = tb.fit(model, (inputs, torch.arange(40)), tb.Laplace(check_mode=False, prior="model"), start=net)
    with FlopCounterMode(display=False) as work:
        prediction = tb.predict(actual, inputs)
    with FlopCounterMode(display=False) as by_class:
        tb.predict(tb.Linearised(actual, link="probit"), inputs)
    assert prediction.draws == 100
    assert 2 * work.get_total_flops() < by_class.get_total_flops()  # which grow as the square of the classes
    exact = tb.predict(tb.Linearised(actual, link="samples", samples=3000, seed=1), inputs).probs
    error = prediction.outputs_SBK.softmax(-1).std(0) / 10  # of 100 draws
    assert (prediction.probs - exact).abs().mean() < 1.2 * error.mean()  # 0.8 of normal errors


def test_samples_take_no_copy_of_the_covariance_for_every_draw():
    samples, rows, classes_ = 200, 3, 40
    model = tb.Model(nn.Linear(2, classes_).double(), tb.likelihoods.Categorical())
    actual = tb.Gaussian(model, normal(1, 3 * classes_), Diagonal(torch.ones(1, 3 * classes_, dtype=torch.float64)))
    with Largest() as largest:
        tb.Linearised(actual, "samples", samples=samples).predictive(normal(rows, 2))
    assert largest.numbers <= 2 * samples * rows * classes_  # a copy would have 40 times as many


def test_samples_are_the_link_of_a_likelihood_without_a_closed_form():
    torch.manual_seed(0)
    model = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Poisson())
    actual = tb.Gaussian(model, normal(1, 3), Diagonal(torch.full((1, 3), 0.05, dtype=torch.float64)))
    linearised, inputs = tb.Linearised(actual, samples=20_000), normal(3, 2)
    functions = linearised.functions(inputs)
    expected = (functions.mean_MBK + functions.covariance_MBKK.squeeze(-1) / 2).exp()[0]  # a log-normal mean
    predictive = linearised.predictive(inputs)
    error = predictive.distribution.mean.std(0) / math.sqrt(20_000)
    assert ((predictive.mean - expected).abs() < 5 * error).all()


def test_a_variance_that_all_classes_share_changes_no_probability():
    """Softmax does not see what is added to all outputs."""
    model = tb.Model(nn.Linear(2, 3).double(), tb.likelihoods.Categorical())
    mean_MD, own = normal(1, 9), 0.3 * normal(9, 9, seed=1)
    everywhere = torch.tensor([0.0] * 6 + [1.0] * 3, dtype=torch.float64)  # the three biases
    inputs, probs, marginal = normal(5, 2, seed=2), {}, {}
    for common in (0.0, 1e4):
        covariance = own @ own.T + common * torch.outer(everywhere, everywhere)
        actual = tb.Gaussian(model, mean_MD, Dense(covariance.unsqueeze(0)))
        drawn = tb.Linearised(actual, "samples", samples=50_000).predictive(inputs).probs
        probs[common] = tb.Linearised(actual).predictive(inputs).probs
        marginal[common] = tb.Linearised(actual, "probit").predictive(inputs).probs
        assert (marginal[common] - drawn).abs().max() < 0.14
        assert (probs[common] - drawn).abs().max() < 0.06  # what the closed form is off by
    assert_close(probs[1e4], probs[0.0], rtol=1e-6)
    assert_close(marginal[1e4], marginal[0.0], rtol=1e-6)


def test_covariances_of_classes_are_not_kept_for_all_rows(monkeypatch: pytest.MonkeyPatch):
    actual, sizes = posterior("mlp", "laplace diagonal"), []
    inputs = NETS["mlp"].inputs(7)
    expected = tb.Linearised(actual, "pairwise").predictive(inputs).probs
    functions = tb.Linearised._functions

    def watched(self: tb.Linearised, inputs: Tensor, **options: Any) -> Any:
        sizes.append(len(inputs))
        return functions(self, inputs, **options)

    monkeypatch.setattr(tb.Linearised, "_functions", watched)
    assert_close(tb.Linearised(actual, "pairwise").predictive(inputs, chunk_size=3).probs, expected)
    assert sizes == [3, 3, 1]


def averaged_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """Return ∫ σ(f) N(f; m, v) df by the trapezoid rule."""
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    values = (mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * grid).sigmoid()
    return torch.trapezoid(values * (-0.5 * grid**2).exp(), grid) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("link", ["gaussian", "pairwise", "bridge", "probit"])
def test_link_that_does_not_go_with_the_likelihood(link: Any):
    likelihood = tb.likelihoods.Poisson() if link != "pairwise" else tb.likelihoods.Bernoulli()
    model = tb.Model(nn.Linear(2, 1).double(), likelihood)
    with pytest.raises(ValueError, match=f"link '{link}' needs a"):
        tb.Linearised(tb.Gaussian(model, normal(1, 3), Diagonal(torch.ones(1, 3))), link=link)


def test_unknown_link_and_counts_are_refused():
    actual = posterior("mlp", "laplace diagonal")
    with pytest.raises(ValueError, match="`link` must be one of"):
        tb.Linearised(actual, link="logit")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        tb.Linearised(actual, samples=0)


def test_posterior_that_is_no_gaussian_is_refused():
    point = tb.Point(posterior("mlp", "laplace diagonal").model, normal(1, 43))
    with pytest.raises(
        TypeError, match=r"a Laplace posterior or a Gaussian one; got .*\. Use predict\(posterior, inputs\)"
    ):
        tb.Linearised(point)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_kronecker_product_that_is_not_of_a_layer_is_refused(name: str):
    """The product runs over the flat vector, weights before biases; a layer's has the bias as a column."""
    model = posterior(name, "laplace diagonal").model
    size = model.layout.size
    shape = (1, 1, 3, 5) if name == "linear" else (1, 1, 1, size)
    covariance = Kronecker(normal(*shape).exp())
    actual = tb.Gaussian(model, normal(1, size), covariance)
    with pytest.raises(ValueError, match="not one of the layers"):
        tb.Linearised(actual).functions(NETS[name].inputs(2))


@pytest.mark.parametrize("method", ["functions", "joint", "predictive"])
def test_bad_inputs_are_refused(method: str):
    call = getattr(tb.Linearised(posterior("mlp", "laplace diagonal")), method)
    with pytest.raises(ValueError, match="no rows"):
        call(torch.zeros(0, 4))
    with pytest.raises(ValueError, match="must be finite"):
        call(torch.full((2, 4), torch.nan))
    width = NETS["mlp"].inputs(2).shape[1]
    for _ in range(2):  # when the layer support is determined, and when it is known
        with pytest.raises(
            ValueError, match=rf"the network cannot take inputs of shape \(9, {width + 1}\): (addmm: )?mat1"
        ):
            call(normal(9, width + 1))
        with pytest.raises(ValueError, match=r"the network cannot take inputs of shape .*dtype"):
            call(torch.ones(9, width, dtype=torch.int64))
        call(NETS["mlp"].inputs(2))


def test_draws_are_refused():
    with pytest.raises(ValueError, match="draws nothing"):
        tb.predict(tb.Linearised(posterior("mlp", "laplace diagonal")), NETS["mlp"].inputs(2), draws=10)
