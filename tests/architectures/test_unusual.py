"""Networks that differentiate within, pack sequences, or keep frozen parts in bfloat16; likelihoods of other shapes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn
from torch.func import functional_call

import torchbayes as tb
from tests.architectures.helpers import METHODS, check, ggn, methods, precision, start_of
from tests.covering import some_of
from tests.oracles import assert_close, classes, normal

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # these fits are of a few steps


class Informed(nn.Module):
    """u(x), and the residual of u' + u = 0, by differentiation within the network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            u = self.net(x)
            (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return torch.cat([u, slope + u], dim=1)


def informed() -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    x = torch.linspace(0, 1, 8, dtype=torch.float64).unsqueeze(1)
    rows = x, torch.cat([(-x).exp(), torch.zeros_like(x)], dim=1)
    return tb.Model(Informed().double(), tb.likelihoods.Gaussian(0.3)), rows


def by_hand(model: tb.Model, weights_D: Tensor, x: Tensor) -> Tensor:
    """The same outputs with u' in closed form: Σ_h v_h w_h (1 − tanh²)."""
    w, b, v, c = model.layout.split(weights_D).values()
    hidden = torch.tanh(x @ w.T + b)
    u, slope = hidden @ v.T + c, ((1 - hidden**2) * w[:, 0]) @ v.T
    return torch.cat([u, slope + u], dim=1)


def test_curvature_of_a_network_that_differentiates():
    model, (x, y) = informed()
    start = model.given_weights()
    assert_close(model.network(start, x), by_hand(model, start, x))
    jacobian = torch.as_tensor(torch.autograd.functional.jacobian(lambda w: by_hand(model, w, x), start)).flatten(0, 1)
    exact = jacobian.T @ jacobian / 0.09 + torch.eye(len(start))
    for structure in ("dense", "kronecker"):  # no layer has a form of its own, so that one block has all weights
        actual: Any = tb.fit(
            model, (x, y), tb.Laplace(structure=structure, check_mode=False, prior="model"), start=start
        )
        assert_close(precision(actual), exact, rtol=1e-8, atol=1e-8)
        variance = tb.Linearised(actual).functions(x, diagonal=True).covariance_MBKK[0].flatten()
        assert_close(variance, (jacobian @ torch.linalg.inv(exact) * jacobian).sum(1), rtol=1e-7)
    diagonal: Any = tb.fit(
        model, (x, y), tb.Laplace(structure="diagonal", check_mode=False, prior="model"), start=start
    )
    assert_close(precision(diagonal).diagonal(), exact.diagonal(), rtol=1e-8)


@pytest.mark.parametrize(
    "method",
    methods(
        {"map", "hmc", "online", "vi_by_layers"},
        ["map", "swag", "sghmc", "hmc", "online", "vi", "vi_by_layers", "ivon", "flow"],
    ),
)
def test_a_network_that_differentiates_by_every_method(method: str):
    model, rows = informed()
    posterior = tb.fit(model, rows, METHODS[method])
    actual = tb.predict(posterior, rows[0])
    expected = -actual.log_prob(rows[1]).mean()
    assert_close(tb.evaluate(posterior, rows).metrics["nll"], expected)


def test_the_gradient_of_a_network_that_differentiates():
    model, (x, y) = informed()
    start = model.given_weights().requires_grad_()
    rows = tb.Batch(x, y)
    (ours,) = torch.autograd.grad(model.log_joint(start, rows, len(x)), start)
    noise = distributions.Normal(by_hand(model, start, x), 0.3)
    joint = noise.log_prob(y).sum() + distributions.Normal(0.0, 1.0).log_prob(start).sum()
    assert_close(ours, torch.autograd.grad(joint, start)[0], rtol=1e-9)


class Packed(nn.Module):
    """A recurrent network that packs its sequences by their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.head(self.cells(packed)[1][0])


def packed() -> tuple[tb.Model, dict[str, Tensor]]:
    torch.manual_seed(8)
    rows = {"x": normal(8, 5, 2), "lengths": 1 + classes(8, 5, seed=1), "labels": classes(8, 3, seed=2)}
    return tb.Model(Packed().double(), tb.likelihoods.Categorical()), rows


@pytest.mark.parametrize("method", methods({"swag", "hmc", "kronecker", "vi_by_layers", "online"}))
def test_packed_sequences(method: str, tmp_path: Path):
    check(packed()[0], method, packed()[1], tmp_path)


def test_a_packed_sequence_as_inputs_is_refused_with_the_remedy():
    model, rows = packed()
    given = nn.utils.rnn.pack_padded_sequence(rows["x"], rows["lengths"], batch_first=True, enforce_sorted=False)
    remedy = "got an object of type PackedSequence. Give padded sequences and their lengths, and let the network pack"
    for data in ((given, rows["labels"]), [(given, rows["labels"])], {"x": given, "labels": rows["labels"]}):
        with pytest.raises(TypeError, match=remedy):
            tb.fit(model, data, METHODS["map"])
    with pytest.raises(TypeError, match=remedy):
        tb.predict(tb.Point(model, model.given_weights().unsqueeze(0)), given)


def test_laplace_of_packed_sequences_is_that_of_autograd():
    model, rows = packed()
    exact = ggn(model, {"x": rows["x"], "lengths": rows["lengths"]}, 3)
    method = tb.Laplace(structure="dense", check_mode=False, prior="model")
    actual = tb.fit(model, rows, method, start=model.given_weights())
    assert_close(precision(actual), exact + torch.eye(len(exact)), rtol=1e-8, atol=1e-8)


class Direction:
    """Targets are angles (B,), outputs vectors (B, 2): von Mises about their direction, concentrated by length."""

    def parameters(self) -> dict[str, Any]:
        return {}

    def distribution(self, outputs: Tensor, parameters: Any = None) -> distributions.Distribution:
        angle = torch.atan2(outputs[..., 1], outputs[..., 0])
        return distributions.VonMises(angle, outputs.norm(dim=-1), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
        return self.distribution(outputs).log_prob(targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        if targets.shape != outputs.shape[:-1]:
            raise ValueError("one angle a row.")


class Spans(Direction):
    """Outputs (B, 2, T) are scores of where a span starts and ends, targets (B, 2) its places."""

    def distribution(self, outputs: Tensor, parameters: Any = None) -> distributions.Distribution:
        return distributions.Independent(distributions.Categorical(logits=outputs, validate_args=False), 1)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        if targets.shape != outputs.shape[:-1]:
            raise ValueError("two places a row.")


@pytest.mark.parametrize(
    ("kind", "method"), some_of(["direction", "spans"], ["map", "swag", "sghmc", "hmc", "diagonal"], one_in=2)
)
def test_likelihoods_whose_outputs_have_another_shape_than_targets(kind: str, method: str):
    torch.manual_seed(9)
    x = normal(8, 3)
    spans = kind == "spans"
    net = nn.Sequential(nn.Linear(3, 8), nn.Unflatten(1, (2, 4))) if spans else nn.Linear(3, 2)
    targets = classes(16, 4).view(8, 2) if spans else normal(8, seed=1).clamp(-3, 3)
    model = tb.Model(net.double(), Spans() if spans else Direction())
    posterior = tb.fit(model, (x, targets), METHODS[method], start=start_of(model, method))
    outputs = tb.predict(posterior, x).outputs_SBK
    each = model.likelihood.distribution(outputs).log_prob(targets)
    expected = -(each.logsumexp(0) - math.log(len(each))).mean()
    assert_close(tb.evaluate(posterior, (x, targets)).metrics["nll"], expected, rtol=1e-8)


class Frozen(nn.Module):
    """A backbone in bfloat16 under a head in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(4, 6).bfloat16(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x.bfloat16()).float().tanh())


@pytest.mark.parametrize("method", methods({"map", "sghmc", "diagonal", "vi", "flow", "ivon"}))
def test_a_frozen_backbone_in_bfloat16(method: str, tmp_path: Path):
    torch.manual_seed(10)
    model = tb.Model(Frozen(), tb.likelihoods.Categorical(), random="head.*")
    check(model, method, {"x": normal(8, 4).float(), "labels": classes(8, 3)}, tmp_path)


def test_a_module_is_called_as_it_is():
    model, (x, _) = informed()
    start = model.given_weights()
    assert_close(functional_call(Informed().double(), model.layout.split(start), (x,)), model.network(start, x))
