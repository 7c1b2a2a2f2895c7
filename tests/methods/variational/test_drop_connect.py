"""DropConnect: draws are functions whose weights are masked, unbiased, and the same for all batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.laws.cases import assert_same_tensors, everything
from tests.laws.test_method_laws import break_after, keep_every
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.networks import DropConnect


def net(rate: float = 0.3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = (DropConnect(nn.Linear(2, 12), rate), nn.Tanh(), DropConnect(nn.Linear(12, 1), rate))
        return nn.Sequential(*layers).double()


def regression(rows: int = 40) -> tuple[Tensor, Tensor]:
    inputs = normal(rows, 2, seed=1)
    return inputs, inputs[:, :1].sin() + 0.2 * normal(rows, 1, seed=2)


def test_a_draw_masks_weights_and_keeps_biases() -> None:
    rate, layer = 0.3, nn.Linear(8, 40).double()
    model = tb.Model(DropConnect(layer, rate), tb.likelihoods.Gaussian(1.0))
    posterior = tb.DropoutPosterior(model, model.given_weights().unsqueeze(0))
    identity = torch.cat([torch.zeros(1, 8), torch.eye(8)]).double()
    outputs = posterior.functions(60, seed=3)(identity)  # the columns of the masked weights, behind the biases
    assert_close(outputs[:, 0], layer.bias.detach().expand(60, -1))
    ratio = (outputs[:, 1:] - outputs[:, :1]).mT / layer.weight.detach()
    kept = ratio.abs() > 1e-9
    assert_close(ratio[kept], torch.full_like(ratio[kept], 1 / (1 - rate)))
    share = float(kept.double().mean())
    assert abs(share - (1 - rate)) < 5 * (rate * (1 - rate) / kept.numel()) ** 0.5
    each = kept.double().mean(0)  # every weight has a mask of its own
    assert each.min() < 0.62 < 0.78 < each.max()
    assert not torch.equal(kept[0], kept[1])


def test_draws_are_functions_and_evaluation_drops_nothing() -> None:
    model, (x, _) = tb.Model(net(), tb.likelihoods.Gaussian(0.2)), regression()
    posterior = tb.DropoutPosterior(model, model.given_weights().unsqueeze(0))
    functions = posterior.functions(5, seed=2)
    whole = functions(x)
    assert_close(torch.cat([functions(x[:7]), functions(x[7:])], 1), whole)
    assert_close(functions(x, chunk_size=3), whole)
    assert_close(posterior.functions(9, seed=2)(x)[:5], whole)
    assert float(whole.std(0).mean()) > 0.01
    plain = tb.Point(model, model.given_weights().unsqueeze(0)).functions()(x)[0]
    layers = net()
    assert_close(plain, layers[2].layer(torch.tanh(layers[0].layer(x))).detach())  # type: ignore[index, operator]
    alone = tb.Model(DropConnect(nn.Linear(2, 3).double(), 0.3), tb.likelihoods.Gaussian(0.2))
    many = tb.DropoutPosterior(alone, alone.given_weights().unsqueeze(0)).functions(400)(x[:4])
    mean = tb.Point(alone, alone.given_weights().unsqueeze(0)).functions()(x[:4])[0]
    assert ((many.mean(0) - mean).abs() < 5 * many.std(0) / 400**0.5).all()


def test_it_is_trained_resumed_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = tb.Model(net(0.1), tb.likelihoods.Gaussian(0.3)), regression()
    method = tb.MCDropout(members=2, epochs=10, batch_size=10, optimizer=tb.Adam(0.1))
    expected = tb.fit(model, data, method, seed=5, callbacks=())
    assert tb.evaluate(expected, data).metrics["rmse"] < 0.45
    keep_every(monkeypatch, 10.0)
    with monkeypatch.context() as inside:
        break_after(inside, tb.MCDropout, 20)
        with pytest.raises(KeyboardInterrupt):
            tb.fit(model, data, method, seed=5, directory=tmp_path, callbacks=())
    resumed = tb.fit(model, data, method, seed=5, directory=tmp_path, resume=True, callbacks=())
    assert_same_tensors(everything(resumed), everything(expected))
    loaded = tb.load(tmp_path / "posterior.safetensors", model)
    assert_close(loaded.functions(4, seed=1)(data[0]), expected.functions(4, seed=1)(data[0]))


def test_convolutions_are_taken_and_nonsense_is_not() -> None:
    layers = (DropConnect(nn.Conv2d(1, 3, 3), 0.2), nn.ReLU(), nn.Flatten(), DropConnect(nn.Linear(12, 3), 0.2))
    model = tb.Model(nn.Sequential(*layers), tb.likelihoods.Categorical())
    data = (normal(30, 1, 4, 4).float(), torch.arange(30) % 3)
    posterior = tb.fit(model, data, tb.MCDropout(epochs=5), callbacks=())
    functions = posterior.functions(6)
    assert_close(functions(data[0])[:, :9], functions(data[0][:9]), rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match=r"must be a layer with weights, such as nn.Linear\(4, 8\)"):
        DropConnect(nn.Tanh())
    with pytest.raises(ValueError, match=r"`dropout` must lie in \[0, 1\)"):
        DropConnect(nn.Linear(2, 2), 1.0)
    with pytest.raises(ValueError, match="no dropout"):
        tb.fit(tb.Model(net(0.0), tb.likelihoods.Gaussian(0.3)), regression(), tb.MCDropout(epochs=1), callbacks=())
