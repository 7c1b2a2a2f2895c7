"""Which axis of a layer's inputs is that of the rows: told by what grows with them, whatever the lengths are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.laws.cases import normal
from torch import Tensor, nn
from torch.func import vmap

import torchbayes as tb
from torchbayes.density.density import LogDensity
from torchbayes.density.layers import passes
from torchbayes.density.layers.passes import Gradients, by_layers
from torchbayes.density.layers.randomness import Place, Randomness
from torchbayes.density.layers.uses import how
from torchbayes.model.batches.batch import Batch

T = 5


class Turned(nn.Module):
    """Layers that have positions or rows first, and the average of what they give over positions."""

    def __init__(self, layers: nn.Module, *, time_first: bool) -> None:
        super().__init__()
        self.layers, self.time_first = layers, time_first

    def forward(self, inputs: Tensor) -> Tensor:
        given = inputs.transpose(0, 1).contiguous() if self.time_first else inputs
        return self.layers(given).mean(0 if self.time_first else 1)


def encoder(time_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=not time_first)
    return nn.Sequential(layer, nn.Linear(4, 2))


LAYERS: dict[str, Callable[[bool], nn.Module]] = {
    "linear": lambda _: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
    "transformer": encoder,
}


def minibatch(rows: int, *shape: int) -> Batch:
    return Batch(normal(1, rows, *shape, seed=5), normal(1, rows, 2, seed=7))


def passed(net: nn.Module, batch: Batch, estimator: Any, *, scale: float = 0.3) -> Gradients:
    return passes_of(net, batch, estimator, scale=scale)[0]


def passes_of(net: nn.Module, batch: Batch, estimator: Any, *, scale: float = 0.3, count: int = 1) -> list[Gradients]:
    model = tb.Model(net.double(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal())
    density, size = LogDensity(model, 50, training=True), model.layout.size
    mean_MD, scale_MD = 0.5 * normal(1, size, seed=3), scale * normal(1, size, seed=6).exp()
    buffers = {name: buffer[None].clone() for name, buffer in model.network.buffers.items()}
    about: dict[str, Any] = {"batch": batch, "estimator": estimator, "buffers": buffers, "seeds": [3]}
    return [by_layers(density, mean_MD, scale_MD, **about, step=step) for step in range(count)]


def drawn(net: nn.Module, batch: Batch) -> Gradients:
    """The same under one draw of all weights."""
    model = tb.Model(net.double(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal())
    random, size = Randomness(3, 0), model.layout.size
    mean_D, scale_D = 0.5 * normal(1, size, seed=3)[0], 0.3 * normal(1, size, seed=6)[0].exp()
    for part_D in (mean_D, scale_D):
        part_D.requires_grad_()
    means, scales = model.layout.split(mean_D), model.layout.split(scale_D)
    held = {name: means[name] + scales[name] * random.drawn(n, means[name]) for n, name in enumerate(means)}
    nll = -model.log_likelihood(held, batch.map(lambda t: t[0])).mean()
    by_mean, by_scale = torch.autograd.grad(nll, (mean_D, scale_D))
    return Gradients(nll.detach()[None], by_mean[None], by_scale[None], nll.detach()[None])


def assert_same(one: Gradients, other: Gradients) -> None:
    for mine, yours in zip(one[:3], other[:3], strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3, T])
@pytest.mark.parametrize("estimator", ["auto", "local", "flipout"])
@pytest.mark.parametrize("name", LAYERS)
def test_rows_behind_positions_have_the_noise_of_rows_in_front(name: str, estimator: Any, rows: int) -> None:
    """Of whole minibatches, a last one of fewer rows and one row: the two networks are one function of their inputs."""
    batch = minibatch(rows, T, 4)
    actual = [passed(Turned(LAYERS[name](first), time_first=first), batch, estimator) for first in (True, False)]
    assert_same(*actual)


def test_the_expected_loss_of_a_mean_over_time_is_its_closed_form() -> None:
    """E nll = nll at the mean + ½ Σ var, where a Linear sees as many positions as there are rows."""
    net, batch, count = Turned(nn.Linear(4, 2), time_first=True), minibatch(T, T, 4), 120
    actual = torch.stack([one.nll_M for one in passes_of(net, batch, "auto", count=count)])
    average_B4 = batch.inputs[0].mean(1)
    scale_D = 0.3 * normal(1, 10, seed=6)[0].exp()
    variance = (average_B4.square() @ scale_D[:8].square().view(2, 4).T + scale_D[8:].square()).sum(-1).mean()
    at_mean = passed(net, batch, "auto", scale=1e-9).nll_M
    exact = float(at_mean + 0.5 * variance)
    error = float(actual.std()) / math.sqrt(count)
    assert abs(float(actual.mean()) - exact) < 4.5 * error < 0.5 * float(variance)  # of which 1 − 1/T would be missing


class Table(nn.Module):
    """Rows are compared with what a layer makes of a table that all of them share."""

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("table", normal(entries, 4, seed=8))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs @ self.layer(self.table).T)[:, :2]


class Merged(nn.Module):
    """Rows and positions share an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2]).mean(1)


