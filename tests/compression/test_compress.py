"""Compressed networks against the posteriors that they come from: what is pruned, how it is rounded, and files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes import compression
from torchbayes.compression.plain import gap, plain_of
from torchbayes.compression.rounding import Rounding, packed, unpacked
from torchbayes.linalg import Dense, Diagonal
from torchbayes.model import priors

X, Y = normal(30, 6).float(), normal(30, 2, seed=1).float()
DATA = (X, Y)


def grouped(rule: Any, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> tb.Gaussian:
    """A posterior of 6-5-2, in which input 2 and unit 3 are noise."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)
    made = priors.with_multipliers(net, rule)
    model = tb.Model(made.network, tb.likelihoods.Gaussian(0.5), made.prior)
    mean_D = model.network.weights()
    variance_D = torch.full_like(mean_D, 1e-4)
    for layer, unit in ((0, 2), (2, 3)):
        part = "multiplier" if isinstance(rule, priors.GroupNormalJeffreys) else "log_inverses"
        where = model.layout.slices[f"{layer}.{part}"].start + unit
        mean_D[where] = 0.01 if part == "multiplier" else -6.0
        variance_D[where] = 0.5 if part == "multiplier" else 1e-2
    return tb.Gaussian(model, mean_D[None], Diagonal(variance_D[None]))


