"""Members that repel as functions: their direction by dense Jacobians, and all that the laws do not run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.laws.cases import assert_same_tensors, everything, made, model_of, normal, rows_of
from tests.oracles import assert_close
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.methods.particles.base import heat_of
from torchbayes.methods.particles.functions import FunctionTarget, Repulsion, _between
from torchbayes.methods.particles.kernels import RBF, gram
from torchbayes.methods.particles.scores import Score, score_elsewhere, score_matrix

ROWS, MEMBERS = 7, 4
LIKELIHOODS: dict[str, Any] = {
    "known noise": lambda: tb.likelihoods.Gaussian(0.7),
    "learned noise": lambda: tb.likelihoods.Gaussian("learned", prior=tb.priors.Normal(2.0)),
}


def model_with(likelihood: str, prior: Any = None, **settings: Any) -> tb.Model:
    network = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    return tb.Model(network, LIKELIHOODS[likelihood](), prior or tb.priors.Normal(1.5), **settings)


def batch_of(members: int = MEMBERS) -> tb.Batch:
    """Rows of the first member; those of the others are nonsense, which nobody is to read."""
    inputs, targets = torch.full((members, ROWS, 2), math.nan), torch.full((members, ROWS, 2), math.nan)
    inputs, targets = inputs.double(), targets.double()
    inputs[0], targets[0] = normal(ROWS, 2, seed=5), normal(ROWS, 2, seed=6)
    return tb.Batch(inputs, targets)


def actual(model: tb.Model, repulsion: Repulsion, weights_MD: Tensor, *, plan: Any = "loop") -> tuple[Tensor, Tensor]:
    """The loss of each member, and the direction of descent."""
    density = tb.LogDensity(model, 50, plan=plan, training=True)
    out = torch.full_like(weights_MD, math.nan)
    value = FunctionTarget(density, repulsion).loss(
        weights_MD, batch_of(len(weights_MD)), buffers={}, seeds=range(len(weights_MD)), out=out
    )
    return value.log_density, out


@pytest.mark.parametrize("score", ["kde", "sge", "ssge"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("prior", ["functions", "weights"])
@pytest.mark.parametrize("tempering", ["joint", "likelihood"])
def test_the_direction_is_a_product_with_dense_jacobians(
    score: Score, likelihood: str, prior: str, tempering: Any
) -> None:
    """−(T/N) (∂f/∂w)ᵀ [γ ∇_f log p(y|f) N/B + γ ∇_f log p(f) − ∇_f log q̂(f)], with scores of their own tests."""
    model = model_with(likelihood, temperature=0.5, tempering=tempering)
    weights_MD, (inputs_MBF, targets_MBK) = normal(MEMBERS, model.layout.size, seed=7), batch_of()
    drawn_PD = normal(6, model.layout.size, seed=8) if prior == "functions" else None
    drive, size = 0.3, 27  # weights of the network

    def outputs(weights_D: Tensor) -> Tensor:
        return model.network(model.split(weights_D)[0], inputs_MBF[0]).flatten()

    f_MF = torch.stack([outputs(row) for row in weights_MD])
    driving_MF = torch.zeros_like(f_MF)
    if drawn_PD is not None:
        drawn_PF = torch.stack([outputs(row) for row in drawn_PD])
        joined = gram(torch.cat([f_MF, drawn_PF]), centred=True)
        driving_MF = score_elsewhere(joined, MEMBERS) @ drawn_PF
    entropy_MF = -(score_matrix(RBF().pairs(gram(f_MF, centred=True)), score) @ f_MF)
    divisor = 0.5 if tempering == "joint" else 1.0  # of prior and, with T = 0.5, of the likelihood
    expected_MD = []
    for m, weights_D in enumerate(weights_MD):
        jacobian_FD = torch.autograd.functional.jacobian(outputs, weights_D)
        pulled_D = (drive / divisor * driving_MF[m] + entropy_MF[m]) @ jacobian_FD

        def log_likelihood(row_D: Tensor) -> Tensor:
            return model.log_likelihood(row_D, tb.Batch(inputs_MBF[0], targets_MBK[0])).sum() * (50 / ROWS / 0.5)

        prior_D = torch.autograd.functional.jacobian(model.log_prior, weights_D) / divisor
        if prior == "functions":
            prior_D[:size] = 0
        fit_D = torch.autograd.functional.jacobian(log_likelihood, weights_D)
        expected_MD.append(pulled_D + drive * (fit_D + prior_D))
    loss_M, direction_MD = actual(model, Repulsion(score, RBF(), drive, drawn_PD), weights_MD)
    heat = divisor / 50
    assert heat_of(tb.LogDensity(model, 50)) == heat
    assert_close(direction_MD, -heat * torch.stack(expected_MD), rtol=1e-9)
    whole_M = torch.stack([model.log_joint(row, tb.Batch(inputs_MBF[0], targets_MBK[0]), 50) for row in weights_MD])
    assert_close(loss_M, -heat * whole_M)


@pytest.mark.parametrize("drawn", [0, 5])
def test_members_together_are_members_one_after_the_other(drawn: int) -> None:
    model = model_with("learned noise")
    weights_MD = normal(MEMBERS, model.layout.size, seed=7)
    repulsion = Repulsion("kde", RBF(), 1.0, normal(drawn, model.layout.size, seed=8) if drawn else None)
    alone, together = (actual(model, repulsion, weights_MD, plan=plan) for plan in ("loop", "vmap"))
    assert_close(together[0], alone[0])
    assert_close(together[1], alone[1], rtol=1e-9)


def test_plans_of_whole_fits_agree() -> None:
    settings: dict[str, Any] = {"members": 2, "epochs": 2, "batch_size": 12, "prior": "functions", "prior_draws": 4}
    for network in ("conv_batch_norm", "tied"):
        data = rows_of(network)
        names: tuple[Any, ...] = ("loop", "vmap", "auto") if network == "tied" else ("loop", "vmap")
        plans = [tb.RepulsiveEnsemble(**settings, plan=plan) for plan in names]
        fits = [everything(tb.fit(model_of(network), data, method, callbacks=())) for method in plans]
        for other in fits[1:]:
            for name, tensor in fits[0].items():
                assert_close(other[name], tensor, rtol=1e-7, atol=1e-9)


def test_a_prior_that_cannot_be_drawn_from_has_no_score_of_functions() -> None:
    data = rows_of()
    flat = tb.Model(made("mlp"), tb.likelihoods.Categorical(), tb.priors.Flat())
    settings: dict[str, Any] = {"members": 3, "epochs": 3, "batch_size": 6, "plan": "loop"}
    tb.fit(flat, data, tb.RepulsiveEnsemble(**settings), callbacks=())
    with pytest.raises(ValueError, match="cannot be drawn from Flat"):
        tb.fit(flat, data, tb.RepulsiveEnsemble(**settings, prior="functions"), callbacks=())


# `test_the_direction_is_a_product_with_dense_jacobians` has the share of the prior
SHRUNK = [
    (128, 10.0, 0.5),
    *(pytest.param(*case, marks=pytest.mark.study) for case in ((6, 0.5, 0.5), (60, 2.0, 0.2))),
]


@pytest.mark.study  # the force is that of the prior of weights and of functions row by row, in the tests around
@pytest.mark.parametrize(("rows", "noise", "scale"), SHRUNK)
def test_the_prior_of_weights_leads_to_the_posterior_mean(rows: int, noise: float, scale: float) -> None:
    """A linear model, whose posterior mean is known and lies between 0 and the maximum of the likelihood."""
    inputs, truth = normal(rows, 3, seed=1), torch.tensor([[0.4], [-0.5], [0.3]]).double()
    targets = inputs @ truth + noise * normal(rows, 1, seed=2)
    precision = inputs.T @ inputs / noise**2
    best = torch.linalg.solve(precision, inputs.T @ targets / noise**2)
    mean = torch.linalg.solve(precision + torch.eye(3) / scale**2, inputs.T @ targets / noise**2)
    model = tb.Model(
        nn.Linear(3, 1, bias=False, dtype=torch.float64), tb.likelihoods.Gaussian(noise), tb.priors.Normal(scale)
    )
    method = tb.RepulsiveEnsemble(members=4, epochs=300, batch_size=rows, optimizer=tb.Adam(lr=0.02), plan="loop")
    posterior: Any = tb.fit(model, (inputs, targets), method, callbacks=())
    actual = posterior.weights_MD.mean(0).unsqueeze(1)
    assert float((actual - mean).norm()) < 0.1 * float((best - mean).norm())


def test_a_resumed_run_draws_the_functions_of_its_epoch(tmp_path: Any) -> None:
    method = tb.RepulsiveEnsemble(3, 6, 6, prior="functions", prior_draws=4, plan="loop")
    expected = tb.fit(model_of(), rows_of(), method, callbacks=())
    tb.fit(model_of(), rows_of(), method, directory=tmp_path, callbacks=[lambda event: event.epoch == 3])
    resumed = tb.fit(model_of(), rows_of(), method, directory=tmp_path, resume=True, callbacks=())
    assert_same_tensors(everything(resumed), everything(expected))


def test_members_repel_as_functions() -> None:
    """One observation leaves functions free elsewhere: with the force, the same start ends farther apart."""
    torch.manual_seed(0)
    inputs, targets = torch.linspace(-1, 1, 6).view(-1, 1), torch.zeros(6, 1)
    model = tb.Model(nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)), tb.likelihoods.Gaussian(1.0))
    spreads = []
    for method in (tb.MAP(8, 60), tb.RepulsiveEnsemble(8, 60)):
        predictive = tb.predict(tb.fit(model, (inputs, targets), method, callbacks=()), inputs)
        spreads.append(float(predictive.outputs_SBK.std(0).mean()))
    assert spreads[1] > 3 * spreads[0]


@pytest.mark.parametrize("method", [tb.SVGD(3, 4, 6), tb.RepulsiveEnsemble(3, 4, 6)], ids=["svgd", "repulsive"])
def test_rows_of_every_kind(method: Any) -> None:
    """One row, weighted and ignored rows, one weight and a subspace."""
    inputs, targets = rows_of()
    weighted = tb.Model(made("mlp"), tb.likelihoods.Weighted(tb.likelihoods.Categorical()))
    weights = torch.rand(24, dtype=torch.float64)
    ignoring = tb.Model(made("mlp"), tb.likelihoods.Categorical(ignore_index=-100))
    hidden = torch.where(torch.arange(24) % 3 == 0, -100, targets)
    line = tb.Model(nn.Linear(1, 1, bias=False), tb.likelihoods.Gaussian(1.0))
    space = tb.Subspace.random(model_of(), model_of().given_weights(), 3)
    cases: list[tuple[tb.Model, Any, dict[str, Any]]] = [
        (model_of(), (inputs[:1], targets[:1]), {}),
        (weighted, (inputs, (targets, weights)), {}),
        (ignoring, (inputs, hidden), {}),
        (line, (torch.ones(1, 1), torch.ones(1, 1)), {}),
        (space.whole, (inputs, targets), {"space": space}),
    ]
    for model, data, options in cases:
        posterior = tb.fit(model, data, method, callbacks=(), **options)
        assert posterior.members == 3
        assert torch.isfinite(posterior.sample(3)).all()


def test_coupled_members_cannot_be_split_over_processes() -> None:
    for method in (tb.SVGD(4, 2), tb.RepulsiveEnsemble(4, 2)):
        assert method.needs.coupled
        with pytest.raises(ValueError, match=r"see each other, so 2 ranks cannot split them. Let them share the data"):
            tb.fit(model_of(), rows_of(), method, ranks=tb.Ranks(chains=2), callbacks=())


def test_extra_rows_lie_on_lines_through_pairs_and_have_no_targets() -> None:
    model, seed = model_with("known noise"), 11
    weights_MD, batch = normal(MEMBERS, model.layout.size, seed=7), batch_of()
    density = tb.LogDensity(model, 50, plan="loop", training=True)
    found_MD, inputs_BF = torch.empty_like(weights_MD), batch.inputs[0]
    target = FunctionTarget(density, Repulsion("kde", RBF(), 0.3, None, extra=200))
    value = target.loss(weights_MD, batch, buffers={}, seeds=[seed] * MEMBERS, out=found_MD)
    extra_EF = _between(inputs_BF, 200, ROWS, seed=seed)
    away_EBF, ways_BBF = extra_EF[:, None] - inputs_BF, inputs_BF - inputs_BF[:, None]
    # of a row on the line through two, the way from one of them is parallel to the way to the other
    turns_EBB = away_EBF[:, :, None, 0] * ways_BBF[..., 1] - away_EBF[:, :, None, 1] * ways_BBF[..., 0]
    turns_EBB = turns_EBB.abs() + torch.eye(ROWS, dtype=torch.float64)
    assert (turns_EBB.flatten(1).min(1).values < 1e-12).all()
    outputs = lambda row: model.network(model.split(row)[0], torch.cat([inputs_BF, extra_EF])).flatten()  # noqa: E731
    f_MF = torch.stack([outputs(row) for row in weights_MD])
    entropy_MF = -(score_matrix(RBF().pairs(gram(f_MF, centred=True)), "kde") @ f_MF)
    expected = []
    for row, pull in zip(weights_MD, entropy_MF, strict=True):
        joint = lambda w: model.log_joint(w, tb.Batch(inputs_BF, batch.targets[0]), 50)  # noqa: E731
        slope = torch.autograd.functional.jacobian(joint, row)
        expected.append(0.3 * slope + pull @ torch.autograd.functional.jacobian(outputs, row))
    assert_close(found_MD, -torch.stack(expected) / 50, rtol=1e-9)
    assert_close(value.log_likelihood, density(weights_MD, batch.map(lambda t: t[:1].expand_as(t))).log_likelihood)


def test_functions_need_a_network() -> None:
    density = tb.FunctionDensity(lambda w: -w.square().sum(-1))
    with pytest.raises(ValueError, match=r"this density has none. Set space='weights'"):
        tb.RepulsiveEnsemble(2).init(density, normal(2, 3), {}, seeds=[0, 1], steps_per_epoch=1)


@pytest.mark.parametrize("score", ["kde", "sge", "ssge"])
def test_outputs_that_overflow_are_a_run_that_diverged(score: Score) -> None:
    """Not an error of linear algebra, which the kernel of such outputs would give."""
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    data = (normal(24, 4, dtype=torch.float32), torch.arange(24) % 3)
    model = tb.Model(network, tb.likelihoods.Categorical())
    for prior in ("functions", "weights"):
        method = tb.RepulsiveEnsemble(3, 30, 6, tb.SGD(lr=1e30), score=score, prior=prior)
        with pytest.raises(tb.DivergedError, match=r"diverged at step \d of 120"):
            tb.fit(model, data, method, callbacks=())
    wide = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(1e30))
    with pytest.raises(ValueError, match="drawn from the prior have outputs that are not finite"):
        tb.fit(wide, data, tb.RepulsiveEnsemble(3, 2, 6, score=score, prior="functions"), callbacks=())


def test_extra_rows_are_refused_where_they_cannot_be_made() -> None:
    method = tb.RepulsiveEnsemble(3, 2, 6, extra=4)
    with pytest.raises(ValueError, match="would change the statistics of the batch norm `1`"):
        tb.fit(model_of("conv_batch_norm"), rows_of("conv_batch_norm"), method, callbacks=())
    tokens = tb.Model(nn.Sequential(nn.Embedding(9, 2), nn.Flatten()), tb.likelihoods.Categorical())
    with pytest.raises(ValueError, match="inputs that are no real numbers have none"):
        tb.fit(tokens, (torch.arange(8).view(4, 2), torch.tensor([0, 1, 2, 3])), method, callbacks=())
    assert tb.fit(model_of("dropout"), rows_of("dropout"), method, callbacks=()).members == 3


@pytest.mark.study  # `test_extra_rows_lie_on_lines_through_pairs_and_have_no_targets` has their direction
def test_extra_rows_make_members_differ_more_outside_the_data() -> None:
    """At ±2, where HMC has 0.6, a deep ensemble has 0.03, one that repels on the rows 0.1, and on extra ones 0.2."""
    inputs = torch.cat([torch.linspace(-1, -0.5, 10), torch.linspace(0.5, 1, 10)]).view(-1, 1)
    data, outside = (inputs, inputs.sin()), torch.tensor([[-2.0], [2.0]])
    model = tb.Model(nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)), tb.likelihoods.Gaussian(0.05))
    spreads, common = [], {"members": 8, "epochs": 800, "optimizer": tb.Adam(lr=0.02)}
    for method in (tb.MAP(**common), tb.RepulsiveEnsemble(**common), tb.RepulsiveEnsemble(**common, extra=20)):
        predictive = tb.predict(tb.fit(model, data, method, callbacks=()), outside)
        spreads.append(float(predictive.outputs_SBK.std(0).mean()))
    assert spreads[1] > 1.5 * spreads[0]
    assert spreads[2] > 1.3 * spreads[1]
