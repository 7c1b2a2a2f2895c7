"""Networks that see the rows of a batch in a way of their own, or cannot run under a transform of torch.func."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import torchbayes as tb
from tests.oracles import assert_close, classes, normal
from torchbayes.model.batches.batch import batch_size, rows_of

N = 24
KEYS = torch.arange(N) - N / 2 + 0.5
KEYS[4:] = KEYS[4:][torch.randperm(N - 4, generator=torch.Generator().manual_seed(0))]  # the first four are in order
FLAT = torch.cat([KEYS.double().unsqueeze(1), normal(N, 2)], dim=1)
SERIES = {"series": normal(N, 4, 2), "lengths": 1 + torch.arange(N) % 4}


class Sorted(nn.Module):
    """Its layers see the rows in the order of their first input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        order = inputs[:, 0].argsort()
        return self.two(self.one(inputs[order]).tanh()[order.argsort()])


class Routed(nn.Module):
    """Each row goes through one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, left = inputs.new_zeros(len(inputs), 2), inputs[:, 0] < 0
        outputs[left], outputs[~left] = self.left(inputs[left]), self.right(inputs[~left])
        return outputs


class Packed(nn.Module):
    """A recurrent layer over packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(2, 2, batch_first=True), nn.Linear(2, 2)

    def forward(self, series: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(series, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.layer(packed)[1][-1])


class Slopes(nn.Module):
    """A value and its derivative in the first input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            inputs = inputs.detach().requires_grad_()
            value = self.layers(inputs)
            (slopes,) = torch.autograd.grad(value.sum(), inputs, create_graph=True)
        return torch.cat([value, slopes[:, :1]], dim=1)


class Counting(nn.Module):
    """Counts its calls, and has a parameter in no layer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(3, 2), nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(inputs).tanh() * self.gain


class WithLogits(nn.Module):
    """A parameter in no layer, and outputs in an object."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(3, 2), nn.Parameter(torch.zeros(3))

    def forward(self, inputs: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.layer(inputs + self.shift))


NETWORKS: dict[str, tuple[type[nn.Module], Any]] = {
    "sorted": (Sorted, FLAT),
    "routed": (Routed, FLAT),
    "packed": (Packed, SERIES),
    "slopes": (Slopes, FLAT),
    "counting": (Counting, FLAT),
    "with logits": (WithLogits, FLAT),
}
every = pytest.mark.parametrize("name", NETWORKS)


def made(name: str) -> tuple[nn.Module, Any, Tensor]:
    """Return a network, inputs and labels."""
    torch.manual_seed(3)
    kind, inputs = NETWORKS[name]
    return kind().double(), inputs, classes(N, 2)


def jacobian(network: nn.Module, inputs: Any) -> tuple[Tensor, Tensor]:
    """Return outputs (N, K) and their derivatives (N, K, D), each row on its own."""
    outputs, rows = [], []
    for n in range(batch_size(inputs)):
        row = rows_of(inputs, slice(n, n + 1))
        actual = network(**row) if isinstance(row, dict) else network(row)
        actual = getattr(actual, "logits", actual)[0]
        own = [
            torch.autograd.grad(f, [*network.parameters()], retain_graph=True, materialize_grads=True) for f in actual
        ]
        rows.append(torch.stack([torch.cat([g.flatten() for g in each]) for each in own]))
        outputs.append(actual.detach())
    return torch.stack(outputs), torch.stack(rows)


def precision(network: nn.Module, inputs: Any) -> Tensor:
    """Return the GGN of a softmax likelihood and a standard normal prior, (D, D)."""
    outputs, rows = jacobian(network, inputs)
    p = outputs.softmax(-1)
    curvature = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    return torch.einsum("nkd,nkl,nle->de", rows, curvature, rows) + torch.eye(rows.shape[-1]).double()


def fitted(name: str, structure: Any = "dense", data: Any = None) -> tuple[nn.Module, Any, tb.LaplacePosterior]:
    network, inputs, labels = made(name)
    model = tb.Model(network, tb.likelihoods.Categorical())
    method = tb.Laplace(structure, check_mode=False, prior="model")
    actual = tb.fit(model, data or [(inputs, labels)], method, start=network, callbacks=())
    assert isinstance(actual, tb.LaplacePosterior)
    return network, inputs, actual


@every
@pytest.mark.parametrize("structure", ["dense", "diagonal"])
def test_the_covariance_of_the_outputs_is_that_of_rows_one_by_one(name: str, structure: str):
    network, inputs, actual = fitted(name, structure)
    wanted, (outputs, rows) = precision(network, inputs), jacobian(network, inputs)
    covariance = torch.linalg.inv(wanted) if structure == "dense" else torch.diag(1 / wanted.diag())
    seen = tb.Linearised(actual).functions(inputs)
    assert_close(seen.mean_MBK[0], outputs)
    assert_close(seen.covariance_MBKK[0], torch.einsum("nkd,de,nle->nkl", rows, covariance, rows), rtol=1e-9)


@every
def test_the_functional_form_agrees(name: str):
    network, inputs, actual = fitted(name)
    labels = classes(N, 2)
    functional = tb.functional_laplace(actual.model, [(inputs, labels)], network)
    assert_close(functional.log_evidence(), actual.log_evidence()[0], rtol=1e-9)


@pytest.mark.parametrize("name", ["sorted", "routed"])
@pytest.mark.parametrize("place", [0, N - 1])
def test_few_rows_asked_about_first_do_not_change_what_is_said_of_others(tmp_path: Any, name: str, place: int):
    _, inputs, actual = fitted(name, "kronecker")
    truth = tb.Linearised(actual).functions(inputs)
    loaded = tb.load(actual.save(tmp_path / "posterior"), actual.model)
    gaussian = tb.Gaussian(actual.model, actual.mean_MD, fitted(name, "diagonal")[2].gaussian.covariance)
    for posterior in (actual, loaded):
        linearised = tb.Linearised(posterior)  # type: ignore[arg-type]
        linearised.functions(inputs[place : place + 1])
        assert_close(linearised.functions(inputs).covariance_MBKK, truth.covariance_MBKK)
    linearised = tb.Linearised(gaussian)  # which does not know of the fit
    linearised.functions(inputs[place : place + 1])
    assert_close(
        linearised.functions(inputs).covariance_MBKK, tb.Linearised(gaussian).functions(inputs).covariance_MBKK
    )


class Last(nn.Module):
    """Layers see positions first, and the outputs are those of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.two(self.one(inputs.transpose(0, 1)).tanh())[-1]


@pytest.mark.parametrize("count", [2, 8, 16])
def test_as_many_positions_as_rows_are_no_rows(count: int) -> None:
    torch.manual_seed(3)
    network, inputs, labels = Last().double(), normal(count, count, 3), classes(count, 2)
    model = tb.Model(network, tb.likelihoods.Categorical())
    actual: Any = tb.fit(
        model, (inputs, labels), tb.Laplace("dense", check_mode=False, prior="model"), start=network, callbacks=()
    )
    wanted = precision(network, inputs)
    assert_close(actual.gaussian.covariance.dense()[0], torch.linalg.inv(wanted), rtol=1e-8)


def test_a_layer_that_sees_fewer_rows_later_is_named():
    _, inputs, labels = made("routed")
    inputs = inputs[inputs[:, 0].argsort()]
    half = N // 2
    batches = [(inputs[:half], labels[:half]), (inputs[half - 3 :], labels[half - 3 :])]
    with pytest.raises(ValueError, match="`left` was given 3 of a batch of 15 rows"):
        fitted("routed", "diagonal", batches)