RULES = [priors.GroupNormalJeffreys(), priors.GroupHorseshoe(0.1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES, ids=["jeffreys", "horseshoe"])
def test_units_of_noise_are_gone_and_the_outputs_are_those_without_them(rule: Any, dtype: torch.dtype) -> None:
    posterior = grouped(rule, dtype=dtype)
    data = (X.to(dtype), Y.to(dtype))
    noise = compression.unit_noise(posterior)
    assert {name: int(of.argmax()) for name, of in noise.items()} == {"0": 2, "2": 3}
    small = compression.compress(posterior, data, rounded=False)
    assert small.layers == {"0": (5, 4), "2": (4, 2)}
    assert (small.num_weights, small.num_kept, small.num_left) == (6 * 5 + 5 + 5 * 2 + 2, 34, 34)
    assert small.rate == 47 / 34
    assert small.stayed == ()
    whole = plain_of(posterior).network
    with torch.no_grad():
        for name, unit in (("0", 2), ("2", 3)):
            whole.get_parameter(f"{name}.weight")[:, unit] = 0.0
    rtol = 1e-4 if dtype == torch.float32 else 1e-12
    assert_close(small.network(data[0]), whole(data[0]), rtol=rtol, atol=rtol)
    assert small.network(data[0]).dtype == dtype
    assert_close(tb.predict(small.posterior, data[0]).mean, small.network(data[0]), rtol=rtol, atol=rtol)
    assert all(p.requires_grad for p in small.network.parameters())


class Normalised(nn.Module):
    """Units on a sphere: none is a constant, whatever its own weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(nn.functional.normalize(self.one(x), dim=-1))


def padded() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 3, padding=1),
        nn.Flatten(), nn.Linear(24, 2),
    )  # fmt: skip


@pytest.mark.parametrize("make", [Normalised, padded])
def test_differences_are_those_of_the_outputs(make: Any) -> None:
    """`difference` is to the network with zeros for pruned weights, `change` to the one before."""
    torch.manual_seed(4)
    net = make().double()
    first = next(layer for layer in net.modules() if isinstance(layer, nn.Linear | nn.Conv2d))
    with torch.no_grad():
        first.weight[1] *= 1e-3  # pruned as a whole; its bias stays
        assert first.bias is not None
        first.bias[1] = 0.9
    model = tb.Model(net, tb.likelihoods.Gaussian(0.3), priors.Normal())
    named = {name: parameter.detach() for name, parameter in net.named_parameters()}
    total = sum(p.numel() for p in named.values() if p.ndim > 1)
    x, y, more = X.double(), Y.double(), normal(500, 6, seed=9)
    point = tb.Point(model, model.network.layout.join(named)[None])
    small = compression.prune(point, (x, y), keep=1 - first.weight[1].numel() / total, rounded=False)
    masked = plain_of(point).network
    with torch.no_grad():
        masked.get_parameter(next(name for name in named if name.endswith("weight")))[1] = 0.0
        for rows in (x, more):
            assert_close(small.network(rows), masked(rows), rtol=1e-12, atol=1e-13)
        change = float((small.network(x) - net(x)).abs().max() / net(x).abs().max())
    assert small.difference < 1e-14
    assert small.change == pytest.approx(change)
    assert small.change > 1e-6


@pytest.mark.parametrize("rule", RULES, ids=["jeffreys", "horseshoe"])
def test_the_plain_network_has_the_moments_of_products(rule: Any) -> None:
    posterior = grouped(rule, dtype=torch.float64)
    plain = plain_of(posterior)
    drawn = posterior.model.layout.split(posterior.sample(50_000))
    for layer in ("0", "2"):
        z = rule.multipliers({n: drawn[f"{layer}.{n}"] for n in rule.laws()})
        w = z.unsqueeze(1) * drawn[f"{layer}.layer.weight"]
        # the mean of a product of many draws has the error of its standard deviation
        error = 5 * plain.variance[f"{layer}.weight"].sqrt() / 50_000**0.5
        assert ((w.mean(0) - plain.network.get_parameter(f"{layer}.weight")).abs() < error).all()
        assert_close(w.var(0), plain.variance[f"{layer}.weight"], rtol=0.05)
    assert plain.random == ("0.bias", "0.weight", "2.bias", "2.weight")


def test_thresholds_may_be_given() -> None:
    posterior = grouped(priors.GroupNormalJeffreys())
    assert compression.compress(posterior, DATA, threshold=100.0).layers == {"0": (6, 5), "2": (5, 2)}
    assert compression.compress(posterior, DATA, threshold={"2": 100.0}).layers == {"0": (5, 5), "2": (5, 2)}
    nothing = compression.compress(posterior, DATA, threshold=-100.0)
    assert nothing.layers == {"0": (1, 1), "2": (1, 2)}  # one of each stays
    assert nothing.network(X).isfinite().all()


def test_thresholds_are_in_the_widest_gap_of_the_window() -> None:
    window = (-2.0, 3.0)
    assert gap(torch.tensor([-6.0, -1.5, 2.0, 9.0]), window) == pytest.approx(0.25)
    assert gap(torch.tensor([-6.0, -5.5, -5.0]), window) == 0.5  # nothing is in the window: its middle
    assert gap(torch.tensor([4.0, 7.0, 30.0]), window) == 0.5
    assert gap(torch.linspace(-3, 4, 71), window) == 0.5  # no gap
    assert gap(torch.tensor([-1.9, 1.0]), window) == pytest.approx(-0.45)


def gaussian(covariance: Any, mean_D: Tensor) -> tb.Gaussian:
    """A posterior over the weights of 6-2 without biases, in float64."""
    net = nn.Sequential(nn.Linear(6, 2, bias=False)).double()
    return tb.Gaussian(tb.Model(net, tb.likelihoods.Gaussian(0.5), priors.Normal()), mean_D[None], covariance)


@pytest.mark.parametrize("keep", [0.75, 0.25])
def test_weights_follow_as_the_conditional_mean(keep: float) -> None:
    root = normal(12, 12, seed=3) + 2 * torch.eye(12, dtype=torch.float64)
    mean_D, dense = normal(12, seed=4), root @ root.T
    upper = torch.linalg.cholesky(dense.flip(0, 1)).flip(0, 1)  # R Rᵀ, R upper triangular
    posterior = gaussian(Dense(upper[None]), mean_D)
    noise = mean_D.abs() / dense.diagonal().sqrt()
    gone = noise.argsort()[: round(12 * (1 - keep))]
    stays = torch.tensor([i for i in range(12) if i not in gone.tolist()])
    exact = torch.zeros_like(mean_D)
    exact[stays] = mean_D[stays] - dense[stays][:, gone] @ torch.linalg.solve(dense[gone][:, gone], mean_D[gone])
    small = compression.prune(posterior, (X.double(), Y.double()), keep=keep, surgeon=True, rounded=False)
    whole = torch.zeros(12, dtype=torch.float64).view(2, 6)
    index = small.network.get_submodule("0")
    columns = getattr(index, "index", torch.arange(6))
    whole[:, columns] = small.network.get_parameter("0.weight").detach()
    assert_close(whole.flatten(), exact, rtol=1e-5, atol=1e-6)
    plain = compression.prune(posterior, (X.double(), Y.double()), keep=keep, rounded=False)
    assert plain.num_kept == small.num_kept == len(stays)


def test_weights_are_ranked_by_signal_to_noise_and_those_of_a_point_by_size() -> None:
    mean_D = torch.arange(1, 13, dtype=torch.float64) / 10
    variance_D = mean_D.flip(0).square()
    posterior = gaussian(Diagonal(variance_D[None]), mean_D)
    data = (X.double(), Y.double())
    ratio = mean_D / variance_D.sqrt()
    small = compression.prune(posterior, data, least=1.0, rounded=False)
    assert small.num_kept == int((ratio >= 1).sum())
    point = tb.Point(posterior.model, -mean_D[None])
    by_size = compression.prune(point, data, keep=0.5)
    assert sorted(by_size.network.get_parameter("0.weight").detach().flatten().tolist())[0] == -1.2
    assert by_size.num_kept == 6
    assert by_size.roundings == {}


@pytest.mark.parametrize("bits", [1, 2, 5, 13, 23])
def test_packed_numbers_come_back(bits: int) -> None:
    half = 1 << (bits - 1)
    numbers = torch.tensor([0, 1, 0, 1]) if bits == 1 else torch.tensor([-half, half - 1, 0, -1, 1])
    content = packed(numbers, bits)
    assert len(content) == math.ceil(len(numbers) * bits / 8)
    assert unpacked(content, bits, len(numbers)).tolist() == numbers.tolist()
    with pytest.raises(ValueError, match=r"numbers of .* bits take"):
        unpacked(content[:-1], bits, len(numbers))


def test_rounding_costs_at_most_a_24th_of_a_nat_a_weight() -> None:
    w, v = normal(5000, seed=2), 10 ** (2 * normal(5000, seed=5) - 4)
    actual = Rounding.of(w, v)
    assert actual is not None
    assert 0.5 * ((actual.apply(w) - w).square() / v).sum() < 5000 / 24 * 1.1  # errors are uniform up to chance
    coarser = Rounding(actual.exponent - 1, actual.bits - 1)
    assert 0.5 * ((coarser.apply(w) - w).square() / v).sum() > 5000 / 24 / 4
    assert actual.whole(w).abs().max() < 1 << (actual.bits - 1)
    assert Rounding.of(w, torch.zeros_like(v)) is None
    assert Rounding.of(w, v * 1e-16) is None  # more bits than float32 has
    assert Rounding.of(torch.zeros(3), torch.ones(3)) == Rounding(0, 1)


@pytest.mark.parametrize("rounded", [True, False])
def test_files_give_the_same_network(tmp_path: Path, rounded: bool) -> None:
    posterior = grouped(priors.GroupHorseshoe(0.1))
    small = compression.compress(posterior, DATA, rounded=rounded)
    path = small.save(tmp_path / "small.safetensors")
    again = compression.load(path, posterior.model)
    assert torch.equal(again.posterior.weights_MD, small.posterior.weights_MD)
    assert_close(again.network(X), small.network(X))
    assert repr(again) == repr(small)
    assert again.size == small.size
    assert (again.difference, again.change, again.stayed) == (small.difference, small.change, small.stayed)
    plain = tb.Model(plain_of(posterior).network, tb.likelihoods.Gaussian(0.5), priors.Normal())
    assert torch.equal(compression.load(path, plain).posterior.weights_MD, small.posterior.weights_MD)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # two epochs learn nothing
def test_files_of_batch_norm_learned_noise_and_scattered_zeros(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 2))
    model = tb.Model(net, tb.likelihoods.Gaussian("learned"), priors.Normal())
    data = (normal(20, 1, 6, 6).float(), Y[:20])
    posterior = tb.fit(model, data, tb.MAP(epochs=2), callbacks=(), seed=0)
    small = compression.prune(posterior, data, keep=0.3)
    again = compression.load(small.save(tmp_path / "small.safetensors"), model)
    assert_close(again.network(data[0]), small.network(data[0]))
    one, two = (tb.evaluate(of.posterior, data).metrics["nll"] for of in (small, again))
    assert one == two
    assert small.rate > 2


def test_damage_and_other_networks_are_named(tmp_path: Path) -> None:
    posterior = grouped(priors.GroupHorseshoe(0.1))
    path = compression.compress(posterior, DATA).save(tmp_path / "small.safetensors")
    other = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 2))
    with pytest.raises(ValueError, match="does not fit the network of this model: an axis has 9 positions"):
        compression.load(path, tb.Model(other, tb.likelihoods.Gaussian(0.5), priors.Normal()))
    with pytest.raises(ValueError, match="not a compressed network"):
        compression.load(posterior.save(tmp_path / "p.safetensors"), posterior.model)
    content = bytearray(path.read_bytes())
    content[-3] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="is damaged"):
        compression.load(path, posterior.model)


class Tied(nn.Module):
    """A layer with two names, and two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one = self.again = nn.Linear(4, 4)
        self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 4)
        self.three.weight = self.two.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.again(torch.tanh(self.one(x)))
        return self.three(torch.tanh(self.two(torch.tanh(h))))


