"""Backends: one table, used by everything that runs networks; values without gradients; the prior once over ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
import torch
from tests.oracles import assert_close, classes, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.density import FunctionDensity, LogDensity, Plan, Ranks
from torchbayes.density.backend import Backend, Evaluation, Functions
from torchbayes.density.dynamics import leapfrog
from torchbayes.density.loop import Loop
from torchbayes.density.plans import BACKEND_NAMES, BACKENDS, BackendName
from torchbayes.evidence.path import AnnealedDensity, FunctionTarget
from torchbayes.model import Batch, Model, likelihoods, priors
from torchbayes.native.build import available

M, B, N = 3, 8, 41
PRIORS: dict[str, Any] = {
    "normal": priors.Normal(0.7),
    "mixed": {"0.*": priors.Laplace(), "2.weight": priors.Normal(2.0, 0.5), "*": priors.Flat()},
    "heavy": priors.StudentT(),
}
kernel = pytest.mark.skipif(not available(), reason="kernels cannot be built here (compiler or MKL missing)")
RUN: list[Any] = [pytest.param("native", marks=kernel), "loop", "vmap"]


def dense(prior: Any, **settings: Any) -> Model:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    return Model(module.double(), likelihoods.Categorical(), prior, temperature=0.3, **settings)


def all_rows() -> Batch:
    return Batch(normal(N, 5), classes(N, 3))


def own_rows() -> Batch:
    return Batch(normal(M, B, 5), classes(M * B, 3).view(M, B))


def test_the_table_and_the_setting_name_the_same_backends():
    assert get_args(BackendName) == BACKEND_NAMES
    assert len(set(BACKEND_NAMES)) == len(BACKENDS)
    with pytest.raises(ValueError, match="`backend` must be one of native, loop, vmap, compiled; got 'fast'"):
        Plan("fast", "I know")


# --- the value without its gradient ---


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
@pytest.mark.parametrize("tempering", ["joint", "likelihood"])
@pytest.mark.parametrize("way", RUN)
def test_the_value_is_bit_for_bit_that_of_a_call(way: BackendName, tempering: str, prior: Any):
    model = dense(prior, tempering=tempering)
    weights_MD = normal(M, model.layout.size)
    density = LogDensity(model, N, all_rows(), plan=way, chunk_size=9)
    for batch in (None, own_rows()):
        value, actual = density(weights_MD, batch), density.value(weights_MD, batch)
        assert torch.equal(actual.log_density, value.log_density)
        assert torch.equal(actual.log_likelihood, value.log_likelihood)
        assert not actual.log_density.requires_grad


class Encoder(nn.Module):
    """PyTorch runs another kernel here where nothing is differentiated."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs).mean(1))


def test_the_value_of_attention_is_that_of_a_call():
    model = Model(Encoder(), likelihoods.Categorical())
    density = LogDensity(model, N, Batch(normal(N, 6, 4).float(), classes(N, 3)), plan="loop")
    weights_MD, _ = model.starting_weights([1, 2])
    assert torch.equal(density.value(weights_MD).log_density, density(weights_MD).log_density)


def test_a_value_asked_for_first_chooses_the_plan_and_needs_rows():
    model = Model(nn.Linear(5, 3), likelihoods.StudentT())
    data = Batch(normal(N, 5).float(), normal(N, 3).float())
    density, weights_MD = LogDensity(model, N, data, chunk_size=9), normal(M, 18).float()
    value = density.value(weights_MD)
    assert density.plan is not None
    assert set(density.plan.seconds) == {"loop", "vmap"}
    assert torch.equal(value.log_density, density(weights_MD).log_density)
    with pytest.raises(ValueError, match="a batch is needed: this density was made without `data`"):
        LogDensity(model, N).value(weights_MD)


def test_functions_give_their_value_too():
    def log_density(weights_MD: Tensor) -> Tensor:
        (slope_MD,) = torch.autograd.grad(weights_MD.pow(3).sum(), weights_MD, create_graph=True)  # 3 w²
        return -slope_MD.sum(-1)

    density, at = FunctionDensity(log_density), normal(M, 2)
    assert_close(density.value(at).log_density, -3 * at.square().sum(-1))
    assert torch.equal(density.value(at).log_likelihood, density(at).log_likelihood)
    parts = (lambda w: -w.square().sum(-1), lambda w: -w.abs().sum(-1))
    annealed = AnnealedDensity(FunctionTarget(*parts, lambda count, _: normal(count, 2)), torch.tensor([0.25]))
    assert_close(annealed.value(at).log_density, -at.square().sum(-1) - 0.25 * at.abs().sum(-1))
    assert_close(annealed.value(at).log_likelihood, -at.abs().sum(-1))


# --- a backend more ---


