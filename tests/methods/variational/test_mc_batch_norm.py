"""MC batch norm: exact statistics of minibatches, their spread, and what a user meets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.laws.cases import assert_same_tensors
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.methods.schedules import epochs_of
from torchbayes.selection import length

ROWS = 40


def dense() -> nn.Module:
    layers = (nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return nn.Sequential(*layers)


def convolutional() -> nn.Module:
    layers = (nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(27, 2))
    return nn.Sequential(*layers)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (dense, (3,)),
    "convolutional": (convolutional, (1, 4, 4)),
}
networks = pytest.mark.parametrize("name", NETS)


def case(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    make, shape = NETS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        net = make().double()
        for part in net.modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
                nn.init.normal_(part.weight)
    return net, (normal(ROWS, *shape, seed=1), torch.arange(ROWS) % 2)


def fitted(name: str, method: tb.MCBatchNorm, **options: object) -> tuple[nn.Module, tb.BatchNormPosterior, Tensor]:
    net, data = case(name)
    model = tb.Model(net, tb.likelihoods.Categorical())
    posterior = tb.fit(model, data, method, **{"start": net, "callbacks": (), **options})  # type: ignore[arg-type]
    assert isinstance(posterior, tb.BatchNormPosterior)
    return net, posterior, data[0]


@networks
def test_with_all_rows_every_draw_is_the_network_in_training_mode(name: str) -> None:
    net, posterior, inputs = fitted(name, tb.MCBatchNorm(ROWS, draws=4))
    outputs_SBK = posterior.functions(8)(inputs)
    assert_close(outputs_SBK, outputs_SBK[:1].expand_as(outputs_SBK))
    for part in net.modules():
        part.training = isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)
    assert_close(outputs_SBK[0], net(inputs), rtol=1e-9, atol=1e-11)


@networks
def test_a_draw_is_the_network_of_one_minibatch(name: str) -> None:
    """Each of the first N/B draws on its own rows is the network in training mode, and these rows are all rows once."""
    net, posterior, inputs = fitted(name, tb.MCBatchNorm(10, draws=4), seed=3)
    net.train()
    for part in net.modules():
        part.training = not isinstance(part, nn.Dropout)
    own = posterior.model.network
    mean_KC = posterior.statistics_MK["1.running_mean"][0]
    hidden = net.get_submodule("0")(inputs)
    population = hidden.mean([axis for axis in range(hidden.ndim) if axis != 1])
    assert_close(mean_KC.mean(0), population)  # an epoch holds each row once
    drawn = posterior.functions(4)
    for s in range(4):
        buffers = {n: b[s] for n, b in drawn.buffers_S.items()} if drawn.buffers_S else {}
        values = own.module.get_submodule("0")(inputs)
        assert ((buffers["1.running_mean"] - mean_KC).abs().amax(1) < 1e-12).sum() == 1
        assert values.shape[0] == ROWS
    assert drawn(inputs).std(0).min() > 0


def test_mean_of_a_minibatch_has_the_spread_of_drawing_without_replacement() -> None:
    """v/B · (N − B)/(N − 1) for the first layer, where v is the variance over the N rows."""
    size, draws = 8, 400
    net, posterior, inputs = fitted("dense", tb.MCBatchNorm(size, draws=draws))
    values = net.get_submodule("0")(inputs).detach()
    expected = values.var(0, correction=0) / size * (ROWS - size) / (ROWS - 1)
    means = posterior.statistics_MK["1.running_mean"][0]
    assert ((means.var(0) - expected).abs() < 5 * expected * (2 / draws) ** 0.5 + 1e-12).all()
    assert_close(means.mean(0), values.mean(0))
    variances = posterior.statistics_MK["1.running_var"][0]
    # E of the biased variance of a sample without replacement
    unbiased = values.var(0) * (size - 1) / size
    assert ((variances.mean(0) - unbiased).abs() < 5 * variances.std(0) / draws**0.5).all()


@networks
def test_running_statistics_and_the_module_are_untouched(name: str) -> None:
    net, data = case(name)
    before = {n: t.clone() for n, t in net.state_dict().items()}
    model = tb.Model(net, tb.likelihoods.Categorical())
    own = {n: b.clone() for n, b in model.network.buffers.items()}
    posterior = tb.fit(model, data, tb.MCBatchNorm(7, draws=9), start=net, callbacks=())
    tb.predict(posterior, data[0])
    assert_same_tensors(net.state_dict(), before)
    assert_same_tensors(model.network.buffers, own)
    assert posterior.buffers_M is not None
    assert_close(posterior.buffers_M["1.running_mean"][0], own["1.running_mean"])


def test_smaller_batches_spread_more_and_partial_ones_are_left_out() -> None:
    spreads = []
    for size in (3, 9, 27):
        _, posterior, inputs = fitted("dense", tb.MCBatchNorm(size, draws=30))
        assert posterior.statistics_MK["1.running_mean"].shape == (1, 30, 5)
        spreads.append(float(posterior.functions(30)(inputs).std(0).mean()))
    assert spreads[0] > spreads[1] > spreads[2] > 0


def test_each_member_draws_its_own_minibatches_in_an_order_of_its_own() -> None:
    """Of K draws of a member each has another minibatch, and one member's order says nothing of another's."""
    count, net = 8, dense().double()
    model = tb.Model(net, tb.likelihoods.Categorical())
    numbers_MK = torch.arange(2 * count, dtype=torch.float64).view(2, count)
    statistics = {name: numbers_MK[..., None].expand(2, count, 5) for name in ("1.running_mean", "1.running_var")}
    posterior = tb.BatchNormPosterior(model, normal(2, model.layout.size), statistics)
    actual = posterior.beside(2 * count, seed=0)
    assert actual is not None
    assert actual.buffers_S is not None
    taken_KM = actual.buffers_S["1.running_mean"][:, 0].view(count, 2)
    assert torch.equal(taken_KM, actual.buffers_S["1.running_var"][:, 4].view(count, 2))
    assert_close(taken_KM.sort(0).values, numbers_MK.T)
    assert not torch.equal(taken_KM[:, 0] + count, taken_KM[:, 1])


def test_no_training_data_are_needed_after_loading(tmp_path: Path) -> None:
    _, posterior, inputs = fitted("dense", tb.MCBatchNorm(8, draws=5), directory=tmp_path)
    loaded = tb.load(tmp_path / "posterior.safetensors", posterior.model)
    assert_close(loaded.functions(7, seed=2)(inputs), posterior.functions(7, seed=2)(inputs))
    module = posterior.module(7, seed=2)
    assert_close(module(inputs)["probs"], tb.predict(posterior, inputs, draws=7, seed=2).probs)


def test_the_rest_of_ready_made_batches_is_left_out() -> None:
    net, data = case("dense")
    batches = [(data[0][at : at + 17], data[1][at : at + 17]) for at in (0, 17, 34)]  # 17, 17 and 6 rows
    model = tb.Model(net, tb.likelihoods.Categorical())
    posterior = tb.fit(model, batches, tb.MCBatchNorm(draws=4), start=net, callbacks=())
    means = posterior.tensors()["statistics.1.running_mean"][0]
    values = net.get_submodule("0")(data[0])
    expected = torch.stack([part.mean(0) for part in values.split(17)][:2])
    assert_close(means, expected.repeat(2, 1))


@pytest.mark.study  # modes are sought as `test_curve.py::test_without_a_start_the_ends_are_trained` has them
def test_without_a_start_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "_LONGEST", 1)  # step: 50 epochs
    monkeypatch.setattr(epochs_of, "__kwdefaults__", {"steps": 60})  # of the usual length
    inputs = normal(120, 3, seed=1)
    data, model = (inputs, (inputs[:, 0] > 0).long()), tb.Model(dense().double(), tb.likelihoods.Categorical())
    posterior = tb.fit(model, data, tb.MCBatchNorm(30, members=2), callbacks=())
    assert posterior.members == 2
    assert tb.evaluate(posterior, data).metrics["accuracy"] > 0.9


def test_refusals_say_what_to_do() -> None:
    data = normal(10, 3), torch.arange(10) % 2
    untracked = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))
    for plain in (nn.Linear(3, 2), untracked):
        model = tb.Model(plain.double(), tb.likelihoods.Categorical())
        with pytest.raises(ValueError, match="no batch norm with running statistics"):
            tb.fit(model, data, tb.MCBatchNorm(), start=model.given_weights(), callbacks=())
    net, data = case("dense")
    model = tb.Model(net, tb.likelihoods.Categorical())
    with pytest.raises(ValueError, match="2 rows at least; got 1"):
        tb.fit(model, (data[0][:1], data[1][:1]), tb.MCBatchNorm(), start=net, callbacks=())
    with pytest.raises(ValueError, match="`batch_size`"):
        tb.MCBatchNorm(1)
    bad = {"1.running_mean": torch.zeros(1, 4, 7, dtype=torch.float64)}
    with pytest.raises(ValueError, match=r"got `1.running_mean` of shape \(1, 4, 7\)"):
        tb.BatchNormPosterior(model, model.given_weights()[None], bad)
