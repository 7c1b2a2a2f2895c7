"""Adversarial training: the rows that it adds, the loss, ranges in the state, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.laws.cases import assert_same_tensors
from tests.laws.test_method_laws import break_after, keep_every
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.density.density import LogDensity
from torchbayes.methods.adversarial import attacked
from torchbayes.methods.optimise.descent import start


def linear() -> tb.Model:
    return tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.5), tb.priors.Normal(1.0))


def begun(model: tb.Model, members: int = 2, steps_per_epoch: int = 2) -> Any:
    weights = normal(members, model.layout.size, seed=3)
    seeds = range(members)
    return start(weights, {}, seeds, optimizer=tb.SGD(), epochs=2, steps_per_epoch=steps_per_epoch)


def test_rows_are_moved_by_a_share_of_the_range_where_they_become_unlikely() -> None:
    model, state, x, y = linear(), begun(linear()), normal(2, 5, 3, seed=1), normal(2, 5, 1, seed=2)
    x[..., 2] = 4.0  # has no range
    now, batch = attacked(LogDensity(model, 10), state, tb.Batch(x, y), share=0.1)
    w, b = state.weights_MD[:, :3], state.weights_MD[:, 3:]
    residual = torch.einsum("mbi,mi->mb", x, w) + b - y[..., 0]
    spread = x.amax(1) - x.amin(1)
    expected = x + 0.1 * spread.unsqueeze(1) * torch.sign(residual.unsqueeze(-1) * w.unsqueeze(1))
    assert_close(batch.inputs, torch.cat([x, expected], 1))
    assert_close(batch.targets, torch.cat([y, y], 1))
    assert (batch.inputs[..., 2] == 4.0).all()
    assert not state.ranges
    assert_close(now.ranges["high 0"] - now.ranges["low 0"], spread)


def test_the_loss_is_the_mean_of_both() -> None:
    model, x, y = linear(), normal(6, 3, seed=1), normal(6, 1, seed=2)
    method = tb.MAP(members=2, epochs=1, adversarial=0.1, optimizer=tb.SGD(0.01))
    density = LogDensity(model, 6, training=True)
    weights = normal(2, 4, seed=3)
    state = method.init(density, weights, {}, seeds=[1, 2], steps_per_epoch=1)
    rows = tb.Batch(x, y).map(lambda t: t.expand(2, *t.shape))
    _, info = method.step(density, state, rows)
    _, both = attacked(density, state, rows, share=0.1)
    plain = density.loss(weights, rows)[0]
    moved = density.loss(weights, tb.Batch(both.inputs[:, 6:], both.targets[:, 6:]))[0]
    assert_close(info.loss_M, 0.5 * (plain + moved))
    assert (moved > plain).all()


def test_ranges_are_those_of_the_first_pass() -> None:
    model = linear()
    density, state = LogDensity(model, 10), begun(linear(), 1)
    parts = [normal(1, 4, 3, seed=seed) * (seed + 1) for seed in range(3)]
    for part in parts:
        state, _ = attacked(density, state, tb.Batch(part, normal(1, 4, 1)), share=0.1)
        state = replace(state, step=state.step + 1)
    seen = torch.cat(parts[:2], 1)
    assert_close(state.ranges["low 0"], seen.amin(1))
    assert_close(state.ranges["high 0"], seen.amax(1))


@pytest.mark.usefixtures("unjudged_fits")
@pytest.mark.parametrize(  # laws of methods resume such a run of `MAP`
    "kind", [*(pytest.param(kind, marks=pytest.mark.study) for kind in (tb.MAP, tb.SWA)), tb.SWAG]
)
def test_interrupted_equals_uninterrupted(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Tanh(), nn.Linear(4, 1)).double()
    model, data = tb.Model(net, tb.likelihoods.Gaussian(0.5)), (normal(20, 3), normal(20, 1, seed=1))
    method = kind(members=2, epochs=4, batch_size=8, adversarial=0.05)
    expected = tb.fit(model, data, method, seed=3, callbacks=())
    plain = tb.fit(model, data, kind(members=2, epochs=4, batch_size=8), seed=3, callbacks=())
    first = next(iter(expected.tensors()))
    assert not torch.equal(expected.tensors()[first], plain.tensors()[first])
    keep_every(monkeypatch, 10.0)
    with monkeypatch.context() as inside:
        break_after(inside, kind, 7)
        with pytest.raises(KeyboardInterrupt):
            tb.fit(model, data, method, seed=3, directory=tmp_path, callbacks=())
    resumed = tb.fit(model, data, method, seed=3, directory=tmp_path, resume=True, callbacks=())
    assert_same_tensors(resumed.tensors(), expected.tensors())


def test_it_makes_a_classifier_robust() -> None:
    x = normal(400, 2, seed=1)
    x = torch.cat([x, 0.3 * normal(400, 10, seed=2)], 1)  # ten inputs that say little, and can be moved
    y = (x[:, 0] + 0.5 * x[:, 2:].sum(1) > 0).long()
    net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    model = tb.Model(net, tb.likelihoods.Categorical())
    losses = []
    for adversarial in (None, 0.05):
        method = tb.MAP(epochs=30, batch_size=100, adversarial=adversarial, optimizer=tb.Adam(0.01))
        posterior = tb.fit(model, (x, y), method, callbacks=())
        at = posterior.tensors()["weights_MD"]
        state = start(at, {}, [0], optimizer=tb.SGD(), epochs=1, steps_per_epoch=1)
        _, both = attacked(LogDensity(model, 400), state, tb.Batch(x[None], y[None]), share=0.05)
        moved = model.log_likelihood(at[0], tb.Batch(both.inputs[0, 400:], both.targets[0, 400:]))
        losses.append(-float(moved.mean()))
    assert losses[1] < losses[0]


class Both(nn.Module):
    """Two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.layer(a + b)


def test_mappings_and_weighted_rows_are_taken() -> None:
    def unpack(row: Any) -> Any:
        return {"a": row[0], "b": row[1]}, (row[2], row[3])

    likelihood = tb.likelihoods.Weighted(tb.likelihoods.Gaussian(0.5))
    model = tb.Model(Both().double(), likelihood, batch=unpack)
    rows = (normal(12, 3), normal(12, 3, seed=1), normal(12, 1, seed=2), torch.ones(12).double())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows), batch_size=4)
    posterior = tb.fit(model, loader, tb.MAP(epochs=20, adversarial=0.05, optimizer=tb.Adam(0.02)), callbacks=())
    assert posterior.tensors()["weights_MD"].isfinite().all()


def test_refusals_say_what_to_do() -> None:
    net = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    model = tb.Model(net, tb.likelihoods.Categorical())
    tokens = torch.arange(16).view(8, 2) % 5
    with pytest.raises(TypeError, match=r"must be real numbers; got torch.int64.*Leave `adversarial` out"):
        tb.fit(model, (tokens, tokens[:, 0] % 2), tb.MAP(epochs=2, adversarial=0.01), callbacks=())
    for share in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="`adversarial` must"):
            tb.MAP(adversarial=share)
    density, state = LogDensity(linear(), 10), begun(linear(), 1)
    state, _ = attacked(density, state, tb.Batch(normal(1, 4, 3), normal(1, 4, 1)), share=0.1)
    with pytest.raises(ValueError, match=r"needs rows of one shape.*got \(2,\) after \(3,\)"):
        attacked(density, state, tb.Batch(normal(1, 4, 2), normal(1, 4, 1)), share=0.1)