class Counting(Backend):
    """The loop, which counts its calls and has the prior in its own pass."""

    name, words, automatic = "counting", "a counter", "wherever it runs"
    calls: list[str]

    def refuses(self, evaluation: Evaluation) -> str | None:
        return "it takes three members" if len(evaluation.weights_MD) != M else None

    def evaluate(self, evaluation: Evaluation) -> tuple[Tensor, Tensor]:
        self.calls.append("evaluate")
        value_M, _ = Loop(self.model, training=self.training, chunk_size=self.chunk_size).evaluate(evaluation)
        if evaluation.gradient_MD is not None:
            self.model.prior.add_gradient_(evaluation.gradient_MD, evaluation.weights_MD, evaluation.scales.prior)
        return value_M, self.model.log_prior(evaluation.weights_MD)

    def outputs(self, functions: Functions) -> Tensor | None:
        if len(functions.weights_SD) != M:
            return None
        self.calls.append("outputs")
        return Loop(self.model).outputs(functions)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put a backend first in the table; returns its calls."""
    calls: list[str] = []
    monkeypatch.setattr(Counting, "calls", calls, raising=False)
    monkeypatch.setattr("torchbayes.density.plans.BACKENDS", (Counting, *BACKENDS))
    monkeypatch.setattr("torchbayes.density.plans.BACKEND_NAMES", ("counting", *BACKEND_NAMES))
    return calls


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
def test_an_entry_in_the_table_is_all_that_a_backend_needs(prior: Any, counted: list[str]):
    model, data = dense(prior), all_rows()
    weights_MD = normal(M, model.layout.size)
    density, loop = LogDensity(model, N, data), LogDensity(model, N, data, plan="loop")
    for actual, expected in zip(density(weights_MD), loop(weights_MD), strict=True):
        assert torch.equal(actual, expected)
    assert density.plan == Plan("counting", "a counter runs this network")
    assert counted == ["evaluate"]
    steps = {
        "gradient_MD": loop(weights_MD).gradient,
        "step_size_M": torch.full((M,), 0.01).double(),
        "steps_M": torch.tensor([1, 2, 3]),
    }
    phase = density.leapfrog(weights_MD, torch.ones_like(weights_MD), **steps)
    expected = leapfrog(loop, weights_MD, torch.ones_like(weights_MD), **steps)
    assert torch.equal(phase.weights_MD, expected.weights_MD)
    assert counted == 4 * ["evaluate"]
    outputs = tb.Functions(model, weights_MD)(data.inputs)
    assert counted[-1] == "outputs"
    assert_close(outputs, torch.stack([model.network(model.split(w)[0], data.inputs) for w in weights_MD]))
    other = LogDensity(model, N, data)
    other(weights_MD[:1])
    assert other.plan is not None
    assert other.plan.backend != "counting"


# --- the prior once over ranks ---


@dataclass(frozen=True)
class Alone(Ranks):
    """A rank whose sums stay its own share; the others' are added by the test."""

    shares: list[list[Tensor]] = field(default_factory=list)

    def sum_(self, *tensors: Tensor) -> None:
        self.shares.append([tensor.clone() for tensor in tensors])


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
@pytest.mark.parametrize("way", RUN)
def test_the_shares_of_the_ranks_sum_to_the_whole_with_the_prior_once(way: BackendName, prior: Any):
    model, data = dense(prior), all_rows()
    weights_MD = normal(M, model.layout.size)
    whole = LogDensity(model, N, data, plan=way)(weights_MD)
    shares, actual = [], []
    for rank in range(2):
        ranks = Alone(data=2, data_rank=rank)
        actual.append(LogDensity(model, N, data, plan=way, ranks=ranks)(weights_MD))
        shares.append(ranks.shares[0])
    assert_close(shares[0][1] + shares[1][1], whole.log_likelihood)
    # what a rank adds after the sum is the same on each of them, and none or the whole prior
    after_MD = [value.gradient - share[0] for value, share in zip(actual, shares, strict=True)]
    assert_close(after_MD[0], after_MD[1])
    assert_close(shares[0][0] + shares[1][0] + after_MD[0], whole.gradient)


# --- gradients ---


class Half(nn.Module):
    """A network of which only one layer gives the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(5, 3), nn.Linear(5, 3)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.used(inputs)


@pytest.mark.parametrize("plan", ["loop", "vmap"])
@pytest.mark.parametrize("chunk_size", [N, 10])
def test_weights_that_no_output_depends_on_have_the_gradient_of_the_prior(plan: Any, chunk_size: int):
    model = Model(Half(), likelihoods.Categorical(), priors.Normal(0.7))
    density = LogDensity(model, N, all_rows(), plan=plan, chunk_size=chunk_size)
    weights_MD, out = normal(M, model.layout.size), torch.full((M, model.layout.size), torch.nan, dtype=torch.float64)
    actual = -N * density.loss(weights_MD, out=out).gradient
    for weights_D, gradient_D in zip(weights_MD, actual, strict=True):
        leaf = weights_D.clone().requires_grad_()
        model.log_joint(leaf, all_rows(), N).backward()
        assert_close(gradient_D, leaf.grad)