def test_shared_layers_and_weights_stay_shared(tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = Tied()
    rules = {"one.weight": priors.GroupNormalJeffreys(), "*": priors.Normal()}
    made = priors.with_multipliers(net, rules)
    assert isinstance(made.network, Tied)
    assert made.network.one is made.network.again
    x = normal(9, 4).float()
    assert_close(made.network(x), net(x), rtol=1e-5)
    model = tb.Model(made.network, tb.likelihoods.Gaussian(0.5), made.prior)
    mean_D = model.network.weights() + 0.1 * normal(model.layout.size, seed=3).float()
    mean_D[model.layout.slices["one.multiplier"]] = torch.tensor([1.0, 1.1, 0.9, 1.2])
    posterior = tb.Gaussian(model, mean_D[None], Diagonal(torch.full_like(mean_D, 1e-6)[None]))
    plain = plain_of(posterior).network
    assert isinstance(plain, Tied)
    assert plain.one is plain.again
    assert plain.two.weight is plain.three.weight
    assert_close(plain(x), model.network(mean_D, x), rtol=1e-4, atol=1e-5)
    small = compression.prune(tb.Point(tb.Model(plain, model.likelihood), _flat(plain)), (x, x), keep=0.4)
    again = compression.load(small.save(tmp_path / "small.safetensors"), tb.Model(net, model.likelihood))
    assert_close(again.network(x), small.network(x))


def _flat(net: nn.Module) -> Tensor:
    return tb.Model(net, tb.likelihoods.Gaussian(0.5)).network.weights()[None]


def test_what_cannot_be_compressed_is_said() -> None:
    posterior = grouped(priors.GroupNormalJeffreys())
    plain = gaussian(Diagonal(torch.ones(1, 12).double()), normal(12))
    with pytest.raises(ValueError, match="no layer of the network has multipliers"):
        compression.compress(plain, DATA)
    with pytest.raises(ValueError, match="has multipliers, by which whole units are pruned"):
        compression.prune(posterior, DATA, keep=0.5)
    with pytest.raises(ValueError, match="give either `keep` or `least`"):
        compression.prune(plain, DATA)
    with pytest.raises(ValueError, match="`surgeon` needs a covariance"):
        compression.prune(tb.Point(plain.model, plain.mean_MD), (X.double(), Y.double()), keep=0.5, surgeon=True)
    with pytest.raises(ValueError, match="a point does not say which multipliers are noise"):
        compression.compress(tb.Point(posterior.model, posterior.mean_MD), DATA)
    with pytest.raises(ValueError, match="must have one member"):
        compression.prune(tb.Point(plain.model, plain.mean_MD.repeat(2, 1)), DATA, keep=0.5)
    start_D = posterior.model.network.weights()
    needed = tb.Gaussian(posterior.model, start_D[None], Diagonal(torch.full_like(start_D, 1e-4)[None]))
    with pytest.warns(tb.ProblemWarning, match="no unit of any layer is noise"):
        compression.compress(needed, DATA)
    with pytest.raises(ValueError, match=r"`threshold` names `9`"):
        compression.compress(posterior, DATA, threshold={"9": 1.0})


@pytest.mark.slow
def test_the_whole_way_from_a_fit_to_a_smaller_network() -> None:
    """Inputs 2 to 9 say nothing, and 20 units are more than sin needs."""
    x = normal(300, 10).float()
    data = (x, torch.sin(2 * x[:, :1]) + 0.1 * normal(300, 1, seed=2).float())
    net = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1))
    made = priors.with_multipliers(net, priors.GroupNormalJeffreys())
    model = tb.Model(made.network, tb.likelihoods.Gaussian(0.1), made.prior)
    method = tb.VI(epochs=280, batch_size=300, optimizer=tb.Adam(8e-2), kl_weight=tb.WarmUp())
    posterior = tb.fit(model, data, method, callbacks=(), seed=0)
    small = compression.compress(posterior, data)
    inputs, units = small.layers["0"]
    assert inputs < 5
    assert units < 16
    assert small.rate > 3
    assert small.rate_with_bits > 8
    rmse = (small.network(data[0]) - data[1]).square().mean().sqrt()
    assert rmse < 0.2
