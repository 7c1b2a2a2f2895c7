"""Alignment: the best permutations where they are known, the same functions everywhere, and what is refused."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.geometry.networks import NETWORKS, filled, made, normal
from tests.oracles import classes
from torchbayes.geometry import align, barrier, permutation_groups
from torchbayes.geometry.alignment import assigned, by_weights
from torchbayes.randomness.seeds import Purpose, seeded


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-12)


def small(hidden: tuple[int, ...] = (5,), *, dtype: torch.dtype = torch.float64) -> tb.Model:
    sizes = (3, *hidden, 2)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    with seeded(Purpose.FACTORY, 3):
        return tb.Model(nn.Sequential(*layers[:-1]).to(dtype), tb.likelihoods.Gaussian(1.0))


def members(model: tb.Model, count: int, seed: int = 0) -> Tensor:
    return normal(count, model.layout.size, seed=seed).to(model.network.dtype)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).square().sum())


@pytest.mark.parametrize("seed", range(3))
def test_one_hidden_layer_by_brute_force(seed: int):
    model = small()
    weights_MD = members(model, 2, seed)
    groups = permutation_groups(model)
    orders = [torch.tensor(order) for order in permutations(range(5))]
    best = min(distance(weights_MD[0], groups.permute(weights_MD[1], [order])[0]) for order in orders)
    actual = align(model, weights_MD).weights_MD
    assert torch.equal(actual[0], weights_MD[0])
    assert distance(actual[0], actual[1]) == pytest.approx(best, rel=1e-12)
    assert best < distance(*weights_MD)


@pytest.mark.parametrize("method", ["weights", "activations"])
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "recurrent"])
def test_a_planted_permutation_is_recovered(name: str, method: str):
    """Exactly, with the statistics of batch norm; then the line between both is a point."""
    model, data = made(name)
    groups = permutation_groups(model, data)
    weights_D = model.given_weights()
    planted_D, buffers = groups.permute(weights_D, groups.random(seed=2))
    own = model.network.buffers
    both = {n: torch.stack([b, buffers[n]]) for n, b in own.items()} or None
    point = tb.Point(model, torch.stack([weights_D, planted_D]), buffers_M=both, statistics_known=True)
    actual = align(model, point, method=method, data=data)  # type: ignore[arg-type]
    outputs = actual.functions()(data[0])
    assert_same(outputs, point.functions()(data[0]))
    if method == "activations" and name in {"norms", "attention"}:
        return  # an instance norm makes shifts of a channel invisible; attention weights tell heads, not their units
    assert torch.equal(actual.weights_MD[1], weights_D)
    assert all(torch.equal(b[1], own[n]) for n, b in (actual.buffers_M or {}).items())
    line = barrier(model, data, actual.weights_MD[0], second=actual.weights_MD[1], points=3)
    assert abs(line.height) < 1e-12
    assert abs(line.excess) < 1e-12


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "recurrent"])
def test_other_members_keep_their_functions_and_come_closer(name: str):
    model, data = made(name)
    weights_MD = torch.stack([model.given_weights(), made(name, seed=1)[0].given_weights()])
    actual = align(model, weights_MD, data=data)
    before = tb.Point(model, weights_MD, statistics_known=True).functions()(data[0])
    after = actual.functions()(data[0]) if actual.statistics_known else None
    if after is None:
        moved = tb.Point(model, actual.weights_MD, buffers_M=actual.buffers_M, statistics_known=True)
        after = moved.functions()(data[0])
    scale = 1 + float(before.abs().max())
    assert float((after - before).abs().max()) < 1e-11 * scale
    assert distance(*actual.weights_MD) < distance(*weights_MD)
    assert torch.equal(align(model, actual.weights_MD, data=data).weights_MD, actual.weights_MD)  # nothing left to gain


def test_the_objective_only_rises():
    model = small((8, 7, 6))
    weights_MD = members(model, 2)
    groups = permutation_groups(model)
    split = [model.layout.split(weights_D) for weights_D in weights_MD]
    for seed in range(3):
        actual = by_weights(groups, split[0], split[1], seed=seed, member=1)
        steps = torch.tensor(actual.objective).diff()
        assert len(steps) > 3
        assert (steps > 0).all()
        moved_D, _ = groups.permute(weights_MD[1], actual.permutations)
        gained = float(weights_MD[0] @ (moved_D - weights_MD[1]))
        assert gained == pytest.approx(actual.objective[-1] - actual.objective[0], rel=1e-12)
        after = 2 * (actual.objective[0] - actual.objective[-1])
        assert distance(weights_MD[0], moved_D) - distance(*weights_MD) == pytest.approx(after, rel=1e-9)


def test_no_swap_of_two_units_gains_anything():
    """Coordinate descent ends where each group is optimal, the others given."""
    model = small((6, 6))
    actual = align(model, members(model, 2)).weights_MD
    groups = permutation_groups(model)
    least = distance(*actual)
    for number in range(2):
        for i in range(6):
            for j in range(i):
                orders = [torch.arange(6), torch.arange(6)]
                orders[number][[i, j]] = orders[number][[j, i]]
                assert distance(actual[0], groups.permute(actual[1], orders)[0]) >= least - 1e-12


def test_assignments_against_all_permutations():
    scores = normal(6, 6, seed=4)
    order, gain = assigned(scores)
    values = [float(scores[range(6), list(each)].sum()) for each in permutations(range(6))]
    assert float(scores[range(6), order].sum()) == pytest.approx(max(values), rel=1e-12)
    assert gain == pytest.approx(max(values) - float(scores.trace()), rel=1e-12)


def test_activations_pair_units_by_correlation():
    """Units of the second network are scaled, shuffled ones of the first: weights mislead, correlations do not."""
    model = small((4,))
    weights_D, order = members(model, 1)[0] * 0.3, torch.tensor([2, 0, 3, 1])
    groups = permutation_groups(model)
    other_D, _ = groups.permute(weights_D, [order])
    model.layout.split(other_D)["2.weight"].copy_(normal(2, 4, seed=9))
    actual = align(model, torch.stack([weights_D, other_D]), method="activations", data=(normal(50, 3), normal(50, 2)))
    assert_same(actual.weights_MD[1][:16], weights_D[:16])


def test_chunks_do_not_matter():
    model, data = made("functional")
    weights_MD = torch.stack([model.given_weights(), made("functional", seed=1)[0].given_weights()])
    actual = [align(model, weights_MD, method="activations", data=data, chunk_size=size) for size in (2, 5, 100)]
    assert torch.equal(actual[0].weights_MD, actual[1].weights_MD)
    assert torch.equal(actual[0].weights_MD, actual[2].weights_MD)


def test_other_references():
    model = small()
    weights_MD = members(model, 3)
    by_tensor = align(model, weights_MD[1:], reference=weights_MD[0]).weights_MD
    assert torch.equal(by_tensor, align(model, weights_MD).weights_MD[1:])
    by_point = align(model, tb.Point(model, weights_MD[1:]), reference=tb.Point(model, weights_MD[:1])).weights_MD
    assert torch.equal(by_point, by_tensor)
    nets = [filled(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), seed) for seed in (1, 2)]
    own = align(model, nets).weights_MD
    assert torch.equal(align(model, nets[1], reference=nets[0]).weights_MD[0], own[1])


def test_draws_of_other_posteriors():
    model = small()
    draws_SMD = members(model, 6).unflatten(0, (2, 3))
    actual = align(model, tb.Draws(model, draws_SMD))
    assert actual.weights_MD.shape[1] == model.layout.size
    assert actual.members == tb.Draws(model, draws_SMD).default_draws


def test_one_member_and_one_unit_stay():
    model = small((1,))
    weights_MD = members(model, 2)
    assert torch.equal(align(model, weights_MD).weights_MD, weights_MD)
    model = small()
    assert torch.equal(align(model, members(model, 1)).weights_MD, members(model, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_lower_precision(dtype: torch.dtype):
    model = small(dtype=dtype)
    weights_MD = members(model, 2)
    groups = permutation_groups(model)
    weights_MD[1] = groups.permute(weights_MD[0], groups.random(seed=1))[0]
    actual = align(model, weights_MD)
    assert actual.weights_MD.dtype == torch.float32
    assert torch.equal(actual.weights_MD[1], weights_MD[0])


def test_batch_norm_statistics_go_along():
    model, data = made("batch norm")
    starts = model.given_weights(), made("batch norm", seed=1)[0].given_weights()
    first, second = (tb.fit(model, data, tb.MAP(epochs=2, batch_size=6), start=start, callbacks=()) for start in starts)
    actual = align(model, second, reference=first, data=data)
    torch.testing.assert_close(actual.functions()(data[0]), second.functions()(data[0]), rtol=0.0, atol=1e-9)
    assert actual.statistics_known


def test_statistics_that_are_not_known_are_recalibrated_first():
    model, data = made("batch norm")
    weights_MD = torch.stack([model.given_weights(), made("batch norm", seed=1)[0].given_weights()])
    point = tb.Point(model, weights_MD).calibrated(lambda: iter([data[0]]))
    actual = align(model, point)
    assert actual.statistics_known
    torch.testing.assert_close(actual.functions()(data[0]), point.functions()(data[0]), rtol=0.0, atol=1e-11)


def test_dropout_masks_that_weights_do_not_hold_are_refused():
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop, self.head = nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(self.drop(torch.tanh(self.first(inputs))))

    model = tb.Model(Dropping().double(), tb.likelihoods.Gaussian(1.0))
    weights_MD = members(model, 2)
    with pytest.raises(ValueError, match="`weights` draws dropout masks"):
        align(model, tb.DropoutPosterior(model, weights_MD))
    actual = align(model, weights_MD).weights_MD
    assert distance(*actual) < distance(*weights_MD)


def test_seeds_are_reproducible_and_orders_differ():
    model = small((12, 12, 12))
    weights_MD = members(model, 2)
    actual = [align(model, weights_MD, seed=seed).weights_MD for seed in (0, 0, 1, 2, 3)]
    assert torch.equal(actual[0], actual[1])
    assert len({round(distance(*each), 6) for each in actual}) > 1


def test_frozen_units_are_said():
    net = filled(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)))
    model = tb.Model(net, tb.likelihoods.Gaussian(1.0), random=["2.*", "4.*"])
    weights_MD = members(model, 2)
    with pytest.warns(UserWarning, match=r"not aligned: `0\.(weight|bias)` is not random"):
        actual = align(model, weights_MD)
    assert 0 < distance(*actual.weights_MD) < distance(*weights_MD)
    inputs = normal(4, 3)
    assert_same(actual.functions()(inputs), tb.Point(model, weights_MD).functions()(inputs))


def test_recurrent_and_tied_weights_are_refused_by_weights():
    model, data = made("recurrent")
    weights_MD = torch.stack([model.given_weights(), made("recurrent", seed=1)[0].given_weights()])
    with pytest.raises(ValueError, match=r"`body\.weight_hh_l0` has the same 5 units along two.*keep="):
        align(model, weights_MD, data=data)
    kept = align(model, weights_MD, data=data, keep="body.*")
    assert torch.equal(kept.weights_MD, weights_MD)
    planted_D, _ = (groups := permutation_groups(model, data)).permute(weights_MD[0], groups.random(seed=4))
    actual = align(model, torch.stack([weights_MD[0], planted_D]), data=data, method="activations")
    assert torch.equal(actual.weights_MD[1], weights_MD[0])
    layer = nn.Linear(4, 4)
    tied = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, 2))
    model = tb.Model(filled(tied), tb.likelihoods.Gaussian(1.0))
    with pytest.raises(ValueError, match=r"`2\.weight` has the same 4 units"):
        align(model, members(model, 2))


def test_a_residual_branch_of_one_layer_is_refused_by_weights():
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs + torch.tanh(self.layer(inputs))

    model = tb.Model(filled(nn.Sequential(nn.Linear(3, 4), Step(), nn.Linear(4, 2))), tb.likelihoods.Gaussian(1.0))
    with pytest.raises(ValueError, match=r"`1\.layer\.weight` has the same 4 units along two"):
        align(model, members(model, 2))


def test_hostile_members():
    model, other = small(), small((6,))
    weights_MD = members(model, 2)
    with pytest.raises(ValueError, match=r"another model: `0\.weight` has shape"):
        align(model, tb.Point(other, members(other, 2)))
    with pytest.raises(ValueError, match="`weights` must hold the 32 weights"):
        align(model, members(other, 2))
    with pytest.raises(ValueError, match="`reference` must be one network; got 2"):
        align(model, weights_MD, reference=weights_MD)
    for bad in (torch.nan, torch.inf):
        spoilt = weights_MD.clone()
        spoilt[1, 3] = bad
        with pytest.raises(ValueError, match="`weights` must be finite; 1 of its"):
            align(model, spoilt)
    with pytest.raises(TypeError, match="floating point"):
        align(model, weights_MD.long())
    with pytest.raises(ValueError, match="`data` are needed"):
        align(model, weights_MD, method="activations")


def test_a_network_that_hides_its_order_is_caught():
    """NumPy is not seen by any operator, so outputs tell."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = torch.tanh(self.first(inputs))
            return self.head(hidden * torch.as_tensor(hidden.numpy()[:, :1].copy()))

    model = tb.Model(filled(Hidden()), tb.likelihoods.Gaussian(1.0))
    with pytest.raises(ValueError, match="another function when its hidden units are permuted"):
        align(model, members(model, 2))


def test_a_row_of_weight_w_is_w_rows() -> None:
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    inputs, targets = normal(9, 3, seed=3), classes(9, 2)
    counts = torch.tensor([0, 3, 1, 0, 2, 4, 1, 0, 3])
    weighted = tb.Model(net, tb.likelihoods.Weighted(tb.likelihoods.Categorical()))
    plain = tb.Model(net, tb.likelihoods.Categorical())
    weights_MD = members(plain, 3)
    repeated = tuple(each.repeat_interleave(counts, dim=0) for each in (inputs, targets))
    actual = align(weighted, weights_MD, method="activations", data=(inputs, (targets, counts.double())))
    expected = align(plain, weights_MD, method="activations", data=repeated)
    assert torch.equal(actual.weights_MD, expected.weights_MD)
    unweighted = align(plain, weights_MD, method="activations", data=(inputs, targets))
    assert not torch.equal(actual.weights_MD, unweighted.weights_MD)
