"""Mixtures with weights of their own: by held-out rows, by leave-one-out densities, and as posteriors."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from tests.laws.cases import model_of, rows_of
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.diagnostics import stacking_weights
from torchbayes.posteriors.mixtures.weighted import WeightedMixture, in_shares

NOISE = 0.5


@cache
def model() -> tb.Model:
    return tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(1.0))


def chains(*shifts: float, draws: int = 40) -> tb.Draws:
    """Chains around (1, −1, 0) plus a shift each."""
    centre = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    noise = 0.1 * normal(len(shifts), draws, 3, seed=1)
    return tb.Draws(model(), centre + noise + torch.tensor(shifts, dtype=torch.float64).view(-1, 1, 1))


def data(rows: int = 50) -> tuple[Tensor, Tensor]:
    inputs = normal(rows, 2, seed=2)
    return inputs, (inputs[:, :1] - inputs[:, 1:] + NOISE * normal(rows, 1, seed=3))


def densities(posterior: tb.Draws, rows: tuple[Tensor, Tensor]) -> Tensor:
    """log p(y_n | x_n) of each chain, (N, M), written out."""
    weights_MSD = posterior.weights_MSD
    mean_MSN = weights_MSD[..., :2] @ rows[0].T + weights_MSD[..., 2:]
    log_prob = torch.distributions.Normal(mean_MSN, NOISE).log_prob(rows[1][:, 0])
    return (log_prob.exp().mean(1)).log().T


def test_chains_get_the_stacking_weights_of_their_densities() -> None:
    posterior, rows = chains(0.0, 0.4, 1.5), data()
    stacked = tb.stack(posterior, rows, names=["near", "nearer", "far"])
    expected = stacking_weights(densities(posterior, rows)).weights_K
    assert_close(torch.tensor([*stacked.weights.values()]), expected, rtol=1e-6)
    assert [*stacked.weights] == ["near", "nearer", "far"]
    assert stacked.weights["near"] > 0.6
    assert stacked.weights["far"] < 0.05


def test_several_posteriors_are_each_an_equal_mixture() -> None:
    first, second, rows = chains(0.0, 0.3), chains(1.0, -1.0), data()
    stacked = tb.stack([first, second], rows)
    both = torch.stack([densities(each, rows).exp().mean(1).log() for each in (first, second)], 1)
    assert_close(torch.tensor([*stacked.weights.values()]), stacking_weights(both).weights_K, rtol=1e-6)
    first_share, second_share = stacked.shares
    assert first_share[0] == first_share[1]
    assert sum(first_share) + sum(second_share) == pytest.approx(1.0)


def test_draws_have_the_shares_and_predictions_are_the_weighted_average() -> None:
    """Density, mean and variance by the weights, to within the error of 483 and 129 of a thousand draws."""
    posterior, rows = chains(0.0, 0.6, 1.5, draws=1000), data(20)
    shares = (0.62, 0.3, 0.08)
    mixture = WeightedMixture(model(), (posterior,), (shares,), ("a", "b", "c"))
    each = [tb.predict(tb.Draws(model(), posterior.weights_MSD[m : m + 1]), rows[0]) for m in range(3)]
    actual = tb.predict(mixture, rows[0])
    assert actual.draws == int(1000 / 0.62)
    weights = torch.tensor(shares, dtype=torch.float64).view(3, 1, 1)
    mean = (weights * torch.stack([p.mean for p in each])).sum(0)
    assert_close(actual.mean, mean, atol=0.015)
    second = (weights * torch.stack([p.variance + p.mean.square() for p in each])).sum(0)
    assert_close(actual.variance, second - mean.square(), atol=0.02)
    log_prob = (weights[..., 0] * torch.stack([p.log_prob(rows[1]).exp() for p in each])).sum(0).log()
    assert_close(actual.log_prob(rows[1]), log_prob, atol=0.02)
    assert tb.evaluate(mixture, rows).metrics["nll"] == pytest.approx(-float(log_prob.mean()), abs=0.01)


def test_every_beginning_has_the_shares_to_within_a_draw() -> None:
    shares = [0.5, 0.31, 0.19, 0.0]
    order = in_shares(shares, 500)
    counts = nn.functional.one_hot(order, 4).cumsum(0)
    quota = torch.arange(1, 501).unsqueeze(1) * torch.tensor(shares)
    assert float((counts - quota).abs().max()) < 1
    assert not int(counts[-1, 3])
    mixture = WeightedMixture(model(), (chains(0.0, 1.0, 2.0, 3.0),), (tuple(shares),), tuple("abcd"))
    members = (mixture.sample(30)[:, 0] - 1).round().long()
    assert torch.equal(members, order[:30])


@pytest.mark.parametrize("network", ["mlp", "conv_batch_norm", "frozen"])
def test_a_saved_mixture_gives_the_same_functions(network: str, tmp_path: Path) -> None:
    """Two kinds of parts, one of them with statistics of batch norm that belong to each draw."""
    model, rows = model_of(network), rows_of(network)
    weights = normal(3, model.layout.size, seed=4)
    point = tb.Point(model, weights[:2], buffers_M=model.network.stacked_buffers(2) or None, statistics_known=True)
    drawn = tb.Draws(model, normal(1, 5, model.layout.size, seed=5), calibration=lambda: [rows[0]])
    mixture = WeightedMixture(model, (point, drawn), ((0.5, 0.25), (0.25,)), ("point", "drawn"))
    object.__setattr__(mixture, "calibration", lambda: [rows[0]])
    path = mixture.save(tmp_path / "q.safetensors")
    loaded = tb.load(path, model_of(network), calibration=lambda: [rows[0]])
    assert isinstance(loaded, WeightedMixture)
    assert loaded.weights == {"point": 0.75, "drawn": 0.25}
    assert torch.equal(loaded.sample(12, seed=3), mixture.sample(12, seed=3))
    outputs = mixture.functions(12, seed=3)(rows[0])
    assert torch.equal(loaded.functions(12, seed=3)(rows[0]), outputs)
    alone = drawn.functions(3, seed=3)(rows[0])
    order = in_shares([0.5, 0.25, 0.25], 12)
    assert_close(outputs[order == 2], alone)


@pytest.mark.filterwarnings("ignore:.*k-hat:torchbayes.ProblemWarning")
def test_leave_one_out_densities_stand_for_rows_that_were_held_out() -> None:
    inputs, targets = data(40)
    posterior = tb.fit(model(), (inputs, targets), tb.NUTS(chains=2, steps=400, burn_in=100), start=torch.zeros(3))
    left = tb.loo(posterior, (inputs, targets))
    by_chain = tb.stack(posterior, left)
    assert_close(torch.tensor([*by_chain.weights.values()]), stacking_weights(left.elpd_NM).weights_K, rtol=1e-6)
    other = tb.Draws(model(), posterior.weights_MSD + 1.0)
    both = [left, tb.loo(other, (inputs, targets))]
    assert tb.stack([posterior, other], both, names=("fit", "moved")).weights["fit"] > 0.9


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_what_cannot_be_mixed_is_refused() -> None:
    rows, posterior = data(), chains(0.0, 1.0)
    with pytest.raises(ValueError, match="two or more"):
        tb.stack(chains(0.0), rows)
    laplace = tb.fit(model(), rows, tb.Laplace(structure="dense", prior="model"), start=torch.zeros(3))
    with pytest.raises(ValueError, match="closed form"):
        tb.stack([posterior, laplace], rows)
    wider = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(2 * NOISE), tb.priors.Normal(1.0))
    with pytest.raises(ValueError, match="likelihood"):
        tb.stack([posterior, tb.Draws(wider, posterior.weights_MSD)], rows)
    with pytest.raises(ValueError, match="weighted mixture already"):
        tb.stack([posterior, tb.stack(posterior, rows)], rows)
    with pytest.raises(ValueError, match="numbers of rows differ"):
        tb.stack([posterior, posterior], [tb.loo(posterior, rows), tb.loo(posterior, data(49))])
    inputs, targets = rows
    for other in ((inputs, targets.flip(0)), (inputs, targets + 1)):  # as many rows, but others
        with pytest.raises(ValueError, match="their targets differ"):
            tb.stack([posterior, posterior], [tb.loo(posterior, rows), tb.loo(posterior, other)])
    by_batches = [(inputs[:20], targets[:20]), (inputs[20:], targets[20:])]
    left = [tb.loo(posterior, rows), tb.loo(posterior, by_batches)]
    assert tb.stack([posterior, posterior], left).weights == pytest.approx({"posterior 0": 0.5, "posterior 1": 0.5})
    with pytest.raises(ValueError, match="sum is 1"):
        WeightedMixture(model(), (posterior,), ((0.5, 0.6),))