class Chosen(nn.Module):
    """A layer sees the positions that a mask chooses: one of the first row, none or two of others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        number = torch.arange(len(inputs)) % 3
        mask = torch.arange(inputs.shape[1]) < torch.tensor([1, 0, 2])[number].unsqueeze(1)
        made = inputs.new_zeros(*inputs.shape[:2], 2)
        return made.masked_scatter(mask.unsqueeze(-1), self.layer(inputs[mask])).sum(1)


class OneByOne(Merged):
    """`vmap` hides the axis of the rows."""

    def forward(self, inputs: Tensor) -> Tensor:
        return vmap(lambda row: self.layer(row).mean(0))(inputs)


class OfSix(Merged):
    """Takes six rows and no other number of them."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.view(6, T, 4)).mean(1)


class FewAtATime(Merged):
    """Passes rows through the layer four at a time."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([self.layer(part).mean(1) for part in inputs.split(4)])


class Squeezed(Merged):
    """Loses the axis of the rows where there is one row."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.squeeze(0)).view(len(inputs), T, 2).mean(1)


@pytest.mark.parametrize("estimator", ["auto", "local", "flipout"])
@pytest.mark.parametrize(
    ("net", "rows", "shape"),
    [
        pytest.param(lambda: Table(6), 6, (3,), id="table"),
        pytest.param(lambda: Table(6), 4, (3,), id="table of more entries"),
        pytest.param(Merged, 1, (T, 4), id="merged"),
        pytest.param(Chosen, 6, (T, 4), id="chosen by a mask"),
        pytest.param(OneByOne, 4, (4, 4), id="vmap"),
        pytest.param(OfSix, 6, (T, 4), id="a fixed number of rows"),
        pytest.param(FewAtATime, 6, (T, 4), id="chunks"),
        pytest.param(Squeezed, 1, (T, 4), id="squeezed"),
    ],
)
def test_where_rows_have_no_axis_of_their_own_weights_are_drawn(
    net: Callable[[], nn.Module], rows: int, shape: tuple[int, ...], estimator: Any
) -> None:
    batch = minibatch(rows, *shape)
    assert_same(passed(net(), batch, estimator), drawn(net(), batch))


def test_rows_of_another_shape_are_looked_at_again() -> None:
    """A layer of one position has exact noise, one of several keeps their covariance, in whatever order they come."""
    model = tb.Model(nn.Linear(4, 2).double(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal())
    density, actual = LogDensity(model, 50, training=True), []
    for shape in ((4,), (4, 4), (4,), (1, 4)):
        batch = minibatch(4, *shape)
        actual.append(how(density, batch.map(lambda t: t[0]), "auto")["weight"])
    assert actual == ["local", "flipout", "local", "flipout"]


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_processes_that_share_rows_behind_positions_have_the_noise_of_one(
    estimator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of two shares of the rows, the first as long as a sequence, add up to those of all."""
    net, batch = Turned(LAYERS["linear"](True), time_first=True), minibatch(T + 3, T, 4)
    whole, shares = passed(net, batch, estimator), []
    for own in (slice(0, T), slice(T, T + 3)):
        monkeypatch.setattr(
            passes, "_here", lambda _, batch, own=own: (Place(own, T + 3), batch.map(lambda t: t[:, own]))
        )
        shares.append(passed(net, batch, estimator))
    assert_same(whole, Gradients(*(torch.stack(part).sum(0) for part in zip(*shares, strict=True))))
